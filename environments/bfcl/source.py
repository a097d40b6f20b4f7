"""Where the benchmark's data and simulator classes come from: the installed package, or a wheel named by a variable.

Only data files and the simulator modules are touched; modules of the package that write folders when imported are not.
The data files are pinned by digest, so that every task and every reward refers to one known version.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import ModuleType

from environments.interface import EnvironmentUnavailable

VERSION = "2026.3.23"
PATH_VARIABLE = "RODS_BFCL_PATH"
PACKAGE = "bfcl_eval"
SIMULATOR_PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
DATA_DIGEST = "8a809e8fe5aa47999d247d05b4e2930dd739b1e5a2c71133391b7010d1b89ac3"
INSTALL_HINT = (
    f"the BFCL package is missing: run `pip install --no-deps bfcl-eval=={VERSION}`"
    f" or set {PATH_VARIABLE} to the wheel file or to the folder that holds {PACKAGE}/"
)
QUESTION_FILES = tuple(
    f"BFCL_v4_multi_turn_{name}.json" for name in ("base", "miss_func", "miss_param", "long_context")
)


def _package_root() -> Traversable:
    path = os.environ.get(PATH_VARIABLE)
    if path and path not in sys.path:
        if not os.path.exists(path):
            raise EnvironmentUnavailable(f"{PATH_VARIABLE} names {path}, which does not exist; {INSTALL_HINT}")
        sys.path.insert(0, path)
    try:
        return files(PACKAGE)
    except ModuleNotFoundError as error:
        raise EnvironmentUnavailable(INSTALL_HINT) from error


@cache
def data_root() -> Traversable:
    """The package's data folder, checked against the pinned digest.

    Raises:
        EnvironmentUnavailable: the package is missing or holds other data than version VERSION.
    """
    root = _package_root() / "data"
    digest = hashlib.sha256()
    try:
        for name in QUESTION_FILES:
            digest.update((root / name).read_bytes())
            digest.update((root / "possible_answer" / name).read_bytes())
    except FileNotFoundError as error:
        raise EnvironmentUnavailable(f"{error}; {INSTALL_HINT}") from error
    if digest.hexdigest() != DATA_DIGEST:
        raise EnvironmentUnavailable(f"the BFCL data are not those of version {VERSION}; {INSTALL_HINT}")
    return root


def json_lines(*path: str) -> list[dict]:
    """The records of one JSONL file under the data folder."""
    node = data_root()
    for part in path:
        node = node / part
    return [json.loads(line) for line in node.read_text(encoding="utf-8").splitlines() if line.strip()]


def simulator_module(name: str) -> ModuleType:
    """One simulator module of the package.

    Raises:
        EnvironmentUnavailable: the package or one of its two needs (mpmath) is missing.
    """
    data_root()
    try:
        return importlib.import_module(f"{SIMULATOR_PACKAGE}.{name}")
    except ImportError as error:
        raise EnvironmentUnavailable(f"cannot import simulator '{name}': {error}; {INSTALL_HINT}") from error
