"""Follows topics: decoded events in log order. This is the one way in which a process hears events.

A record that cannot be decoded, or that lies on a topic where its type does not belong, never ends the reading: who takes part
in a run writes it to ``dead-letters``, who only looks counts it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping

from schemas import BY_NAME, Event, Undecodable, UnknownSchema, decode, make
from schemas.events import DeadLettered, DeadLetterReason
from streams.log.port import MAX_RECORD_BYTES, Log, LogUnavailable, Place, Record, advanced, beginning

MAX_KEY_BYTES, MAX_DETAIL_CHARS = 65_536, 4_096
MAX_LETTER_BYTES = MAX_RECORD_BYTES - 2 * MAX_KEY_BYTES - 4 * MAX_DETAIL_CHARS
"""Most bytes of a value in a dead letter: what wraps a record needs room of its own."""


class WrongTopic(Undecodable):
    """A readable event on a topic where its type does not belong."""


def event_of(record: Record) -> Event:
    """The event in a record.

    Raises:
        schemas.Undecodable: not readable, unknown schema, or on the wrong topic.
    """
    if record.value is None:
        raise Undecodable("the record has no value")
    event = decode(record.value)
    entry = BY_NAME[type(event).__name__]
    if entry.topic != record.topic:
        raise WrongTopic(f"{entry.name} {event.event_id} belongs on topic {entry.topic!r}, not on {record.topic!r}")
    return event


def dead_letter(record: Record, error: Undecodable, run_id: str, consumer: str) -> DeadLettered:
    """The dead letter of a record that could not be used; of one that would not fit into a record of ours, its beginning.

    Args:
        record: the record.
        error: what is wrong with it.
        run_id: run of the consumer that met it.
        consumer: name of that consumer.
    """
    reason = DeadLetterReason.UNDECODABLE
    if isinstance(error, UnknownSchema):
        reason = DeadLetterReason.UNKNOWN_SCHEMA
    elif isinstance(error, WrongTopic):
        reason = DeadLetterReason.WRONG_TOPIC
    key, value, detail = record.key or b"", record.value or b"", str(error)[:MAX_DETAIL_CHARS]
    if len(value) > MAX_LETTER_BYTES or len(key) > MAX_KEY_BYTES:
        detail += (
            f"; the record is too large to be kept here whole ({len(key)} bytes of key, {len(value)} of value): "
            f"it lies at {record.topic}-{record.partition}@{record.offset}"
        )
    return make(
        DeadLettered,
        run_id,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=None if record.key is None else key[:MAX_KEY_BYTES],
        value=None if record.value is None else value[:MAX_LETTER_BYTES],
        reason=reason,
        detail=detail,
        consumer=consumer,
        num_value_bytes=len(value),
        value_sha256=hashlib.sha256(value).hexdigest(),
    )


class LogTail:
    """Records of some topics, from the beginning on, as they grow.

    Args:
        log: where to read.
        topics: topic names without prefix.
        partitions: number of partitions by topic.
        cursor: where to start; the beginning if not given.

    Attributes:
        cursor: the next offset of every partition.
    """

    def __init__(
        self, log: Log, topics: Iterable[str], partitions: Mapping[str, int], cursor: Mapping[Place, int] | None = None
    ) -> None:
        self._log, self.topics = log, tuple(topics)
        self.cursor: dict[Place, int] = {**beginning(self.topics, partitions), **(cursor or {})}

    def read(self, timeout_s: float) -> list[Record]:
        """What was added since the last call; ``[]`` when nothing came in time.

        Raises:
            LogUnavailable, LogGap: the log cannot be read.
        """
        records = self._log.read(self.cursor, timeout_s=timeout_s)
        self.cursor = advanced(self.cursor, records)
        return records


class EventReader(LogTail):
    """Events of some topics in log order, in one of two ways.

    A *consumer* takes part in a run: it hears each event once, and what it cannot read it writes to the dead letters. One
    without that name only looks: it writes nothing, counts what it cannot read, and hears repetitions too.

    Args:
        log, topics, partitions, cursor: see :class:`LogTail`.
        run_id: only events of this run are returned; ``None`` returns all.
        consumer: name under which dead letters are written; empty to only look.
        placed_topic: topic whose events' places are remembered.

    Attributes:
        num_duplicates: repetitions that were left out.
        num_broken: records that are no events.
        placed: event_id to (partition, offset), for events of ``placed_topic``.
    """

    def __init__(
        self,
        log: Log,
        topics: Iterable[str],
        partitions: Mapping[str, int],
        run_id: str | None = None,
        consumer: str = "",
        cursor: Mapping[Place, int] | None = None,
        placed_topic: str = "",
    ) -> None:
        super().__init__(log, topics, partitions, cursor)
        self._run_id, self._consumer, self._placed_topic = run_id, consumer, placed_topic
        self._seen: set[str] = set()
        self.num_duplicates = self.num_broken = 0
        self.placed: dict[str, tuple[int, int]] = {}

    def poll(self, timeout_s: float) -> list[Event]:
        """The next events in order; ``[]`` when none came in time. Raises as :meth:`read`."""
        return list(self._events(self.read(timeout_s)))

    def catch_up(self, deadline_s: float = 60.0) -> list[Event]:
        """Every event up to the end that the log has now.

        Raises:
            LogUnavailable: the end was not reached within the deadline.
        """
        ends = self._log.end_offsets(self.topics)
        give_up_s = time.monotonic() + deadline_s
        events: list[Event] = []
        while behind := {place: end for place, end in ends.items() if self.cursor[place] < end}:
            before = self.cursor
            events += self.poll(0.5)
            if self.cursor == before and time.monotonic() > give_up_s:
                at = {f"{p.topic}-{p.partition}": f"{self.cursor[p]} of {end}" for p, end in behind.items()}
                who = self._consumer or f"reader of {', '.join(self.topics)}"
                raise LogUnavailable(f"{who}: no progress for {deadline_s:.0f} s, still behind at {at}")
        return events

    def _events(self, records: Iterable[Record]) -> Iterator[Event]:
        for record in records:
            try:
                event = event_of(record)
            except Undecodable as error:
                self.num_broken += 1
                if self._consumer:
                    self._log.append([dead_letter(record, error, self._run_id or "", self._consumer)])
                continue
            if self._run_id not in (None, event.run_id):
                continue
            if self._consumer and event.event_id in self._seen:
                self.num_duplicates += 1
                continue
            if self._consumer:
                self._seen.add(event.event_id)
            if record.topic == self._placed_topic:
                self.placed.setdefault(event.event_id, (record.partition, record.offset))
            yield event
