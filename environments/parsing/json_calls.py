"""JSON from a hostile writer: bounded in size, depth and digits before it is parsed; no duplicate keys, no NaN."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from environments.execution import make_call
from environments.parsing.blocks import STRING
from environments.parsing.outcome import Malformed
from schemas.events import Call

MAX_JSON_CHARS = 32_768
MAX_DEPTH = 16
MAX_NUMBER_CHARS = 64
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}", re.ASCII)
_STRUCTURE = re.compile(STRING + r"|[\[\]{}]", re.DOTALL)
_ONLY_BRACKETS = re.compile(r"\s*[\[{][\s\[\]{}]*\Z")
_OBJECT = re.compile(r"""[\s\[]*\{\s*["']""")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def load_json(text: str, position: int = 0) -> object:
    """Parse one JSON value.

    Args:
        text: exactly the JSON, blanks around it allowed.
        position: offset of the text in its message, for error positions.

    Raises:
        Malformed: not JSON, or beyond a bound.
    """
    values = load_json_sequence(text, position, "")
    if len(values) != 1:
        raise Malformed("expected exactly one JSON value", position)
    return values[0]


def load_json_sequence(text: str, position: int, separators: str) -> tuple[object, ...]:
    """Several JSON values one after the other, divided by blanks or any of ``separators``.

    Raises:
        Malformed: anything that is not JSON between the separators, or beyond a bound.
    """
    _check_bounds(text, position)
    values: list[object] = []
    at = 0
    while True:
        while at < len(text) and (text[at].isspace() or text[at] in separators):
            at += 1
        if at == len(text):
            return tuple(values)
        value, at = _decode(text, at, position)
        values.append(value)


def _decode(text: str, at: int, position: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise Malformed(f"bad JSON: {error.msg}", position + error.pos) from error
    except Malformed as error:
        raise Malformed(error.reason, position + at) from error
    except (ValueError, RecursionError) as error:
        raise Malformed(f"bad JSON: {error}", position + at) from error


def _check_bounds(text: str, position: int) -> None:
    if len(text) > MAX_JSON_CHARS:
        raise Malformed(f"JSON is longer than {MAX_JSON_CHARS} characters", position + MAX_JSON_CHARS)
    surrogate = _SURROGATE.search(text)
    if surrogate:
        raise Malformed("text holds half a surrogate pair", position + surrogate.start())
    depth = 0
    for match in _STRUCTURE.finditer(text):
        token = match.group()[0]
        depth += token in "[{"
        depth -= token in "]}"
        if depth > MAX_DEPTH:
            raise Malformed(f"JSON is nested deeper than {MAX_DEPTH} levels", position + match.start())


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise Malformed(f"key '{key[:40]}' appears twice")
        found[key] = value
    return found


def _number(kind: type) -> object:
    def read(text: str) -> object:
        if len(text) > MAX_NUMBER_CHARS:
            raise Malformed(f"number has more than {MAX_NUMBER_CHARS} characters")
        value = kind(text)
        if value in (float("inf"), float("-inf")):
            raise Malformed("number is too large")
        return value

    return read


def _refuse_constant(text: str) -> object:
    raise Malformed(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_number(int), parse_float=_number(float), parse_constant=_refuse_constant
)


def begins_call(text: str, keys: str, first_keys: str) -> bool:
    """Whether a text is meant as JSON calls: it begins as an object, or a list of such, with a key that calls have.

    Args:
        text: a message.
        keys: without one of them there is no call, wherever they stand; divided by ``|``.
        first_keys: common keys that tell a call only where the object begins with one; divided by ``|``.

    >>> begins_call('[{"index": 0, "function"', "function", "id"), begins_call('{"id": 1', "function", "id")
    (False, True)
    >>> begins_call('{"port": 80, "function": {}}', "function", "id"), begins_call("[Note] none", "function", "id")
    (True, False)
    """
    if _ONLY_BRACKETS.match(text):
        return True
    begun = _OBJECT.match(text)
    return begun is not None and (
        re.compile(rf"(?:{first_keys})[\"']").match(text, begun.end()) is not None
        or re.compile(rf"[\"'](?:{keys})[\"']\s*:").search(text, begun.end() - 1) is not None
    )


def call_of(value: object, position: int, arguments_key: str = "arguments") -> Call:
    """One call from ``{"name": ..., "arguments": {...}}``; anything else is refused.

    Raises:
        Malformed: no usable name, no arguments object, or further keys.
    """
    if not isinstance(value, Mapping):
        raise Malformed("a call must be a JSON object", position)
    extra = [key for key in value if key not in ("name", arguments_key)]
    if extra:
        raise Malformed(f"a call has only 'name' and '{arguments_key}', not '{extra[0][:40]}'", position)
    name = value.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Malformed("a call needs a function name", position)
    arguments = value.get(arguments_key)
    if not isinstance(arguments, Mapping):
        raise Malformed(f"a call needs '{arguments_key}' as a JSON object", position)
    return checked(name, arguments, position)


def checked(name: str, arguments: Mapping[str, object], position: int) -> Call:
    """The call in canonical form.

    Raises:
        Malformed: an escape spelled half a surrogate pair, which no event could carry.
    """
    call = make_call(name, arguments)
    if _SURROGATE.search(call.arguments_json):
        raise Malformed("an escape spells half a surrogate pair", position)
    return call
