"""Reads a log from its beginning to the end it has now, without writing anything, anywhere.

A reader that must not disturb the run reads here: a record that is no event is handed over as such and never becomes
a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas import BY_NAME, Event, Undecodable, as_record
from schemas.plain_records import plain_record
from streams.archive.segments import blocks_of, partitions_in, record_of, segments
from streams.log.port import Log, LogGap, LogUnavailable, Place, Record, advanced
from streams.log.reader import event_of

SILENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Scanned:
    """A record and the event in it, or why there is none."""

    record: Record
    event: Event | None
    error: Undecodable | None = None

    @property
    def where(self) -> str:
        """topic-partition@offset."""
        return f"{self.record.topic}-{self.record.partition}@{self.record.offset}"


def scanned(record: Record) -> Scanned:
    """What a record says."""
    try:
        return Scanned(record, event_of(record))
    except Undecodable as error:
        return Scanned(record, None, error)


def plain_values(record: Record) -> tuple[str, dict]:
    """Event type and plain field values of a record; the bulk way of :func:`scanned`.

    Raises:
        schemas.Undecodable: it is no event, or on the wrong topic.
    """
    name, values = plain_record(record.value) if record.value is not None else ("", {})
    if name and BY_NAME[name].topic == record.topic:
        return name, values
    event = event_of(record)
    return type(event).__name__, as_record(event)


def places_in(root: Path, topics: Iterable[str]) -> list[Place]:
    """Partitions of an archive that hold the given topics, in topic order."""
    partitions = partitions_in(root)
    return [Place(topic, number) for topic in topics for number in range(partitions.get(topic, 0))]


def archive_bytes(root: Path, topics: Iterable[str]) -> int:
    """Size on disk of the given topics: the total of what :func:`scan_archive` reports as it goes."""
    files = (path for place in places_in(root, topics) for path in segments(root / place.topic / str(place.partition)))
    return sum(path.stat().st_size for path in files)


def scan_archive(
    root: Path, topics: Iterable[str], on_bytes: Callable[[int], None] = lambda _: None
) -> Iterator[Record]:
    """Every record of some topics, partition by partition in offset order; a torn tail ends its partition quietly.

    Args:
        root: the archive folder; another process may be writing it.
        topics: topic names.
        on_bytes: told how many bytes on disk were read since the last call.

    Raises:
        LogGap: offsets are missing or a block is damaged; the text names them.
        FileNotFoundError: there is no archive.
    """
    for place in places_in(root, topics):
        expected = 0
        for path in segments(root / place.topic / str(place.partition)):
            if int(path.stem) != expected:
                raise LogGap(f"{place.topic}-{place.partition}: offsets {expected} to {int(path.stem) - 1} are missing")
            for block in blocks_of(path):
                yield from (record_of(datum, place) for datum in block.data)
                on_bytes(block.num_bytes)
                expected = block.next_offset


def scan_log(log: Log, topics: Iterable[str]) -> Iterator[Record]:
    """Every record of some topics up to the end they have now, from any log.

    Raises:
        LogUnavailable: nothing came for half a minute although the end was not reached.
    """
    ends = {place: end for place, end in log.end_offsets(topics).items() if end}
    cursor = dict.fromkeys(ends, 0)
    while any(offset < ends[place] for place, offset in cursor.items()):
        records = log.read(cursor, timeout_s=SILENCE_S)
        if not records:
            raise LogUnavailable(f"no record for {SILENCE_S:.0f} s, still behind: read {cursor} of {ends}")
        cursor = advanced(cursor, records)
        yield from (record for record in records if record.offset < ends[record.place])
