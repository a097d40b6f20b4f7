"""The file log: torn tails, gaps, restore into a broker."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from streams.archive import ArchiveLog, segments
from streams.archiver import mirror, restore
from streams.connection import Connection
from streams.embedded_broker import EmbeddedBroker
from streams.kafka_log import KafkaLog
from streams.log import LogGap, LogUnavailable, Place, Record
from streams.topics import ensure_topics, partitions_of
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


def test_damage_with_whole_blocks_behind_it_is_refused_and_nothing_is_cut(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path, PARTITIONS)
    log.append(batches(20))
    at = file_of(tmp_path).stat().st_size
    for _ in range(3):
        log.append(batches(1))
    log.close()
    data = bytearray(file_of(tmp_path).read_bytes())
    data[at + 8] ^= 0xFF
    file_of(tmp_path).write_bytes(data)
    with pytest.raises(LogGap, match=f"damaged at byte {at}"):
        ArchiveLog(tmp_path).next_offsets()
    assert file_of(tmp_path).read_bytes() == bytes(data)


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


def test_a_dead_broker_ends_reading_and_writing_with_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.kafka_log.FLUSH_DEADLINE_S", 3.0)
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
