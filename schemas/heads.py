"""The part of a group event that the pool folds, read many times faster than the whole event. Pure.

An Avro body whose array items and lengths take one byte each is a regular language, so an expression made from the schema
checks the body to its last byte and finds the few fields that are wanted. A body that does not match (long texts, letters
beyond ASCII, another schema, damage) is decoded in full: both ways accept the same bytes and give the same values.
"""

from __future__ import annotations

import re
import struct
from functools import cache, lru_cache
from itertools import takewhile
from typing import NamedTuple

from schemas.codec import HEADER_BYTES, MAGIC, decode
from schemas.definitions import fingerprint_of, schema_of
from schemas.events import Event, RolloutGroupCompleted

GROUP = schema_of("RolloutGroupCompleted")
PREAMBLE = MAGIC + fingerprint_of(GROUP)
WANTED = ("event_id", "run_id", "task_id", "step", "num_rollouts", "rewards")
MOST = 63
"""Highest count that takes one byte."""
ID_LENGTH = 32
ONE_BYTE = rb"[\x00-\x7f]"
NUMBER = rb"[\x80-\xff]{0,7}+[\x00-\x7f]"


class GroupHead(NamedTuple):
    """What the pool reads of a RolloutGroupCompleted; ``data`` holds the rest."""

    event_id: str
    run_id: str
    task_id: str
    step: int
    num_rollouts: int
    rewards: tuple[float | None, ...]
    data: bytes

    @property
    def turn_verdicts(self) -> tuple[tuple[int, ...], ...]:
        """Per rollout, per turn; decoded when asked for."""
        return self.whole().turn_verdicts

    def whole(self) -> RolloutGroupCompleted:
        """The event itself."""
        return decode(self.data)


def head_of(data: bytes) -> Event | GroupHead:
    """The event in some bytes; of a group event only its head, where the short way is open.

    Raises:
        schemas.Undecodable: as :func:`schemas.decode`.
    """
    front = _front().match(data, HEADER_BYTES) if data.startswith(PREAMBLE) else None
    if front is not None:
        event_id, run_id, task_id, step, count = front.groups()
        num_rollouts = _number(count)
        arrays = _arrays(num_rollouts).fullmatch(data, front.end()) if 0 < num_rollouts <= MOST else None
        if arrays is not None:
            return GroupHead(
                event_id[1:].decode(),
                run_id[1:].decode(),
                task_id[1:].decode(),
                _number(step),
                num_rollouts,
                _rewards(arrays[1], num_rollouts),
                data,
            )
    return decode(data)


@lru_cache(maxsize=4096)
def _number(data: bytes) -> int:
    """A zigzag number of variable length."""
    value = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * at
    return value >> 1 ^ -(value & 1)


def _rewards(data: bytes, count: int) -> tuple[float | None, ...]:
    """The items of an array of numbers and nulls."""
    if len(data) == 9 * count:
        return _doubles(count).unpack(data)
    values, at = [], 0
    while at < len(data):
        values.append(struct.unpack_from("<d", data, at + 1)[0] if data[at] else None)
        at += 9 if data[at] else 1
    return tuple(values)


@cache
def _doubles(count: int) -> struct.Struct:
    return struct.Struct("<" + "xd" * count)


@cache
def _front() -> re.Pattern[bytes]:
    """Every field before the first array."""
    fields = takewhile(lambda field: not _is_array(field), GROUP["fields"])
    return re.compile(b"".join(_field(field, 0) for field in fields), re.DOTALL)


@cache
def _arrays(count: int) -> re.Pattern[bytes]:
    """The fields from the first array on, for arrays of ``count`` items."""
    fields = GROUP["fields"][len(list(takewhile(lambda field: not _is_array(field), GROUP["fields"]))) :]
    return re.compile(b"".join(_field(field, count) for field in fields), re.DOTALL)


def _is_array(field: dict) -> bool:
    return isinstance(field["type"], dict) and field["type"]["type"] == "array"


def _field(field: dict, count: int) -> bytes:
    """The expression of a field; items of a wanted array, or a wanted scalar, are a group."""
    wanted = field["name"] in WANTED
    if not _is_array(field):
        return b"(%s)" % _value(field["type"]) if wanted else _value(field["type"])
    items = b"(?:%s){%d}+" % (_item(field["type"]["items"]), count)
    return b"\\x%02x%s\\x00" % (2 * count, b"(%s)" % items if wanted else items)


def _value(kind: object) -> bytes:
    """The expression of a value.

    Raises:
        TypeError: no expression is known for such a type.
    """
    if kind in ("int", "long"):
        return NUMBER
    if kind == "string":
        return _counted(ONE_BYTE, b"")
    if kind == "double":
        return b".{8}"
    if kind == "null":
        return b""
    if isinstance(kind, list):
        return b"(?>%s)" % b"|".join(b"\\x%02x%s" % (2 * index, _value(branch)) for index, branch in enumerate(kind))
    if isinstance(kind, dict) and kind["type"] == "enum":
        return b"[%s]" % b"".join(b"\\x%02x" % (2 * index) for index in range(min(len(kind["symbols"]), MOST + 1)))
    if isinstance(kind, dict) and kind["type"] == "array":
        return _counted(_item(kind["items"]), b"\\x00")
    raise TypeError(f"no expression for Avro type {kind}")


def _item(kind: object) -> bytes:
    return ONE_BYTE if kind in ("int", "long") else _value(kind)


def _counted(item: bytes, end: bytes) -> bytes:
    """A count, so many items, and the end; just the zero count where there are none. Ids are long, so theirs is tried first."""
    counts = sorted(range(1, MOST + 1), key=lambda count: (count != ID_LENGTH, count))
    some = (b"\\x%02x(?:%s){%d}+%s" % (2 * count, item, count, end) for count in counts)
    return b"(?>\\x00|%s)" % b"|".join(some)
