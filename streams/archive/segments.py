"""The log as files: Avro object container segments, one folder a topic partition, offsets kept.

Layout: ``<root>/<topic>/<partition>/<first offset, 20 digits>.avro``; each datum is one record with offset, time,
key, value and headers. A segment is closed when it is large; a torn tail (a crash while writing) is cut on open; anything
else that is no block is damage and is refused, never cut and never passed over.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import fastavro

from schemas import Event
from schemas.codec import portable
from streams.archive.blocks import (
    BROKEN,
    HEADER_BYTES,
    LONGEST_HEADER_BYTES,
    RECORD_SCHEMA,
    block_of,
    fresh_header,
    header_of,
    spans_behind,
)
from streams.log.port import Cursor, LogGap, Place, Record, as_record, now_ms

SEGMENT_BYTES = 64 * 1024 * 1024
SYNC_BYTES = 256 * 1024


class SegmentBlock(NamedTuple):
    """One block of a segment: where it ends, its bytes on disk, the offset behind it, and its data."""

    end: int
    num_bytes: int
    next_offset: int
    data: list[dict]


def segments(folder: Path) -> list[Path]:
    """Segment files of one partition in offset order."""
    return sorted(folder.glob("*.avro"))


def blocks_of(path: Path, from_offset: int = 0, known: tuple[int, int] | None = None) -> Iterator[SegmentBlock]:
    """Blocks of a segment in order; those before an offset are not unpacked, half a block at the end is left out.

    Args:
        path: the segment.
        from_offset: first offset that is wanted.
        known: end of a block that was read before, and the offset behind it: what lies up to there is not read again.

    Raises:
        LogGap: a block is damaged; the text names segment, bytes and offsets.
    """
    end, next_offset = known or (0, int(path.stem))
    with path.open("rb") as file:
        try:
            head = file.read(LONGEST_HEADER_BYTES)
            if (header := header_of(head)) is None:
                raise ValueError("no header of a segment")
            skipped = max(0, end - header[1])
            file.seek(end if skipped else 0)
            stream = io.BytesIO(head[: header[1]] + file.read()) if skipped else file
            reader = fastavro.block_reader(stream)
            end = end or stream.tell()
            for block in reader:
                if block.num_records < 1:
                    raise ValueError("a block of no records")
                behind = next_offset + block.num_records
                data = _data_of(block, next_offset) if behind > from_offset else []
                end, next_offset = skipped + block.offset + block.size, behind
                yield SegmentBlock(end, block.size, behind, data)
        except BROKEN:
            refuse_damage(path, end, next_offset)


def _data_of(block: fastavro.reader.block_reader, first_offset: int) -> list[dict]:
    """The data of a block.

    Raises:
        ValueError: they do not fill the block, or their offsets do not follow.
    """
    data = list(block)
    if block.bytes_.read(1) or [datum["offset"] for datum in data] != list(
        range(first_offset, first_offset + len(data))
    ):
        raise ValueError("other records than the block was made of")
    return data


def refuse_damage(path: Path, end: int, next_offset: int) -> None:
    """Tell half a block at the end of a segment, which a crash or a writer at work leaves, from damage.

    Args:
        path: the segment.
        end: where its last whole block ends; 0 if its header could not be read.
        next_offset: of the record that should come next.

    Raises:
        LogGap: it is damage.
    """
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER_BYTES)
        file.seek(end)
        tail = file.read()
    header = header_of(head)
    if header is None:
        if len(head) < HEADER_BYTES:
            return
        spans, start = [], 0
    else:
        start = max(end, header[1])
        spans = spans_behind(tail, header[0], start - end)
        if not spans or spans[0].is_torn or spans[0].first_offset == next_offset:
            return
    behind = [span.first_offset - 1 for span in spans if span.first_offset > next_offset]
    behind += [int(after.stem) - 1 for after in segments(path.parent) if after > path]
    to = f"to {behind[0]}" if behind else "and behind"
    last = end + (spans[0].end if spans else HEADER_BYTES) - 1
    raise LogGap(
        f"{path.parent.parent.name}-{path.parent.name} offsets {next_offset} {to}: segment {path} is damaged at bytes "
        f"{start} to {last}; restore the file"
    )


def sound_length(path: Path) -> tuple[int, int]:
    """Bytes of whole blocks in a segment and the offset behind its last whole record (or its first offset).

    A file that is shorter than a header has length 0.

    Raises:
        LogGap: the segment is damaged.
    """
    with path.open("rb") as file:
        header = header_of(file.read(LONGEST_HEADER_BYTES))
    length, next_offset = header[1] if header else 0, int(path.stem)
    for block in blocks_of(path):
        length, next_offset = block.end, block.next_offset
    return length, next_offset


def read_segment(path: Path, place: Place, from_offset: int) -> Iterator[Record]:
    """Records of a segment at and behind an offset; a torn tail ends it quietly, damage is a LogGap."""
    for block in blocks_of(path, from_offset):
        yield from (record_of(datum, place) for datum in block.data if datum["offset"] >= from_offset)


def record_of(datum: dict, place: Place) -> Record:
    """The record that a datum of a segment stands for."""
    headers = tuple([(header["name"], header["value"]) for header in datum["headers"]]) if datum["headers"] else ()
    return Record(*place, datum["offset"], datum["timestamp_ms"], datum["key"], datum["value"], headers)


class _Lane:
    """The open end of one partition."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file: io.BufferedRandom | None = None
        self._sync_marker = b""
        self._records, self._num_records = io.BytesIO(), 0
        self.next_offset = 0
        for path in reversed(segments(folder)):
            length, self.next_offset = sound_length(path)
            if length:
                os.truncate(path, length)
                break
            path.unlink()

    def write(self, record: Record) -> None:
        if record.offset != self.next_offset:
            raise LogGap(f"archive {self._folder}: offset {record.offset} does not follow {self.next_offset - 1}")
        if self._file is None or self._file.tell() > self._segment_bytes:
            self._open()
        fastavro.schemaless_writer(
            self._records,
            RECORD_SCHEMA,
            {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": record.key,
                "value": portable(record.value) if record.value is not None else None,
                "headers": [{"name": name, "value": value} for name, value in record.headers],
            },
        )
        self._num_records += 1
        self.next_offset = record.offset + 1
        if self._records.tell() >= SYNC_BYTES:
            self._write_block()

    def _open(self) -> None:
        self.close()
        last = segments(self._folder)[-1:]
        fresh = not last or last[0].stat().st_size > self._segment_bytes
        path = self._folder / f"{self.next_offset:020d}.avro" if fresh else last[0]
        self._file = path.open("a+b")
        if fresh:
            self._file.write(fresh_header())
        self._file.seek(0)
        self._sync_marker, _ = header_of(self._file.read(LONGEST_HEADER_BYTES))
        self._file.seek(0, os.SEEK_END)

    def _write_block(self) -> None:
        if self._num_records:
            self._file.write(block_of(self._records.getvalue(), self._num_records, self._sync_marker))
            self._records, self._num_records = io.BytesIO(), 0

    def sync(self) -> None:
        if self._file is not None:
            self._write_block()
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self.sync()
            self._file.close()
        self._file = None


class ArchiveLog:
    """A log in a folder. One writer at a time; readers may follow a writer in another process.

    Args:
        root: the archive folder.
        partitions: number of partitions by topic; taken from the folder if not given.
        clock: stamps events, milliseconds since 1970.
        segment_bytes: a segment larger than this is closed.
    """

    def __init__(
        self,
        root: Path,
        partitions: Mapping[str, int] | None = None,
        clock: Callable[[], int] = now_ms,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._root = root
        self._partitions = dict(partitions) if partitions is not None else partitions_in(root)
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._lanes: dict[Place, _Lane] = {}
        self._loaded: dict[Place, tuple[int, Iterator[Record]]] = {}
        self._walked: dict[Place, tuple[Path, int, int]] = {}

    @property
    def root(self) -> Path:
        """The archive folder."""
        return self._root

    @property
    def partitions(self) -> Mapping[str, int]:
        """Number of partitions by topic."""
        return self._partitions

    def folder(self, place: Place) -> Path:
        """Where one partition lies."""
        return self._root / place.topic / str(place.partition)

    def _lane(self, place: Place) -> _Lane:
        if place not in self._lanes:
            self._lanes[place] = _Lane(self.folder(place), self._segment_bytes)
        return self._lanes[place]

    def append(self, events: Sequence[Event]) -> None:
        for record in [as_record(event, self._partitions, self._clock) for event in events]:
            self._lane(record.place).write(record._replace(offset=self._lane(record.place).next_offset))
        self.sync()

    def append_raw(self, record: Record) -> None:
        self._lane(record.place).write(record._replace(offset=self._lane(record.place).next_offset))
        self.sync()

    def mirror(self, records: Iterable[Record]) -> None:
        """Write records with the offsets they have elsewhere; call :meth:`sync` to make them durable.

        Raises:
            LogGap: an offset does not follow the last one.
        """
        for record in records:
            self._lane(record.place).write(record)

    def sync(self) -> None:
        """Flush and fsync every partition that was written."""
        for lane in self._lanes.values():
            lane.sync()

    def next_offsets(self) -> dict[Place, int]:
        """Where the next record of each partition belongs; cuts torn tails."""
        places = [Place(topic, number) for topic, count in self._partitions.items() for number in range(count)]
        return {place: self._lane(place).next_offset for place in places}

    def read(self, cursor: Cursor, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._found(cursor, max_records)
            if found or time.monotonic() >= deadline:
                return found
            time.sleep(min(0.02, timeout_s))

    def _found(self, cursor: Cursor, max_records: int) -> list[Record]:
        """What is there now: an equal share of each place first, so that none runs ahead, then what still fits."""
        found: list[Record] = []
        reached = dict(sorted(cursor.items()))
        for most in (max_records // max(1, len(reached)), max_records):
            for place, offset in reached.items():
                taken = self._take(place, offset, min(most, max_records - len(found)))
                reached[place] += len(taken)
                found += taken
        return found

    def _take(self, place: Place, offset: int, most: int) -> list[Record]:
        taken: list[Record] = []
        while len(taken) < most:
            position, records = self._loaded.get(place, (-1, iter(())))
            record = next(records, None) if position == offset else None
            if record is None:
                records = self._records_from(place, offset)
                record = next(records, None)
            if record is None:
                self._loaded.pop(place, None)
                break
            if record.offset != offset:
                where = f"{place.topic}-{place.partition}: offsets {offset} to {record.offset - 1}"
                raise LogGap(f"{where} are missing in archive {self._root}")
            taken.append(record)
            offset += 1
            self._loaded[place] = (offset, records)
        return taken

    def _records_from(self, place: Place, offset: int) -> Iterator[Record]:
        """Records of the segment that holds an offset, or of the next one, which shows a hole."""
        files = segments(self.folder(place))
        behind = [path for path in files if int(path.stem) > offset]
        holding = files[: len(files) - len(behind)][-1:]
        walked, end, next_offset = self._walked.get(place, (None, 0, 0))
        for path in holding + behind[:1]:
            known = (end, next_offset) if path == walked and next_offset <= offset else None
            for block in blocks_of(path, offset, known):
                yield from (record_of(datum, place) for datum in block.data if datum["offset"] >= offset)
                self._walked[place] = (path, block.end, block.next_offset)

    def end_offsets(self, topics: Iterable[str]) -> dict[Place, int]:
        ends = {}
        for topic in topics:
            for number in range(self._partitions.get(topic, 0)):
                place = Place(topic, number)
                files = segments(self.folder(place))
                ends[place] = sound_length(files[-1])[1] if files else 0
        return ends

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes, self._loaded, self._walked = {}, {}, {}


def partitions_in(root: Path) -> dict[str, int]:
    """Number of partitions by topic, from the folders of an archive.

    Raises:
        FileNotFoundError: there is no archive.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no archive at {root}")
    return {
        topic.name: sum(part.is_dir() for part in topic.iterdir()) for topic in sorted(root.iterdir()) if topic.is_dir()
    }
