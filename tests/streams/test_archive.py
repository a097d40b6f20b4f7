"""The file log: torn tails, gaps, restore into a broker."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from streams.archive.archiver import mirror, restore
from streams.archive.blocks import HEADER_BYTES, spans_of
from streams.archive.scan import scan_archive
from streams.archive.segments import ArchiveLog, segments
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, LogUnavailable, Place, Record, beginning
from streams.log.reader import LogTail
from streams.log.topics import ensure_topics, partitions_of
from streams.pool.refold import fold_archive
from tests.streams.test_log_contract import batches

ONE = Place("batches", 0)
PARTITIONS = {"batches": 1}


def file_of(root: Path) -> Path:
    return segments(root / "batches" / "0")[-1]


@pytest.mark.parametrize("cut", [1, 5, 17, 60])
def test_a_torn_tail_is_cut_on_open_and_writing_goes_on(tmp_path: Path, cut: int) -> None:
    log = ArchiveLog(tmp_path, PARTITIONS)
    log.append(batches(20))
    log.append(batches(1))
    log.close()
    os.truncate(file_of(tmp_path), file_of(tmp_path).stat().st_size - cut)
    reopened = ArchiveLog(tmp_path)
    assert reopened.next_offsets()[ONE] == 20
    reopened.append(batches(2))
    assert [r.offset for r in reopened.read({ONE: 0}, timeout_s=1.0)] == list(range(22))


def test_a_segment_whose_header_is_torn_is_dropped(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path, PARTITIONS)
    log.append(batches(1))
    log.close()
    os.truncate(file_of(tmp_path), 3)
    assert ArchiveLog(tmp_path).next_offsets()[ONE] == 0


def blocks(root: Path, num: int) -> tuple[Path, bytes]:
    """A segment of one record a block, and its bytes."""
    log = ArchiveLog(root, PARTITIONS)
    for number in range(num):
        log.append(batches(num)[number : number + 1])
    log.close()
    return file_of(root), file_of(root).read_bytes()


def read(root: Path, num: int) -> list[Record]:
    return [r for offset in range(num) for r in ArchiveLog(root).read({ONE: offset}, 1, timeout_s=0.0)]


def test_damage_with_whole_blocks_behind_it_is_refused_and_nothing_is_cut(tmp_path: Path) -> None:
    path, data = blocks(tmp_path, 4)
    second = spans_of(data, 0)[1]
    for at in (second.start, second.start + 8, second.end - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with pytest.raises(
            LogGap, match=f"batches-0 offsets 1 to 1: .* damaged at bytes {second.start} to {second.end - 1}"
        ):
            ArchiveLog(tmp_path).next_offsets()
        assert len(path.read_bytes()) == len(data)


def test_no_flipped_byte_deletes_or_cuts_a_segment_and_none_drops_or_alters_a_record_silently(tmp_path: Path) -> None:
    path, data = blocks(tmp_path, 3)
    whole = read(tmp_path, 3)
    num_refused = 0
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        path.write_bytes(flipped)
        try:
            ends = ArchiveLog(tmp_path).next_offsets()
            assert ends[ONE] == 3 and read(tmp_path, 3) == whole, f"byte {at}: {ends}"
        except LogGap:
            num_refused += 1
        assert path.exists() and path.read_bytes() == flipped, f"byte {at}"
        path.write_bytes(data)
    assert read(tmp_path, 3) == whole
    assert num_refused > 0.95 * len(data), num_refused


def test_every_cut_of_a_segment_leaves_the_whole_blocks_before_it(tmp_path: Path) -> None:
    path, data = blocks(tmp_path, 3)
    ends = [span.end for span in spans_of(data, 0)]
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert ArchiveLog(tmp_path).next_offsets()[ONE] == sum(end <= length for end in ends), f"cut to {length}"
        assert path.exists() == (length >= HEADER_BYTES)


def test_a_reader_refuses_damage_and_names_it(tmp_path: Path) -> None:
    path, data = blocks(tmp_path, 4)
    second = spans_of(data, 0)[1]
    path.write_bytes(data[: second.end - 1] + b"?" + data[second.end :])
    named = f"batches-0 offsets 1 to 1: .* damaged at bytes {second.start} to {second.end - 1}"
    for offset in (0, 1):
        with pytest.raises(LogGap, match=named):
            ArchiveLog(tmp_path).read({ONE: offset}, timeout_s=0.0)
    with pytest.raises(LogGap, match=named):
        list(scan_archive(tmp_path, ["batches"]))
    with pytest.raises(LogGap, match=named):
        fold_archive(tmp_path, ["batches"])
    with pytest.raises(LogGap, match=named):
        ArchiveLog(tmp_path).end_offsets(["batches"])


def test_segments_roll_and_read_as_one(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path, PARTITIONS, segment_bytes=2000)
    for _ in range(40):
        log.append(batches(5))
    assert len(segments(tmp_path / "batches" / "0")) > 3
    assert [r.offset for r in log.read({ONE: 0}, timeout_s=1.0)] == list(range(200))
    assert ArchiveLog(tmp_path).end_offsets(["batches"]) == {ONE: 200}


def test_a_missing_segment_is_named_by_its_range(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path, PARTITIONS, segment_bytes=2000)
    for _ in range(40):
        log.append(batches(5))
    log.close()
    first, second, third = segments(tmp_path / "batches" / "0")[:3]
    second.unlink()
    hole = f"offsets {int(second.stem)} to {int(third.stem) - 1} are missing"
    with pytest.raises(LogGap, match=hole):
        ArchiveLog(tmp_path).read({ONE: int(second.stem) - 1}, timeout_s=1.0)
    first.unlink()
    with pytest.raises(LogGap, match="offsets 0 to"):
        ArchiveLog(tmp_path).read({ONE: 0}, timeout_s=1.0)


def test_a_record_out_of_order_is_refused(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path, PARTITIONS)
    log.append(batches(2))
    with pytest.raises(LogGap, match="offset 3 does not follow 1"):
        log.mirror([Record("batches", 0, 3, 1, None, None)])


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    writer, reader = ArchiveLog(tmp_path, PARTITIONS), ArchiveLog(tmp_path, PARTITIONS)
    writer.append(batches(3))
    assert len(reader.read({ONE: 0}, timeout_s=5.0)) == 3
    writer.append(batches(2))
    assert [r.offset for r in reader.read({ONE: 3}, timeout_s=5.0)] == [3, 4]


def test_mirror_and_restore_keep_every_byte_and_offset(tmp_path: Path, own_broker: EmbeddedBroker) -> None:
    connection = Connection(own_broker.bootstrap_servers, True)
    ensure_topics(connection)
    source, stop = KafkaLog(connection), threading.Event()
    source.append(batches(500))
    source.append_raw(Record("dead-letters", 0, -1, 5, b"k", None, (("h", b"x"),)))
    stop.set()
    archive = ArchiveLog(tmp_path / "a", partitions_of(connection))
    assert mirror(KafkaLog(connection), archive, stop.is_set, lambda: None) == 501
    before = ArchiveLog(tmp_path / "a")
    with EmbeddedBroker(tmp_path / "second.log") as fresh:
        target = Connection(fresh.bootstrap_servers, True)
        ensure_topics(target)
        log = KafkaLog(target)
        assert restore(before, log) == 501
        for place, end in before.next_offsets().items():
            records = [r for _ in range(end and 1) for r in log.read({place: 0}, max_records=1000, timeout_s=5.0)]
            assert records == before.read({place: 0}, max_records=1000, timeout_s=0.0)
        with pytest.raises(LogGap, match="topics that hold records"):
            restore(before, log)


def test_the_archiver_drains_to_the_end_of_the_log_when_told_to_stop(tmp_path: Path, connection: Connection) -> None:
    log, stop = KafkaLog(connection), threading.Event()
    archive = ArchiveLog(tmp_path, partitions_of(connection))
    ready = threading.Event()
    thread = threading.Thread(target=mirror, args=(KafkaLog(connection), archive, stop.is_set, ready.set))
    thread.start()
    assert ready.wait(20)
    for _ in range(20):
        log.append(batches(50))
    stop.set()
    thread.join(60)
    assert sum(ArchiveLog(tmp_path).end_offsets(["batches"]).values()) == 1000


def test_a_dead_broker_ends_reading_and_writing_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.log.kafka.FLUSH_DEADLINE_S", 3.0)
    with EmbeddedBroker(tmp_path / "b.log") as broker:
        connection = Connection(broker.bootstrap_servers, True, client={"socket.connection.setup.timeout.ms": "1000"})
        ensure_topics(connection)
        log = KafkaLog(connection, broker_silence_s=1.0)
        log.append(batches(2))
        assert len(log.read({ONE: 0}, timeout_s=5.0)) == 2
    with pytest.raises(LogUnavailable, match=broker.bootstrap_servers):
        log.append(batches(1))
    with pytest.raises(LogUnavailable, match=broker.bootstrap_servers):
        for _ in range(100):
            log.read({ONE: 2}, timeout_s=0.5)


def test_one_who_follows_an_archive_refuses_damage_and_waits_for_the_rest_of_half_a_block(tmp_path: Path) -> None:
    path, data = blocks(tmp_path, 3)
    second = spans_of(data, 0)[1]
    path.write_bytes(data[: second.end - 5])
    tail = LogTail(ArchiveLog(tmp_path), ["batches"], {"batches": 1})
    assert [r.offset for r in tail.read(0.0)] == [0] and tail.read(0.0) == []
    path.write_bytes(data)
    assert [r.offset for r in tail.read(0.0)] == [1, 2]
    path.write_bytes(data[: second.end - 1] + b"?" + data[second.end :])
    with pytest.raises(LogGap, match="batches-0 offsets 1 to 1: .* is damaged"):
        LogTail(ArchiveLog(tmp_path), ["batches"], {"batches": 1}).read(0.0)


def test_a_reader_of_several_partitions_gets_a_share_of_each(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path, {"batches": 2})
    log.mirror([Record("batches", number, offset, 1, b"k", b"v") for number in (0, 1) for offset in range(10)])
    log.sync()
    cursor = beginning(["batches"], {"batches": 2})
    first = log.read(cursor, max_records=6, timeout_s=0.0)
    assert [(r.partition, r.offset) for r in first] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    rest = log.read({Place("batches", 0): 9, Place("batches", 1): 3}, max_records=6, timeout_s=0.0)
    assert [(r.partition, r.offset) for r in rest] == [(0, 9), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7)]
