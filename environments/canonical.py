"""One text for one value: canonical JSON and its digest, the same in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

MAX_DEPTH = 60


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no blanks.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value is no JSON data.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def plain(value: object, depth: int = 0) -> object:
    """JSON-able form of a state value: sets sorted, numbers by value, keys that are no text kept apart from text.

    Whole floats become integers, so that 65 and 65.0 are one state. Raises RecursionError beyond MAX_DEPTH levels.
    """
    if depth > MAX_DEPTH:
        raise RecursionError(f"state is nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Mapping):
        return _plain_mapping(value, depth + 1)
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, depth + 1) for item in value), key=_text)
    return {"!": repr(value)}


def _plain_mapping(value: Mapping, depth: int) -> object:
    if all(isinstance(key, str) for key in value):
        return {key: plain(value[key], depth) for key in sorted(value)}
    pairs = [[plain(key, depth), plain(item, depth)] for key, item in value.items()]
    return {"!pairs": sorted(pairs, key=_text)}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def digest_of(value: object) -> str:
    """SHA-256 over the canonical text of JSON-able data, as 64 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
