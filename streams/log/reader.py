"""Follows topics of one run: decoded events in log order, each once, broken records dead-lettered.

This is the one way in which a process hears events. A record that cannot be decoded, or that lies on a topic
where its type does not belong, is written to ``dead-letters``, and reading goes on.
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


class EventReader:
    """Events of one run from some topics.

    Args:
        log: where to read, and where dead letters go.
        topics: topic names without prefix.
        partitions: number of partitions by topic.
        run_id: only events of this run are returned; ``None`` returns all.
        consumer: name under which dead letters are written.
        cursor: where to start; the beginning if not given.
    """

    def __init__(
        self,
        log: Log,
        topics: Iterable[str],
        partitions: Mapping[str, int],
        run_id: str | None,
        consumer: str,
        cursor: Mapping[Place, int] | None = None,
    ) -> None:
        self._log = log
        self._topics = tuple(topics)
        self._run_id = run_id
        self._consumer = consumer
        self._seen: set[str] = set()
        self.cursor: dict[Place, int] = {**beginning(self._topics, partitions), **(cursor or {})}
        self.num_duplicates = 0
        self.num_dead_letters = 0

    def poll(self, timeout_s: float) -> list[Event]:
        """The next events in order; ``[]`` when none came in time.

        Raises:
            LogUnavailable: the log cannot be reached.
        """
        records = self._log.read(self.cursor, timeout_s=timeout_s)
        self.cursor = advanced(self.cursor, records)
        return list(self._events(records))

    def catch_up(self, deadline_s: float = 60.0) -> list[Event]:
        """Every event up to the end that the log has now.

        Raises:
            LogUnavailable: the end was not reached within the deadline.
        """
        ends = self._log.end_offsets(self._topics)
        give_up = time.monotonic() + deadline_s
        events: list[Event] = []
        while any(self.cursor[place] < end for place, end in ends.items()):
            before = self.cursor
            events += self.poll(0.5)
            if self.cursor == before and time.monotonic() > give_up:
                behind = {
                    f"{p.topic}-{p.partition}": f"{self.cursor[p]} of {end}"
                    for p, end in ends.items()
                    if self.cursor[p] < end
                }
                raise LogUnavailable(f"{self._consumer}: no progress for {deadline_s:.0f} s, still behind at {behind}")
        return events

    def _events(self, records: Iterable[Record]) -> Iterator[Event]:
        for record in records:
            try:
                event = event_of(record)
            except Undecodable as error:
                self.num_dead_letters += 1
                self._log.append([dead_letter(record, error, self._run_id or "", self._consumer)])
                continue
            if self._run_id is not None and event.run_id != self._run_id:
                continue
            if event.event_id in self._seen:
                self.num_duplicates += 1
                continue
            self._seen.add(event.event_id)
            yield event
