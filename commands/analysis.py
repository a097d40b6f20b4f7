"""The optional packages of the analysis commands, and errors of these commands as messages a person can mend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commands.config import ConfigError

PACKAGES = frozenset({"pyarrow", "duckdb"})


@contextmanager
def analysis_extra(command: str) -> Iterator[None]:
    """Name the extra when pyarrow or duckdb are missing.

    Raises:
        ConfigError: one of them cannot be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise ConfigError(f"`rods {command}` needs {error.name}: pip install 'rods-streams[analysis]'") from error


@contextmanager
def mendable(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into the one that reaches the terminal as a message.

    Raises:
        ConfigError: with the same text.
    """
    try:
        yield
    except kinds as error:
        raise ConfigError(str(error.args[0]) if error.args else str(error)) from error
