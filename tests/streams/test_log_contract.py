"""One promise, three logs: what every log must do, on memory, on files and on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import InvalidEvent, decode, encode, make
from schemas.events import BatchPlanned, TrajectoryRecorded
from streams.archive.segments import ArchiveLog
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import Log, MemoryLog, Place, Record, advanced, beginning, partition_of
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from tests.streams.building import opening

PARTITIONS = partitions_of(Connection("", num_decision_partitions=2))


@pytest.fixture(params=["memory", "archive", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    if request.param == "memory":
        opened: Log = MemoryLog(PARTITIONS)
    elif request.param == "archive":
        opened = ArchiveLog(tmp_path, PARTITIONS)
    else:
        opened = KafkaLog(request.getfixturevalue("connection"))
    yield opened
    opened.close()


def batches(num: int, run_id: str = "run") -> list[BatchPlanned]:
    return [
        make(BatchPlanned, run_id, step=i, epoch=0, task_ids=("a",), is_last_of_epoch=False, input_cursor=())
        for i in range(num)
    ]


def read_all(log: Log, topic: str, num: int) -> list[Record]:
    cursor, found = beginning([topic], PARTITIONS), []
    while len(found) < num:
        records = log.read(cursor, max_records=64, timeout_s=5.0)
        assert records, f"{len(found)} of {num} records of {topic}"
        cursor = advanced(cursor, records)
        found += records
    return found


def test_events_come_back_in_order_with_offsets_from_zero_without_holes(log: Log) -> None:
    log.append(batches(300))
    records = read_all(log, "batches", 300)
    assert [r.offset for r in records] == list(range(300))
    assert [decode(r.value).step for r in records] == list(range(300))
    assert {r.key for r in records} == {b"run"}


def test_one_run_lies_in_one_partition_of_every_decision_topic(log: Log) -> None:
    for run in ("r1", "r2", "r3", "r4"):
        log.append(opening(3, 1, {}, run))
    for topic in ("runs", "tasks"):
        for record in read_all(log, topic, 8 if topic == "runs" else 12):
            assert record.partition == partition_of(record.key, PARTITIONS[topic])


def test_the_end_is_behind_the_last_record_however_the_records_were_batched(log: Log) -> None:
    assert set(log.end_offsets(["batches"]).values()) == {0}
    for size in (1, 7, 150):
        log.append(batches(size))
    assert sum(log.end_offsets(["batches"]).values()) == 158


def test_reading_from_a_cursor_starts_there(log: Log) -> None:
    log.append(batches(50))
    place = next(place for place, end in log.end_offsets(["batches"]).items() if end)
    assert log.read({place: 47}, timeout_s=5.0)[0].offset == 47
    assert log.read({place: 10}, max_records=1, timeout_s=5.0)[0].offset == 10


def test_reading_at_the_end_returns_nothing_in_time(log: Log) -> None:
    log.append(batches(3))
    place = next(place for place, end in log.end_offsets(["batches"]).items() if end)
    assert log.read({place: 3}, timeout_s=0.2) == []
    log.append(batches(1))
    assert [r.offset for r in log.read({place: 3}, timeout_s=5.0)] == [3]


def test_a_time_is_stamped_only_where_there_is_none(log: Log) -> None:
    early = make(
        BatchPlanned, "run", occurred_at_ms=1234, step=1, epoch=0, task_ids=(), is_last_of_epoch=True, input_cursor=()
    )
    log.append([early, *batches(1)])
    first, second = read_all(log, "batches", 2)
    assert (first.timestamp_ms, decode(first.value).occurred_at_ms) == (1234, 1234)
    assert second.timestamp_ms == decode(second.value).occurred_at_ms > 1_600_000_000_000


def test_a_large_body_passes_whole(log: Log) -> None:
    body = make(
        TrajectoryRecorded,
        "run",
        group_id="g",
        task_id="t",
        step=1,
        rollout_index=0,
        policy_version=0,
        token_ids=bytes(range(256)) * 12_000,
        logprobs=b"",
        mask=b"",
        messages=(),
        turn_verdicts=(),
        reward=None,
        format_reward=None,
        finish_reason="finished",
    )
    log.append([body])
    assert decode(read_all(log, "trajectories", 1)[0].value).token_ids == body.token_ids


def test_an_event_that_does_not_fit_its_schema_is_refused_and_nothing_is_written(log: Log) -> None:
    with pytest.raises(InvalidEvent, match="BatchPlanned"):
        log.append(
            [
                *batches(2),
                make(BatchPlanned, "run", step="one", epoch=0, task_ids=(), is_last_of_epoch=True, input_cursor=()),
            ]
        )
    assert sum(log.end_offsets(["batches"]).values()) == 0


def test_a_reader_gives_each_event_once_and_dead_letters_what_it_cannot_use(log: Log) -> None:
    good = batches(3)
    number = partition_of(b"run", 2)
    misplaced = encode(opening(1, 1, {})[0])
    for value in (b"no avro", None, misplaced):
        log.append_raw(Record("batches", number, -1, 1, b"run", value))
    log.append([*good, *good, *batches(2, "other-run")])
    reader = EventReader(log, ["batches"], PARTITIONS, "run", "test")
    assert [event.step for event in reader.catch_up()] == [0, 1, 2]
    assert (reader.num_duplicates, reader.num_broken) == (3, 3)
    letters = [decode(record.value) for record in read_all(log, "dead-letters", 3)]
    assert [letter.reason.value for letter in letters] == ["undecodable", "undecodable", "wrong_topic"]
    assert letters[0].value == b"no avro" and letters[0].topic == "batches" and letters[0].offset == 0
    assert "RunStarted" in letters[2].detail and "'runs'" in letters[2].detail


def test_headers_keys_and_times_survive_a_raw_write(log: Log) -> None:
    record = Record("dead-letters", 1, -1, 777, None, b"v", (("h", b"1"), ("h", None)))
    log.append_raw(record)
    back = log.read({Place("dead-letters", 1): 0}, timeout_s=5.0)[0]
    assert (back.key, back.value, back.timestamp_ms, back.headers) == (None, b"v", 777, record.headers)
