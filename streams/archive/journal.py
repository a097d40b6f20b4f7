"""A write-ahead journal for a producer on a broker that forgets: nothing acknowledged is lost when it dies.

Every record is on disk before it is sent, and stays there until the archive holds it. After the broker's death the archive
is restored, and the journals fill in what had not been mirrored yet; event ids tell what is there already.
"""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from schemas import Event, Undecodable, decode
from streams.archive.segments import ArchiveLog, segments
from streams.log.kafka import KafkaLog
from streams.log.port import Cursor, LogGap, Place, Record, as_record, now_ms

LANE = Place("journal", 0)
ROTATE_BYTES = 16 * 1024 * 1024


def ends_file(archive_root: Path) -> Path:
    """Where the archiver says how far the archive is durable."""
    return archive_root.with_name(f"{archive_root.name}-ends.json")


def write_ends(archive_root: Path, ends: Mapping[Place, int]) -> None:
    """Say how far the archive is durable, in one piece, itself durable."""
    path = ends_file(archive_root)
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(json.dumps([[*place, end] for place, end in sorted(ends.items())]))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_ends(archive_root: Path) -> dict[Place, int]:
    """How far the archive is durable; nothing if the archiver has not said yet.

    Raises:
        LogGap: the file cannot be read.
    """
    path = ends_file(archive_root)
    text = path.read_text() if path.exists() else ""
    try:
        return {Place(topic, number): end for topic, number, end in json.loads(text or "[]")}
    except (ValueError, TypeError) as error:
        raise LogGap(f"{path} cannot be read ({error!r}); delete it: the archiver writes it again") from error


class Journal:
    """What one producer sends, on disk until the archive holds it.

    Args:
        folder: this producer's own folder.
        archive_root: the archive that takes the records over.
    """

    def __init__(self, folder: Path, archive_root: Path) -> None:
        self._archive_root = archive_root
        self._journal = ArchiveLog(folder, {LANE.topic: 1}, segment_bytes=ROTATE_BYTES)
        self._next = self._journal.next_offsets()[LANE]
        self._ends_of: dict[Path, dict[Place, int]] = {}

    def keep(self, records: Sequence[Record]) -> None:
        """Put records on disk; to be called before they are sent."""
        self._journal.mirror(journal_entry(record, self._next + index) for index, record in enumerate(records))
        self._journal.sync()
        self._next += len(records)

    def sent(self, places: Sequence[Place], offsets: Sequence[int]) -> None:
        """Where the records kept last lie in the log; segments whose records the archive all holds are dropped.

        The journal may have begun a new segment in the middle of them.
        """
        files = segments(self._journal.folder(LANE))
        firsts = [int(path.stem) for path in files]
        for kept, place, offset in zip(range(self._next - len(places), self._next), places, offsets, strict=True):
            ends = self._ends_of.setdefault(files[bisect_right(firsts, kept) - 1], {})
            ends[place] = max(ends.get(place, 0), offset + 1)
        if len(self._ends_of) > 1:
            self._drop_archived(files[-1])

    def _drop_archived(self, current: Path) -> None:
        """Delete older segments of this process whose every record the archive holds."""
        durable = read_ends(self._archive_root)
        for path in [path for path in self._ends_of if path != current]:
            if all(durable.get(place, 0) >= end for place, end in self._ends_of[path].items()):
                path.unlink()
                del self._ends_of[path]

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


class JournaledLog:
    """A Kafka log whose records are on disk first.

    Args:
        log: the log.
        journal: this producer's own journal.
        partitions: number of partitions by topic.
        clock: stamps events, milliseconds since 1970.
    """

    def __init__(
        self, log: KafkaLog, journal: Journal, partitions: Mapping[str, int], clock: Callable[[], int] = now_ms
    ) -> None:
        self._log = log
        self._journal = journal
        self._partitions = partitions
        self._clock = clock

    def append(self, events: Sequence[Event]) -> None:
        """Journal, sync, then send; see :class:`streams.log.port.Log`."""
        self.send([as_record(event, self._partitions, self._clock) for event in events])

    def append_raw(self, record: Record) -> None:
        """Journal and send one record as it is."""
        self.send([record])

    def send(self, records: Sequence[Record]) -> None:
        """Journal and send records as they are, in order."""
        if records:
            self._journal.keep(records)
            self._journal.sent([record.place for record in records], self._log.send(records))

    def read(self, cursor: Cursor, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        """See :class:`streams.log.port.Log`."""
        return self._log.read(cursor, max_records, timeout_s)

    def end_offsets(self, topics: Iterable[str]) -> dict[Place, int]:
        """See :class:`streams.log.port.Log`."""
        return self._log.end_offsets(topics)

    def close(self) -> None:
        """Close journal and log."""
        self._journal.close()
        self._log.close()


def journal_entry(record: Record, offset: int) -> Record:
    """A record as the journal keeps it: its own place in headers."""
    return record._replace(
        topic=LANE.topic,
        partition=LANE.partition,
        offset=offset,
        headers=(*record.headers, ("topic", record.topic.encode()), ("partition", str(record.partition).encode())),
    )


def original(entry: Record) -> Record:
    """The record behind a journal entry."""
    topic, partition = (value for _, value in entry.headers[-2:])
    return entry._replace(topic=topic.decode(), partition=int(partition), offset=-1, headers=entry.headers[:-2])


def journaled(folder: Path) -> Iterator[Record]:
    """Every record a producer journaled and still keeps, in order."""
    files = segments(folder / LANE.topic / str(LANE.partition))
    if not files:
        return
    journal = ArchiveLog(folder, {LANE.topic: 1})
    offset = int(files[0].stem)
    while entries := journal.read({LANE: offset}, timeout_s=0.0):
        yield from (original(entry) for entry in entries)
        offset = entries[-1].offset + 1


def unarchived(folder: Path, archive: ArchiveLog) -> list[Record]:
    """Records of a journal that an archive does not hold, each once, in order.

    Of two with one id the later counts: a process that died before it sent the first has said it anew, perhaps from later facts.
    """
    records = list(journaled(folder))
    present = archived_ids(archive, {record.place for record in records})
    missing = []
    for record in reversed(records):
        key = identity(record)
        if key not in present:
            present.add(key)
            missing.append(record)
    return missing[::-1]


def identity(record: Record) -> str | bytes | None:
    """What tells whether two records are the same fact: the event's id, or the bytes of what is no event."""
    try:
        return decode(record.value).event_id if record.value is not None else None
    except Undecodable:
        return record.value


def archived_ids(archive: ArchiveLog, places: Iterable[Place]) -> set[str | bytes | None]:
    """Identities of every record in some partitions of an archive."""
    found: set[str | bytes | None] = set()
    for place in sorted(places):
        offset = 0
        while records := archive.read({place: offset}, max_records=2000, timeout_s=0.0):
            found |= {identity(record) for record in records}
            offset = records[-1].offset + 1
    return found


def fill_in(journals: Path, archive: ArchiveLog, log: KafkaLog) -> int:
    """Send what the journals hold beyond the archive to a restored broker; returns how many records.

    Args:
        journals: folder with one journal folder a producer.
        archive: the archive that was restored.
        log: the restored broker.
    """
    count = 0
    for folder in sorted(path for path in journals.glob("*") if path.is_dir()):
        missing = unarchived(folder, archive)
        log.send(missing)
        count += len(missing)
    return count


def clear(journals: Path) -> None:
    """Forget all journals; right only when the archive has been drained to the log's end."""
    shutil.rmtree(journals, ignore_errors=True)
