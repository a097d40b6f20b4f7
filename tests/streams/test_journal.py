"""The write-ahead journal: what the broker forgot comes back, once and in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas import decode
from streams.archive.archiver import mirror, restore
from streams.archive.journal import (
    LANE,
    Journal,
    JournaledLog,
    clear,
    ends_file,
    fill_in,
    journaled,
    read_ends,
    unarchived,
    write_ends,
)
from streams.archive.segments import ArchiveLog, segments
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, Place, as_record
from streams.log.topics import ensure_topics, partitions_of
from tests.streams.test_log_contract import batches

PLACE = Place("batches", 0)


@pytest.fixture
def broker_connection(own_broker: EmbeddedBroker) -> Connection:
    connection = Connection(own_broker.bootstrap_servers, True)
    ensure_topics(connection)
    return connection


def journal_of(connection: Connection, root: Path) -> JournaledLog:
    journal = Journal(root / "journals" / "trainer", root / "archive")
    return JournaledLog(KafkaLog(connection), journal, partitions_of(connection))


def archived(connection: Connection, root: Path) -> ArchiveLog:
    mirror(KafkaLog(connection), ArchiveLog(root / "archive", partitions_of(connection)), lambda: True, lambda: None)
    return ArchiveLog(root / "archive", partitions_of(connection))


def fresh_broker(tmp_path: Path) -> Iterator[Connection]:
    with EmbeddedBroker(tmp_path / "fresh.log") as broker:
        connection = Connection(broker.bootstrap_servers, True)
        ensure_topics(connection)
        yield connection


def test_what_was_acknowledged_but_not_archived_is_filled_in_once_and_in_order(
    tmp_path: Path, own_broker: EmbeddedBroker, broker_connection: Connection
) -> None:
    log = journal_of(broker_connection, tmp_path)
    log.append(batches(5))
    archive = archived(broker_connection, tmp_path)
    log.append(batches(9)[5:])
    log.append(batches(9)[7:])
    own_broker.stop()
    assert [decode(r.value).step for r in unarchived(tmp_path / "journals" / "trainer", archive)] == [5, 6, 7, 8]
    for connection in fresh_broker(tmp_path):
        fresh = KafkaLog(connection)
        assert (restore(archive, fresh), fill_in(tmp_path / "journals", archive, fresh)) == (5, 4)
        steps = [decode(r.value).step for r in fresh.read({PLACE: 0}, timeout_s=5.0)]
        assert steps == list(range(9))


def test_records_keep_their_time_key_and_bytes(tmp_path: Path, broker_connection: Connection) -> None:
    log = journal_of(broker_connection, tmp_path)
    log.append(batches(3))
    sent = KafkaLog(broker_connection).read({PLACE: 0}, timeout_s=5.0)
    kept = list(journaled(tmp_path / "journals" / "trainer"))
    assert [(r.topic, r.partition, r.timestamp_ms, r.key, r.value) for r in kept] == [
        (r.topic, r.partition, r.timestamp_ms, r.key, r.value) for r in sent
    ]


def test_a_record_that_never_reached_the_broker_is_journaled_all_the_same(
    tmp_path: Path, own_broker: EmbeddedBroker, broker_connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streams.log.port import LogUnavailable

    monkeypatch.setattr("streams.log.kafka.FLUSH_DEADLINE_S", 1.0)
    log = journal_of(broker_connection, tmp_path)
    own_broker.stop()
    with pytest.raises(LogUnavailable):
        log.append(batches(2))
    assert len(list(journaled(tmp_path / "journals" / "trainer"))) == 2


def test_old_segments_go_when_the_archive_holds_them_and_not_before(
    tmp_path: Path, broker_connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.archive.journal.ROTATE_BYTES", 1000)
    log = journal_of(broker_connection, tmp_path)
    for _ in range(6):
        log.append(batches(10))
    folder = tmp_path / "journals" / "trainer" / LANE.topic / "0"
    before = len(segments(folder))
    assert before > 2
    (tmp_path / "archive").mkdir(exist_ok=True)
    write_ends(tmp_path / "archive", {PLACE: 1000, Place("batches", 1): 1000})
    assert read_ends(tmp_path / "archive")[PLACE] == 1000
    log.append(batches(1))
    assert len(segments(folder)) <= 2


def test_a_drained_run_forgets_its_journals(tmp_path: Path, broker_connection: Connection) -> None:
    journal_of(broker_connection, tmp_path).append(batches(1))
    clear(tmp_path / "journals")
    assert not (tmp_path / "journals").exists()


def test_of_two_versions_of_one_event_the_later_comes_back(tmp_path: Path, broker_connection: Connection) -> None:
    """A worker that died between journal and broker decides again, perhaps from later facts; what went on hangs on the second."""
    journal, archive = (
        Journal(tmp_path / "journals" / "worker", tmp_path / "archive"),
        archived(broker_connection, tmp_path),
    )
    first, second = batches(2)
    again = replace(first, task_ids=("another",))
    assert again.event_id == first.event_id
    partitions = partitions_of(broker_connection)
    journal.keep([as_record(first, partitions)])
    journal.keep([as_record(again, partitions), as_record(second, partitions)])
    journal.close()
    kept = [decode(record.value) for record in unarchived(tmp_path / "journals" / "worker", archive)]
    assert [(event.step, event.task_ids) for event in kept] == [
        (first.step, ("another",)),
        (second.step, second.task_ids),
    ]


def test_the_archives_ends_are_synced_before_they_are_said_and_an_empty_file_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), fsync(handle)))
    monkeypatch.setattr(Path, "replace", lambda self, target: (steps.append("rename"), rename(self, target))[1])
    write_ends(tmp_path / "archive", {PLACE: 7})
    assert steps == ["sync", "rename"] and read_ends(tmp_path / "archive") == {PLACE: 7}
    ends_file(tmp_path / "archive").write_text("")
    assert read_ends(tmp_path / "archive") == {} == read_ends(tmp_path / "nowhere")
    ends_file(tmp_path / "archive").write_text("[[")
    with pytest.raises(LogGap, match="archive-ends.json cannot be read.*delete it"):
        read_ends(tmp_path / "archive")


def test_a_segment_that_a_batch_ended_in_stays_until_the_archive_holds_all_of_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("streams.archive.journal.ROTATE_BYTES", 2_000)
    monkeypatch.setattr("streams.archive.segments.SYNC_BYTES", 256)
    journal = Journal(tmp_path / "journals", tmp_path / "archive")
    records = [as_record(event, {"batches": 1}) for event in batches(60)]
    journal.keep(records[:2])
    journal.sent([PLACE] * 2, [0, 1])
    journal.keep(records[2:58])
    journal.sent([PLACE] * 56, range(2, 58))
    first, *others = segments(tmp_path / "journals" / "journal" / "0")
    assert len(others) > 1 and int(others[0].stem) > 2
    write_ends(tmp_path / "archive", {PLACE: 2})
    journal.keep(records[58:])
    journal.sent([PLACE] * 2, [58, 59])
    assert first.exists() and len(list(journaled(tmp_path / "journals"))) == 60
    write_ends(tmp_path / "archive", {PLACE: int(others[0].stem)})
    journal.sent([PLACE] * 2, [58, 59])
    assert not first.exists() and others[0].exists()
