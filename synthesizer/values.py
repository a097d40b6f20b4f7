"""Leaves of JSON data, numbers and words in text: how the synthesizer recognises one value in another place. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

Scalar = str | int | float | bool | None
Path = tuple[str | int, ...]

NUMBER = re.compile(r"(?<![\w.\-/:])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w\-/:]|[.,]\d)")
"""A number that stands alone: not part of an identifier, a date or a time."""
LOOSE_NUMBER = re.compile(r"\d+(?:\.\d+)?")
TOLERANCE = 1e-9


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, Scalar]]:
    """Every scalar inside JSON data with its path, in order."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def mapped(value: object, change: Callable[[Path, Scalar], Scalar], path: Path = ()) -> object:
    """The same data with every scalar passed through ``change``; keys and order stay."""
    if isinstance(value, dict):
        return {key: mapped(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change, (*path, index)) for index, item in enumerate(value)]
    return change(path, value)


def is_number(value: object) -> bool:
    """Whether a value is a number and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same(left: object, right: object) -> bool:
    """Equality of leaves; numbers by value, truth values only with truth values."""
    if is_number(left) and is_number(right):
        return abs(left - right) <= TOLERANCE * max(1.0, abs(left))
    return type(left) is type(right) and left == right


@lru_cache(maxsize=1024)
def parsed(result: str) -> object:
    """A result string as data: JSON, else a Python literal, else the text itself."""
    try:
        return json.loads(result)
    except (ValueError, RecursionError):
        pass
    if result[:1] in "[{":
        try:
            return ast.literal_eval(result)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return result
    return result


@lru_cache(maxsize=1024)
def result_leaves(result: str) -> tuple[tuple[Path, Scalar], ...]:
    """Leaves of a result string; a text that is no data also yields the numbers inside it."""
    data = parsed(result)
    found = list(leaves(data))
    if isinstance(data, str):
        tokens = LOOSE_NUMBER.findall(data) if len(data) <= 2000 else []
        found += [(("number", index), float(token)) for index, token in enumerate(tokens)]
    return tuple(found)


@lru_cache(maxsize=1024)
def numbers_in(text: str) -> frozenset[float]:
    """Values of all numbers that stand alone in a text."""
    return frozenset(float(token.replace(",", "")) for token in NUMBER.findall(text))


def word_pattern(word: str) -> str:
    """A regular expression for a word or phrase that is not part of a longer word or file name."""
    left = r"(?<![A-Za-z0-9_])" if word[:1].isalnum() or word[:1] == "_" else ""
    right = r"(?![A-Za-z0-9_]|\.[A-Za-z0-9])" if word[-1:].isalnum() or word[-1:] == "_" else ""
    return left + re.escape(word) + right


@lru_cache(maxsize=8192)
def _word(word: str, ignore_case: bool) -> re.Pattern[str]:
    return re.compile(word_pattern(word), re.IGNORECASE if ignore_case else 0)


def has_word(word: str, text: str, ignore_case: bool = False) -> bool:
    """Whether a text holds a word or phrase on its own."""
    if not word:
        return False
    if word not in text and not ignore_case:
        return False
    return _word(word, ignore_case).search(text) is not None


def has_number(value: float, text: str) -> bool:
    """Whether a text holds a number of that value."""
    return any(abs(value - number) <= TOLERANCE * max(1.0, abs(value)) for number in numbers_in(text))


def number_like(old: float | int, new: float) -> float | int:
    """``new`` with the type of ``old`` where that loses nothing."""
    if isinstance(old, int) and float(new).is_integer():
        return int(new)
    return float(new) if isinstance(old, float) else new


def rendered(token: str, value: float) -> str:
    """A number written like ``token``: same thousands separators, same decimals."""
    decimals = len(token.partition(".")[2])
    text = f"{value:,.{decimals}f}" if "," in token else f"{value:.{decimals}f}"
    if decimals == 0 and not float(value).is_integer():
        text = f"{value:,.2f}" if "," in token else f"{value:.2f}"
    return text


def replaced(text: str, words: dict[str, str]) -> str:
    """The text with whole words exchanged in one pass, longest first, so that no exchange is undone by another."""
    if not words:
        return text
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    pattern = re.compile("|".join(word_pattern(word) for word in longest_first))
    return pattern.sub(lambda match: words[match.group()], text)
