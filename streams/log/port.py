"""The log port: append events, read records from a cursor, ask for the end.

Three implementations keep one promise, checked by one contract suite: :class:`MemoryLog` here,
``streams.log.kafka.KafkaLog`` and ``streams.archive.segments.ArchiveLog``. A record's place is (topic, partition,
offset); topics are named without the configured prefix; offsets of a partition start at 0 and have no holes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from aiokafka.partitioner import murmur2

from schemas import BY_NAME, SPREAD_TOPICS, Event, encode

MAX_TOPIC_BYTES = 8_388_608
"""Most bytes of a record that a topic takes."""
MAX_RECORD_BYTES = 8_000_000
"""Most bytes of a record of ours, key, value and frame together; what others wrote may be larger and is restored as it is."""


class Place(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One record as it lies in the log; times in milliseconds since 1970 UTC."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def place(self) -> Place:
        """The partition this record lies in."""
        return Place(self.topic, self.partition)


Cursor = Mapping[Place, int]
"""Next offset to read, by place."""


class LogUnavailable(ConnectionError):
    """The log did not answer in time; the text names the log, what was asked and what to do."""


class LogGap(LookupError):
    """A record that should be there is not; the text names the exact range."""


class Log(Protocol):
    """What every log can do."""

    def append(self, events: Sequence[Event]) -> None:
        """Write events in order and return when all are acknowledged.

        Raises:
            LogUnavailable: not acknowledged in time; writing the same events again is harmless.
            schemas.InvalidEvent: an event does not fit its schema; nothing was written.
        """
        ...

    def append_raw(self, record: Record) -> None:
        """Write one record as it is, to its topic and partition; its offset and time are given by the log."""
        ...

    def read(self, cursor: Cursor, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        """Records at and behind the cursor, in offset order within a place; ``[]`` when none came in time.

        Raises:
            LogUnavailable: the log cannot be reached.
            LogGap: the cursor points before the first record that is still there.
        """
        ...

    def end_offsets(self, topics: Iterable[str]) -> dict[Place, int]:
        """The offset behind the last record, for every partition of the topics."""
        ...

    def close(self) -> None:
        """Release connections and files."""
        ...


def partition_of(key: bytes, num_partitions: int) -> int:
    """The partition of a key: Kafka's murmur2 rule, the same for every writer."""
    return (murmur2(key) & 0x7FFFFFFF) % num_partitions


def now_ms() -> int:
    """Wall clock in milliseconds; only stamps ``occurred_at_ms``."""
    return int(time.time() * 1000)


def as_record(event: Event, partitions: Mapping[str, int], clock: Callable[[], int] = now_ms) -> Record:
    """The record of an event, ready to append: place and key from the catalogue, time stamped if it has none.

    Args:
        event: the event.
        partitions: number of partitions by topic.
        clock: milliseconds since 1970.
    """
    entry = BY_NAME[type(event).__name__]
    stamped = event if event.occurred_at_ms else replace(event, occurred_at_ms=clock())
    key = getattr(event, entry.key).encode()
    partition = partition_of(key, partitions[entry.topic])
    return Record(entry.topic, partition, -1, stamped.occurred_at_ms, key, encode(stamped))


def beginning(topics: Iterable[str], partitions: Mapping[str, int]) -> dict[Place, int]:
    """A cursor at offset 0 of every partition of the topics."""
    return {Place(topic, number): 0 for topic in topics for number in range(partitions[topic])}


def partition_counts(topics: Iterable[str], num_decision: int, num_spread: int) -> dict[str, int]:
    """Partitions by topic: decision topics share one count, spread topics another."""
    return {topic: num_spread if topic in SPREAD_TOPICS else num_decision for topic in topics}


def advanced(cursor: Cursor, records: Iterable[Record]) -> dict[Place, int]:
    """The cursor behind the given records."""
    ahead = dict(cursor)
    for record in records:
        ahead[record.place] = max(ahead.get(record.place, 0), record.offset + 1)
    return ahead


class MemoryLog:
    """A log in this process, for tests and for folding without a broker. Thread-safe."""

    def __init__(self, partitions: Mapping[str, int], clock: Callable[[], int] = now_ms) -> None:
        self._partitions = dict(partitions)
        self._clock = clock
        self._records: dict[Place, list[Record]] = {place: [] for place in beginning(partitions, partitions)}
        self._grown = threading.Condition()

    def append(self, events: Sequence[Event]) -> None:
        for record in [as_record(event, self._partitions, self._clock) for event in events]:
            self.append_raw(record)

    def append_raw(self, record: Record) -> None:
        with self._grown:
            lane = self._records[record.place]
            lane.append(record._replace(offset=len(lane)))
            self._grown.notify_all()

    def read(self, cursor: Cursor, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        with self._grown:
            self._grown.wait_for(lambda: any(len(self._records[p]) > o for p, o in cursor.items()), timeout_s)
            found: list[Record] = []
            for place, offset in sorted(cursor.items()):
                found += self._records[place][offset : offset + max_records - len(found)]
            return found

    def end_offsets(self, topics: Iterable[str]) -> dict[Place, int]:
        wanted = set(topics)
        return {place: len(lane) for place, lane in sorted(self._records.items()) if place.topic in wanted}

    def close(self) -> None:
        pass
