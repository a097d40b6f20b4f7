"""Ends a process with SIGKILL at an exact place in its code; read by Python itself at the start of every process of a run.

``RODS_KILLS_AT`` is JSON: a list of {"process", "module", "name", "when", "nth", "mark"}. A process whose command line has
``process`` dies before or after the ``nth`` call of ``name`` (a function, or Class.method, of ``module``), unless the file
``mark`` is there; it writes that file first, so that it dies once.
"""

import functools
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import signal
import sys


class Trap(importlib.abc.MetaPathFinder):
    """Wraps the named function of a module as soon as it has been loaded."""

    def __init__(self, kill: dict) -> None:
        self.kill = kill

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.kill["module"]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module: object) -> None:
            run(module)
            wrap(module, self.kill)

        spec.loader.exec_module = exec_module
        return spec


def wrap(module: object, kill: dict) -> None:
    """Put the trap around one function."""
    *owners, name = kill["name"].split(".")
    owner = functools.reduce(getattr, owners, module)
    real, calls = getattr(owner, name), [0]

    @functools.wraps(real)
    def trapped(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        if calls[0] == kill["nth"] and kill["when"] == "before":
            die(kill)
        result = real(*args, **kwargs)
        if calls[0] == kill["nth"] and kill["when"] == "after":
            die(kill)
        return result

    setattr(owner, name, trapped)


def die(kill: dict) -> None:
    """Leave the mark and end."""
    pathlib.Path(kill["mark"]).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


for kill_at in json.loads(os.environ.get("RODS_KILLS_AT", "[]")):
    if kill_at["process"] in " ".join(sys.orig_argv) and not os.path.exists(kill_at["mark"]):
        import importlib.util

        sys.meta_path.insert(0, Trap(kill_at))
