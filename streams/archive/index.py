"""The manifest of an archive, and what is wrong with the files it lists.

``manifest.json`` holds one entry a segment: offsets, count, a digest of the bytes it had when the entry was written,
and a checksum of each block. Segments only grow, so a longer file is checked up to that length by digest and behind it
by its Avro blocks, up to the end that the archiver said is durable. Damage is named by topic, partition and offsets; an
archive with damage never gets a new manifest.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from streams.archive.blocks import Span, spans_of
from streams.archive.journal import read_ends
from streams.archive.segments import partitions_in, segments
from streams.log.port import LogGap, Place

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment as it was when it was last found whole.

    Attributes:
        topic, partition: where it belongs.
        segment: file name.
        first_offset, last_offset: of its records; an empty segment has ``last_offset = first_offset - 1``.
        count: records.
        bytes: length that the digests cover.
        sha256: digest of those bytes.
        blocks: (end, last offset, CRC-32) of the header and of each block, in file order.
        closed: whether a later segment follows.
    """

    topic: str
    partition: int
    segment: str
    first_offset: int
    last_offset: int
    count: int
    bytes: int
    sha256: str
    blocks: tuple[tuple[int, int, int], ...]
    closed: bool

    @property
    def place(self) -> Place:
        """The partition."""
        return Place(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault.

    Attributes:
        topic, partition: where.
        first_offset, last_offset: records that are lost or in doubt; -1 as last where nobody knows the end.
        what: the fault in words, with the file.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    what: str

    def __str__(self) -> str:
        to = f"to {self.last_offset}" if self.last_offset >= 0 else "and behind"
        return f"{self.topic}-{self.partition} offsets {self.first_offset} {to}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What an archive is worth.

    Attributes:
        entries: what was found whole.
        problems: faults, in order of place and offset.
        notes: what is no fault but worth knowing.
    """

    entries: tuple[SegmentEntry, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Everything as plain values."""
        return {
            "healthy": not self.problems,
            "segments": len(self.entries),
            "records": sum(e.count for e in self.entries),
            "bytes": sum(e.bytes for e in self.entries),
            "problems": [asdict(p) | {"text": str(p)} for p in self.problems],
            "notes": list(self.notes),
        }


def load_manifest(root: Path) -> tuple[SegmentEntry, ...]:
    """Entries of an archive's manifest; none if there is no manifest.

    Raises:
        LogGap: the manifest cannot be read.
    """
    try:
        tree = json.loads((root / MANIFEST).read_text())
        return tuple(
            SegmentEntry(**{**entry, "blocks": tuple(map(tuple, entry["blocks"]))}) for entry in tree["segments"]
        )
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise LogGap(
            f"{root / MANIFEST} cannot be read ({error!r}); restore it, or delete it to index the archive anew"
        ) from error


def write_manifest(root: Path, entries: Iterable[SegmentEntry]) -> None:
    """Write the manifest in one piece."""
    part = root / f"{MANIFEST}.part"
    lines = ",\n".join(json.dumps(asdict(entry)) for entry in entries)
    part.write_text(f'{{"version": {VERSION}, "segments": [\n{lines}\n]}}\n')
    part.replace(root / MANIFEST)


def verify(root: Path, trust_closed: bool = False) -> Verification:
    """Compare an archive with its manifest and its own structure; changes nothing.

    Args:
        root: the archive folder; another process may be writing it.
        trust_closed: take closed segments of the recorded length as whole without reading them.

    Raises:
        FileNotFoundError: there is no archive.
        LogGap: the manifest cannot be read.
    """
    durable = read_ends(root)
    known = {(entry.place, entry.segment): entry for entry in load_manifest(root)}
    found = {Place(topic, number) for topic, count in partitions_in(root).items() for number in range(count)}
    entries: list[SegmentEntry] = []
    problems: list[Problem] = []
    notes = [] if known else ["no manifest: segments that are missing at the end of a partition cannot be noticed"]
    for place in sorted(found | {place for place, _ in known} | {place for place, end in durable.items() if end}):
        mine = {name: entry for (at, name), entry in known.items() if at == place}
        lane = _LaneCheck(root / place.topic / str(place.partition), place, mine, trust_closed)
        lane.check(durable.get(place, 0))
        entries += lane.entries
        problems += lane.problems
        notes += lane.notes
    return Verification(tuple(entries), tuple(problems), tuple(notes))


def refresh(root: Path, trust_closed: bool = False) -> Verification:
    """Verify, and write the manifest if nothing is wrong; raises as :func:`verify`."""
    result = verify(root, trust_closed)
    if not result.problems:
        write_manifest(root, result.entries)
    return result


def require_whole(root: Path, trust_closed: bool = False) -> None:
    """Refuse a damaged archive: to be called before anything is concluded from it. Arguments as for :func:`verify`.

    Raises:
        LogGap: every fault is named by topic, partition, offsets and segment.
        FileNotFoundError: there is no archive.
    """
    problems = verify(root, trust_closed).problems
    if problems:
        raise LogGap(f"archive {root} is damaged:\n" + "\n".join(f"  {problem}" for problem in problems))


class _LaneCheck:
    """The check of one partition."""

    def __init__(self, folder: Path, place: Place, known: dict[str, SegmentEntry], trust_closed: bool) -> None:
        self._files = segments(folder)
        self._place = place
        self._known = known
        self._trust_closed = trust_closed
        self.entries: list[SegmentEntry] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def check(self, durable_end: int) -> None:
        """Each segment, and that they follow each other up to the recorded end and to the one that was durable."""
        expected = 0
        firsts = [int(path.stem) for path in self._files]
        for path, first, after in zip(self._files, firsts, [*firsts, None][1:], strict=True):
            if first > expected:
                self._hole(expected, first - 1)
            expected = self._segment(path, -1 if after is None else after - 1) + 1
        end = max([durable_end - 1, *(entry.last_offset for entry in self._known.values())])
        if end >= expected:
            self._hole(expected, end)

    def _problem(self, first: int, last: int, what: str) -> None:
        self.problems.append(Problem(*self._place, first, last, what))

    def _hole(self, first: int, last: int) -> None:
        """Offsets that no segment holds, named by the segments that held them."""
        names = {path.name for path in self._files}
        lost = [e for e in self._known.values() if e.segment not in names and first <= e.first_offset <= last]
        for entry in lost:
            self._problem(entry.first_offset, entry.last_offset, f"segment {entry.segment} is missing")
        if not lost:
            self._problem(first, last, "these offsets are missing")

    def _segment(self, path: Path, end: int) -> int:
        """Check one segment; returns the last offset that is accounted for.

        Args:
            path: the file.
            end: last offset before the next segment; -1 for the last segment.
        """
        entry = self._known.get(path.name)
        if self._trust_closed and entry and entry.closed and path.stat().st_size == entry.bytes:
            self.entries.append(entry)
            return entry.last_offset
        data = path.read_bytes()
        if entry is None:
            first = int(path.stem)
            return self._grow(
                path, data, SegmentEntry(*self._place, path.name, first, first - 1, 0, 0, "", (), False), end
            )
        if len(data) >= entry.bytes and hashlib.sha256(data[: entry.bytes]).hexdigest() == entry.sha256:
            return self._grow(path, data, entry, end)
        self._compare(path, data, entry)
        return entry.last_offset

    def _compare(self, path: Path, data: bytes, entry: SegmentEntry) -> None:
        """Name the blocks of a segment that are not what the manifest says."""
        start, next_offset, before = 0, entry.first_offset, len(self.problems)
        for end, last_offset, checksum in entry.blocks:
            if end > len(data):
                self._problem(
                    next_offset, entry.last_offset, f"segment {path.name} is cut at byte {len(data)} of {entry.bytes}"
                )
                return
            if zlib.crc32(data[start:end]) != checksum:
                what, last = ("", last_offset) if start else ("header of ", entry.last_offset)
                self._problem(next_offset, last, f"{what}segment {path.name} is damaged at bytes {start} to {end - 1}")
            start, next_offset = end, last_offset + 1
        if len(self.problems) == before:
            self._problem(entry.first_offset, entry.last_offset, f"segment {path.name} does not match its digest")

    def _grow(self, path: Path, data: bytes, entry: SegmentEntry, end: int) -> int:
        """Check what no digest covers by its blocks, and make the entry of the whole."""
        spans = spans_of(data, entry.bytes) if len(data) > entry.bytes else []
        if spans and spans[-1].is_torn and end < 0:
            torn = spans.pop()
            self.notes.append(
                f"{self._place.topic}-{self._place.partition}: the last {torn.end - torn.start} bytes are half a "
                "block, still being written or torn by a crash"
            )
        last = max([entry.last_offset, *(span.last_offset for span in spans)])
        if self._blame(path, spans, entry.last_offset + 1, end):
            return max(last, end)
        whole = data[: spans[-1].end if spans else entry.bytes]
        blocks = [
            *entry.blocks,
            *((span.end, span.last_offset, zlib.crc32(whole[span.start : span.end])) for span in spans),
        ]
        if spans and not entry.blocks:
            blocks = [(spans[0].start, entry.first_offset - 1, zlib.crc32(whole[: spans[0].start])), *blocks]
        self.entries.append(
            SegmentEntry(
                *self._place,
                path.name,
                entry.first_offset,
                last,
                last - entry.first_offset + 1,
                len(whole),
                hashlib.sha256(whole).hexdigest(),
                tuple(blocks),
                end >= 0,
            )
        )
        return last

    def _blame(self, path: Path, spans: list[Span], next_offset: int, end: int) -> bool:
        """Name the offsets of broken blocks; ``end`` is the last offset of the segment, -1 if unknown."""
        before = len(self.problems)
        for index, span in enumerate(spans):
            if span.is_whole and span.first_offset == next_offset:
                next_offset = span.last_offset + 1
                continue
            behind = next((s.first_offset - 1 for s in spans[index:] if s.is_whole), end)
            if behind >= next_offset or behind < 0:
                self._problem(
                    next_offset, behind, f"segment {path.name} is damaged at bytes {span.start} to {span.end - 1}"
                )
            if behind < 0:
                break
            next_offset = span.last_offset + 1 if span.is_whole else max(behind + 1, next_offset)
        return len(self.problems) > before
