"""The manifest of an archive: whole archives pass, each kind of damage is named with topic, partition, offsets."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from schemas import Event
from streams.archive.archiver import mirror, restore
from streams.archive.blocks import spans_of, varint
from streams.archive.index import MANIFEST, Problem, load_manifest, refresh, require_whole, verify
from streams.archive.journal import write_ends
from streams.archive.segments import ArchiveLog, segments
from streams.log.port import LogGap, MemoryLog
from tests.streams.recorded import PARTITIONS as RUN_PARTITIONS
from tests.streams.recorded import record_run, run_log
from tests.streams.test_log_contract import batches

PARTITIONS = {"batches": 1, "steps": 1}
SEGMENT_BYTES = 1500


def lane(root: Path) -> list[Path]:
    return segments(root / "batches" / "0")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """200 records in several segments of several blocks, with a manifest."""
    log = ArchiveLog(tmp_path / "a", PARTITIONS, segment_bytes=SEGMENT_BYTES)
    for _ in range(40):
        log.append(batches(5))
    log.close()
    assert len(lane(tmp_path / "a")) > 4
    assert not refresh(tmp_path / "a").problems
    return tmp_path / "a"


def only(root: Path) -> Problem:
    problems = verify(root).problems
    assert len(problems) == 1, [str(problem) for problem in problems]
    assert problems[0].topic == "batches" and problems[0].partition == 0
    return problems[0]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_whole_archive_passes_and_its_manifest_lists_every_record(tmp_path: Path) -> None:
    said: list[Event] = record_run(tmp_path)
    result = refresh(tmp_path)
    assert not result.problems and result.as_json()["records"] == len(said)
    entries = load_manifest(tmp_path)
    assert entries == result.entries and all(len(entry.sha256) == 64 for entry in entries)
    assert verify(tmp_path).as_json() | {"notes": []} == result.as_json() | {"notes": []}


def test_closed_segments_are_told_from_the_open_one_and_offsets_follow(many: Path) -> None:
    entries = [entry for entry in load_manifest(many) if entry.topic == "batches"]
    assert [entry.closed for entry in entries] == [True] * (len(entries) - 1) + [False]
    assert [entry.first_offset for entry in entries[1:]] == [entry.last_offset + 1 for entry in entries[:-1]]
    assert sum(entry.count for entry in entries) == 200 and entries[-1].last_offset == 199


def test_an_archive_that_grew_passes_and_its_manifest_grows(many: Path) -> None:
    log = ArchiveLog(many, segment_bytes=SEGMENT_BYTES)
    log.append(batches(50))
    log.close()
    result = refresh(many, trust_closed=True)
    assert not result.problems and sum(entry.count for entry in load_manifest(many)) == 250


@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_flipped_byte_is_named_by_the_offsets_of_its_block(many: Path, number: int) -> None:
    path = lane(many)[number]
    span = spans_of(path.read_bytes(), 0)[1]
    flip(path, (span.start + span.end) // 2)
    problem = only(many)
    assert (problem.first_offset, problem.last_offset) == (span.first_offset, span.last_offset)
    assert path.name in problem.what and f"bytes {span.start} to {span.end - 1}" in problem.what


def test_every_flipped_byte_of_a_segment_is_noticed_and_lies_in_the_range_that_is_named(many: Path) -> None:
    path = lane(many)[1]
    whole, spans = path.read_bytes(), spans_of(path.read_bytes(), 0)
    for at in range(0, len(whole), 23):
        flip(path, at)
        problems = verify(many).problems
        hit = [span for span in spans if span.start <= at < span.end]
        assert problems, f"byte {at}"
        for span in hit:
            assert any(p.first_offset <= span.first_offset and p.last_offset >= span.last_offset for p in problems), (
                f"byte {at}"
            )
        path.write_bytes(whole)
    assert not verify(many).problems


def test_a_missing_segment_in_the_middle_is_named_with_its_offsets(many: Path) -> None:
    gone = next(
        entry for entry in load_manifest(many) if entry.segment == lane(many)[2].name and entry.topic == "batches"
    )
    lane(many)[2].unlink()
    problem = only(many)
    assert (problem.first_offset, problem.last_offset) == (gone.first_offset, gone.last_offset)
    assert problem.what == f"segment {gone.segment} is missing"


def test_a_missing_last_segment_and_a_missing_partition_are_noticed_by_the_manifest(many: Path) -> None:
    last = load_manifest(many)[-1]
    lane(many)[-1].unlink()
    assert (only(many).first_offset, only(many).last_offset) == (last.first_offset, 199)
    shutil.rmtree(many / "batches")
    assert [(p.first_offset, p.last_offset) for p in verify(many).problems][-1] == (last.first_offset, 199)
    assert len(verify(many).problems) == len([e for e in load_manifest(many) if e.topic == "batches"])


def test_without_a_manifest_a_hole_is_named_and_an_open_end_is_said(many: Path) -> None:
    (many / MANIFEST).unlink()
    first, second = int(lane(many)[1].stem), int(lane(many)[2].stem)
    lane(many)[1].unlink()
    problem = only(many)
    assert (problem.first_offset, problem.last_offset) == (first, second - 1)
    assert "no manifest" in verify(many).notes[0]


def test_a_cut_segment_is_named_from_the_first_lost_record(many: Path) -> None:
    path = lane(many)[0]
    last_block = spans_of(path.read_bytes(), 0)[-1]
    os.truncate(path, last_block.end - 7)
    problem = only(many)
    assert (problem.first_offset, problem.last_offset) == (last_block.first_offset, last_block.last_offset)
    assert "is cut at byte" in problem.what


def test_a_torn_tail_of_the_open_segment_is_a_note_and_no_fault(many: Path) -> None:
    with lane(many)[-1].open("ab") as file:
        file.write(b"\x0a\x90\x03half a block")
    result = refresh(many)
    assert not result.problems and any("half a block" in note for note in result.notes)
    assert load_manifest(many)[-1].last_offset == 199


def test_a_damaged_archive_keeps_its_old_manifest(many: Path) -> None:
    before = (many / MANIFEST).read_text()
    flip(lane(many)[0], lane(many)[0].stat().st_size // 2)
    assert refresh(many).problems
    assert (many / MANIFEST).read_text() == before


def test_a_swapped_but_readable_record_is_noticed_by_the_digest(many: Path) -> None:
    """A block that reads well but is not the recorded one: the same offsets with other values."""
    path = lane(many)[0]
    other = ArchiveLog(many.parent / "other", PARTITIONS, segment_bytes=SEGMENT_BYTES)
    for _ in range(40):
        other.append(batches(5))
    other.close()
    forged = lane(many.parent / "other")[0]
    assert forged.read_bytes() != path.read_bytes()
    path.write_bytes(forged.read_bytes())
    assert verify(many).problems


def test_the_archiver_leaves_a_manifest_when_it_closes(tmp_path: Path) -> None:
    log, said = run_log(num_epochs=2)
    archive = ArchiveLog(tmp_path / "a", RUN_PARTITIONS)
    assert mirror(log, archive, stopping=lambda: True, on_ready=lambda: None) == len(said)
    assert sum(entry.count for entry in load_manifest(tmp_path / "a")) == len(said)
    assert not verify(tmp_path / "a").problems


def test_an_unreadable_manifest_is_refused_by_name(many: Path) -> None:
    (many / MANIFEST).write_text('{"segments": [{"topic": 1}]}')
    with pytest.raises(LogGap, match=r"manifest\.json cannot be read"):
        verify(many)


def test_varints_beyond_the_end_are_no_numbers() -> None:
    assert varint(b"\x02", 0) == (1, 1) and varint(b"\x80", 0) == (-1, 0) and varint(b"", 0) == (-1, 0)


def test_a_damaged_archive_is_refused_whole_with_every_fault(many: Path) -> None:
    require_whole(many)
    for path in lane(many)[:2]:
        flip(path, path.stat().st_size - 30)
    with pytest.raises(LogGap, match=r"is damaged:\n  batches-0 offsets \d+ to \d+: segment .*\n  batches-0"):
        require_whole(many)


def test_an_archive_that_is_shorter_than_what_was_durable_is_refused_with_the_range(many: Path) -> None:
    """Without a manifest of the last blocks: the archiver's own word is enough."""
    log = ArchiveLog(many, segment_bytes=SEGMENT_BYTES)
    log.append(batches(5))
    write_ends(many, log.next_offsets())
    log.close()
    require_whole(many)
    last = lane(many)[-1]
    os.truncate(last, spans_of(last.read_bytes(), 0)[-1].start)
    assert (only(many).first_offset, only(many).last_offset) == (200, 204)
    with pytest.raises(LogGap, match="batches-0 offsets 200 to 204: these offsets are missing"):
        mirror(MemoryLog(PARTITIONS), ArchiveLog(many), lambda: True, lambda: None)
    with pytest.raises(LogGap, match="batches-0 offsets 200 to 204: these offsets are missing"):
        restore(ArchiveLog(many), MemoryLog(PARTITIONS))


def test_a_flipped_byte_in_the_last_block_is_refused_before_anything_is_cut(many: Path) -> None:
    for name in ("", MANIFEST):
        (many / name).unlink() if name else None
        last = lane(many)[-1]
        span = spans_of(last.read_bytes(), 0)[-1]
        flip(last, span.end - 20)
        before = last.read_bytes()
        for opening in (
            lambda: restore(ArchiveLog(many), MemoryLog(PARTITIONS)),
            lambda: ArchiveLog(many).next_offsets(),
        ):
            with pytest.raises(LogGap, match=f"offsets {span.first_offset} "):
                opening()
        assert last.read_bytes() == before
        flip(last, span.end - 20)
