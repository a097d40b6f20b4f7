"""Values inside results, arguments and texts: their leaves, and how a value is looked for in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NOT_WORD = re.compile(r"[^a-z0-9]+")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar in JSON data with its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def read_result(text: str) -> Any:
    """A result as JSON data; a text that is no JSON as itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def normal(text: str) -> str:
    """Lower-case words and numbers divided by single blanks, so that quoting and punctuation do not matter."""
    return f" {_NOT_WORD.sub(' ', text.lower()).strip()} "


def numbers_in(text: str) -> frozenset[float]:
    """Every number written in a text, by value."""
    return frozenset(float(match) for match in _NUMBER.findall(text)[:10_000])
