"""What the analysis commands share: their optional packages, errors as messages a person can mend, texts safe to show."""

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


def visible(text: str, keep: str = "") -> str:
    """A text of models or data as a terminal may get it: what is no printable character is spelled out.

    >>> visible("\x1b[31mred\u202e")
    '\\x1b[31mred\\u202e'

    Args:
        text: any text.
        keep: unprintable characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
