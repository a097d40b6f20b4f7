"""Listening in: chosen records of any log, from a position or a moment, once or as they come.

A tap reads without a consumer group and writes nothing. Conditions are compared as values, never run as code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum
from types import UnionType
from typing import Protocol, get_args, get_origin, get_type_hints

from schemas import BY_NAME, Event, Undecodable, events
from streams.archive.scan import Scanned, plain_values, scanned
from streams.log.port import Record

POLL_S = 0.25
TYPE = "event"
"""The path that stands for an event's type."""
OPERATORS = ("!=", "<=", ">=", "=", "<", ">", "~")
PATTERN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class BadSelection(ValueError):
    """A selection that means nothing; the text says which part and what is possible."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``path operator value``: one comparison of a field.

    Attributes:
        path: field name, dots for fields of records (``evidence.mean``) and keys of maps (``metrics.loss``).
        operator: ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, or ``~`` for "contains".
        value: a JSON value, or a text.
    """

    path: str
    operator: str
    value: object

    def holds(self, name: str, event: Event | Mapping[str, object]) -> bool:
        """Whether an event has the field and it compares; values of different kinds never do.

        Args:
            name: the event's type.
            event: the event, or its plain values.
        """
        found, value = (True, name) if self.path == TYPE else _dig(event, self.path.split("."))
        return found and _compare(value, self.operator, self.value)


def parse_condition(text: str) -> Condition:
    """A condition from its text.

    >>> parse_condition("evidence.mean >= 0.5")
    Condition(path='evidence.mean', operator='>=', value=0.5)

    Raises:
        BadSelection: it is no comparison.
    """
    match = PATTERN.fullmatch(text)
    if match is None:
        raise BadSelection(f"--where {text!r}: expected field, one of {' '.join(OPERATORS)}, and a value")
    path, operator, value = match.groups()
    try:
        return Condition(path, operator, json.loads(value))
    except ValueError:
        return Condition(path, operator, value.strip("'\""))


def _dig(value: object, path: Sequence[str]) -> tuple[bool, object]:
    for index, name in enumerate(path):
        if isinstance(value, Mapping):
            rest = ".".join(path[index:])
            if rest in value:
                return True, value[rest]
            if name not in value:
                return False, None
            value = value[name]
            continue
        if name not in getattr(value, "__slots__", ()):
            return False, None
        value = getattr(value, name)
    return True, value


def _compare(value: object, operator: str, wanted: object) -> bool:
    value = value.value if isinstance(value, Enum) else value
    if operator == "~":
        return str(wanted) in (value if isinstance(value, tuple | list) else str(value))
    if operator in ("=", "!="):
        return (value == wanted or str(value) == str(wanted)) is (operator == "=")
    numbers = (int, float)
    both = (
        isinstance(value, numbers) and isinstance(wanted, numbers) or isinstance(value, str) and isinstance(wanted, str)
    )
    if not both:
        return False
    return {"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}[operator]


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

    def in_time(self, record: Record) -> bool:
        """Whether a record's time is wanted."""
        since, until = self.since_ms, self.until_ms
        return (since is None or record.timestamp_ms >= since) and (until is None or record.timestamp_ms < until)

    def wants(self, name: str, run_id: str, event: Event | Mapping[str, object]) -> bool:
        """Whether an event is wanted, whole or as plain values."""
        return (
            name in self.event_types
            and self.run_id in ("", run_id)
            and all(condition.holds(name, event) for condition in self.conditions)
        )

    def keeps(self, item: Scanned) -> bool:
        """Whether what a record says is wanted. One that is no event is kept: nobody can say more of it."""
        return item.event is None or self.wants(type(item.event).__name__, item.event.run_id, item.event)


class Tail(Protocol):
    """Where a following tap reads: ``streams.log.reader.LogTail``."""

    def read(self, timeout_s: float) -> list[Record]:
        """What was added since the last call; ``[]`` when nothing came in time."""


def chosen(records: Iterable[Record], selection: Selection) -> Iterator[Scanned]:
    """The wanted ones of some records, in their order."""
    return filter(selection.keeps, map(scanned, filter(selection.in_time, records)))


def chosen_values(
    records: Iterable[Record], selection: Selection, on_fault: Callable[[Record, Undecodable], None]
) -> Iterator[tuple[Record, Mapping[str, object]]]:
    """The wanted events of some records as plain values: the bulk way of :func:`chosen`.

    Args:
        records: any.
        selection: what is wanted.
        on_fault: told of each record that is no event.
    """
    for record in filter(selection.in_time, records):
        try:
            name, values = plain_values(record)
        except Undecodable as error:
            on_fault(record, error)
            continue
        if selection.wants(name, values["run_id"], values):
            yield record, values


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


def subject(event: Event) -> str:
    """What an event is about, in one short text: the identity fields of its type."""
    named = (
        (path.rpartition(".")[2], _dig(event, path.split("."))[1]) for path in BY_NAME[type(event).__name__].identity
    )
    return " ".join(f"{name}={value}" for name, value in named)
