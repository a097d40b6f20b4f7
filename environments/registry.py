"""Environments by name: built-ins, installed plug-ins (entry points ``rods.environments``) or ``module:attribute``."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from environments.interface import Environment, EnvironmentUnavailable, TaskSource
from schemas.events import Task

ENTRY_POINT_GROUP = "rods.environments"
BUILT_IN = {
    "bfcl-v3": "environments.bfcl.environment:BfclEnvironment",
    "bfcl-v3-hints": "environments.bfcl.environment:HintedBfclEnvironment",
    "workshop": "environments.workshop:WORKSHOP",
}


@cache
def environment(name: str = "bfcl-v3") -> Environment:
    """The environment of that name; one instance per process.

    Raises:
        EnvironmentUnavailable: no such environment, or it lacks part of the interface; the text says what to do.
    """
    found = load_attribute(_target(name), f"environment '{name}'")
    instance = found() if callable(found) else found
    if not isinstance(instance, Environment):
        raise EnvironmentUnavailable(f"environment '{name}' does not implement environments.interface.Environment")
    return instance


def load_tasks(split: str, environment_name: str = "bfcl-v3") -> tuple[Task, ...]:
    """Tasks of ``train``, ``val``, ``test`` or ``all``, by category, then by index.

    Raises:
        EnvironmentUnavailable: the environment brings no tasks.
        ValueError: no such split.
    """
    source = environment(environment_name)
    if not isinstance(source, TaskSource):
        raise EnvironmentUnavailable(f"environment '{environment_name}' brings no tasks: give it tasks(split)")
    return source.tasks(split)


def load_attribute(target: str, what: str) -> object:
    """The object behind ``module:attribute``, also of a module in the working directory; ``what`` names it in the error."""
    module_name, _, attribute = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise EnvironmentUnavailable(f"cannot load {what} from '{target}': {error}") from error


def _target(name: str) -> str:
    if ":" in name:
        return name
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    target = BUILT_IN.get(name) or installed.get(name)
    if target is None:
        known = ", ".join(sorted({*BUILT_IN, *installed}))
        raise EnvironmentUnavailable(f"no environment named '{name}'; known: {known}; or give 'module:attribute'")
    return target
