"""Listening in: chosen records of any log, from a position or a moment, once or as they come.

A tap reads without a consumer group and writes nothing. Conditions are compared as values, never run as code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from types import UnionType
from typing import NamedTuple, Protocol, get_args, get_origin, get_type_hints

from schemas import BY_NAME, Undecodable, events
from streams.archive.scan import plain_values
from streams.log.port import Record

POLL_S = 0.25
TYPE = "event"
"""The path that stands for an event's type."""
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class BadSelection(ValueError):
    """A selection that means nothing; the text says which part and what is possible."""


class Tapped(NamedTuple):
    """A record and the event in it, or why there is none.

    Attributes:
        record: the record.
        event_type: its event's type; empty for none.
        values: field values of the event.
        error: what is wrong with the record.
    """

    record: Record
    event_type: str
    values: Mapping[str, object]
    error: Undecodable | None = None

    @property
    def where(self) -> str:
        """topic-partition@offset."""
        return f"{self.record.topic}-{self.record.partition}@{self.record.offset}"


def tapped(record: Record) -> Tapped:
    """What a record says."""
    try:
        return Tapped(record, *plain_values(record))
    except Undecodable as error:
        return Tapped(record, "", {}, error)


@dataclass(frozen=True, slots=True)
class Condition:
    """``path=value``.

    Attributes:
        path: field name, dots for fields of records (``evidence.zone``) and keys of maps (``metrics.loss``).
        value: what the field must be: its text, or a JSON value that equals it.
    """

    path: str
    value: str

    def holds(self, event_type: str, values: Mapping[str, object]) -> bool:
        """Whether an event has the field and it is so."""
        found, value = (True, event_type) if self.path == TYPE else _dig(values, self.path.split("."))
        return found and (str(value) == self.value or _is_json(value, self.value))


def _is_json(value: object, text: str) -> bool:
    try:
        return json.loads(text) == value
    except ValueError:
        return False


def parse_condition(text: str) -> Condition:
    """A condition from its text.

    >>> parse_condition("evidence.zone = boundary")
    Condition(path='evidence.zone', value='boundary')

    Raises:
        BadSelection: it is none.
    """
    path, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", path):
        raise BadSelection(f"--where {text!r}: expected field=value; `rods sql` answers everything else")
    return Condition(path, value.strip("'\""))


def _dig(value: object, path: Sequence[str]) -> tuple[bool, object]:
    for index, name in enumerate(path):
        if not isinstance(value, Mapping):
            return False, None
        if (rest := ".".join(path[index:])) in value:
            return True, value[rest]
        value = value.get(name)
    return False, None


def has_path(cls: type, path: Sequence[str]) -> bool:
    """Whether events of a type can have a field."""
    if path == [TYPE]:
        return True
    hints = get_type_hints(cls)
    if path[0] not in hints or path[0] == "AVRO_NAME":
        return False
    kinds = [hints[path[0]], *get_args(hints[path[0]])] if isinstance(hints[path[0]], UnionType) else [hints[path[0]]]
    if len(path) == 1 or any(get_origin(kind) is not None and issubclass(get_origin(kind), Mapping) for kind in kinds):
        return True
    return any(hasattr(kind, "AVRO_NAME") and has_path(kind, path[1:]) for kind in kinds)


def moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of ``now``, ``-10m`` (s, m, h, d before now) or an ISO date or time (UTC without a zone).

    Raises:
        BadSelection: none of them.
    """
    back = re.fullmatch(r"-(\d+(?:\.\d+)?)([smhd])", text)
    if text == "now" or back:
        return now_ms - (round(float(back[1]) * UNITS_MS[back[2]]) if back else 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadSelection(
            f"{text!r} is no moment: give now, -10m (s, m, h, d) or an ISO time such as 2026-01-31T12:00"
        ) from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are wanted.

    Attributes:
        event_types: names of event types.
        run_id: only this run; any if empty.
        since_ms, until_ms: record time from (included) and to (excluded), milliseconds since 1970; ``None`` for none.
        conditions: all must hold.
    """

    event_types: tuple[str, ...]
    run_id: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    conditions: tuple[Condition, ...] = ()

    def check(self) -> Selection:
        """The selection itself.

        Raises:
            BadSelection: no event type has a field that is compared.
        """
        for condition in self.conditions:
            if not any(has_path(getattr(events, name), condition.path.split(".")) for name in self.event_types):
                known = sorted({f.name for name in self.event_types for f in fields(getattr(events, name))})
                raise BadSelection(
                    f"--where {condition.path}: no such field in {', '.join(self.event_types)}; there are "
                    f"event, {', '.join(known)}"
                )
        return self

    def chosen(self, records: Iterable[Record]) -> Iterator[Tapped]:
        """The wanted ones of some records, in their order. One that is no event is kept: nobody can say more of it."""
        since, until = self.since_ms, self.until_ms
        for record in records:
            if (since is None or record.timestamp_ms >= since) and (until is None or record.timestamp_ms < until):
                item = tapped(record)
                if item.error is not None or self._wants(item):
                    yield item

    def _wants(self, item: Tapped) -> bool:
        return (
            item.event_type in self.event_types
            and self.run_id in ("", item.values["run_id"])
            and all(condition.holds(item.event_type, item.values) for condition in self.conditions)
        )


class Tail(Protocol):
    """Where a following tap reads: ``streams.log.reader.LogTail``."""

    def read(self, timeout_s: float) -> list[Record]:
        """What was added since the last call; ``[]`` when nothing came in time."""


def following(
    tail: Tail, stop: Callable[[], bool] = lambda: False, after_read: Callable[[], None] = lambda: None
) -> Iterator[Record]:
    """Everything a log has and everything that comes, until told to stop; what came before that is still given.

    Args:
        tail: where to read.
        stop: asked between reads.
        after_read: called after each read, a few times a second.

    Raises:
        LogUnavailable, LogGap: the log cannot be read.
    """
    is_last = False
    while not is_last:
        is_last = stop()
        yield from tail.read(POLL_S)
        after_read()


def subject(event_type: str, values: Mapping[str, object]) -> str:
    """What an event is about, in one short text: the identity fields of its type."""
    named = ((path.rpartition(".")[2], _dig(values, path.split("."))[1]) for path in BY_NAME[event_type].identity)
    return " ".join(f"{name}={value}" for name, value in named)
