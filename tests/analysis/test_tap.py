"""Taps: what is wanted comes, what is broken is shown, nothing is disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analysis.event_values import event_types_of, plain, table_name, topics_of
from analysis.tap import (
    BadSelection,
    Condition,
    Selection,
    Tail,
    Tapped,
    following,
    moment_ms,
    parse_condition,
    subject,
)
from schemas import TOPICS, Event, as_record
from schemas.events import BatchPlanned, BoundaryDetected, RolloutGroupCompleted, StepCompleted
from streams.archive.scan import scan_log
from streams.archive.segments import ArchiveLog, segments
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import Log, LogGap, MemoryLog, Place, Record
from streams.log.reader import LogTail, event_of
from streams.log.topics import partitions_of
from tests.streams.building import run_started
from tests.streams.recorded import PARTITIONS, T0_MS, body, run_log


@pytest.fixture(scope="module")
def run() -> tuple[MemoryLog, list[Event]]:
    return run_log()


def heard(run: tuple[MemoryLog, list[Event]], name: str, **selection: object) -> list[str]:
    """Ids of the wanted events."""
    return [item.values["event_id"] for item in items_of(run[0], name, **selection)]


def items_of(log: Log, name: str, **selection: object) -> list[Tapped]:
    wanted = Selection(event_types_of(name), **selection).check()
    return list(wanted.chosen(scan_log(log, topics_of(wanted.event_types))))


def test_a_topic_an_event_type_and_a_data_set_name_mean_the_same(run: tuple[MemoryLog, list[Event]]) -> None:
    by_topic, by_type = heard(run, "rollouts"), heard(run, "RolloutGroupCompleted")
    assert by_topic == by_type == heard(run, "rollout_group_completed")
    assert by_topic == [e.event_id for e in run[1] if isinstance(e, RolloutGroupCompleted)]
    assert event_types_of("nonsense") == () and topics_of(event_types_of("all")) == TOPICS
    assert table_name("RunStarted") == "run_started"


@pytest.mark.parametrize(
    ("texts", "keep"),
    [
        (["category=base"], lambda e: e.category.value == "base"),
        (["step = 2"], lambda e: e.step == 2),
        (["step=2", "category='base'"], lambda e: e.step == 2 and e.category.value == "base"),
        (["evidence.mean=0.50"], lambda e: e.evidence.mean == 0.5),
        (["evidence.zone = boundary"], lambda e: True),
        (["event=BoundaryDetected"], lambda e: True),
        (["category=3"], lambda e: False),
    ],
)
def test_conditions_compare_fields_as_values(
    run: tuple[MemoryLog, list[Event]], texts: list[str], keep: object
) -> None:
    wanted = [e.event_id for e in run[1] if isinstance(e, BoundaryDetected) and keep(e)]
    assert heard(run, "boundary-signals", conditions=tuple(map(parse_condition, texts))) == wanted


def test_conditions_reach_into_maps_and_lists(run: tuple[MemoryLog, list[Event]]) -> None:
    step = next(e for e in run[1] if isinstance(e, StepCompleted) and e.step == 2)
    wanted = parse_condition(f"timings_ms.rollout={step.timings_ms['rollout']}")
    assert step.event_id in heard(run, "steps", conditions=(wanted,))
    batch = next(e for e in run[1] if isinstance(e, BatchPlanned))
    assert heard(run, "BatchPlanned", conditions=(parse_condition(f"task_ids={json.dumps(batch.task_ids)}"),))


@pytest.mark.parametrize(
    "text", ["", "mean", "__import__('os')", "a b = 3", "= 3", "x == 1 or True", "step < 3", "step >= 3", "step != 3"]
)
def test_what_is_no_comparison_of_a_field_is_refused_and_never_run(text: str) -> None:
    with pytest.raises(BadSelection):
        Selection(("BoundaryDetected",), conditions=(parse_condition(text),)).check()


def test_an_unknown_field_is_named_with_those_there_are() -> None:
    with pytest.raises(BadSelection, match="no such field in BoundaryDetected; there are event, .*evidence"):
        Selection(("BoundaryDetected",), conditions=(Condition("evidnce.mean", "1"),)).check()
    with pytest.raises(BadSelection, match="evidence.meen"):
        Selection(("BoundaryDetected",), conditions=(Condition("evidence.meen", "1"),)).check()


def test_moments_are_now_before_now_and_iso_times() -> None:
    assert (
        moment_ms("now", 50_000) == 50_000
        and moment_ms("-10s", 50_000) == 40_000
        and moment_ms("-1.5m", 100_000) == 10_000
    )
    assert moment_ms("1970-01-02", 0) == 86_400_000 == moment_ms("1970-01-02T01:00+01:00", 0)
    with pytest.raises(BadSelection, match="no moment"):
        moment_ms("yesterday", 0)


def test_since_is_included_and_until_is_excluded(run: tuple[MemoryLog, list[Event]]) -> None:
    everything = items_of(run[0], "rollouts")
    times = [item.record.timestamp_ms for item in everything]
    some = items_of(run[0], "rollouts", since_ms=times[3], until_ms=times[7])
    assert [item.record.offset for item in some] == [3, 4, 5, 6]
    assert not heard(run, "rollouts", since_ms=T0_MS + 10**12)


def test_a_broken_record_is_shown_as_such_and_no_dead_letter_is_written() -> None:
    log, _ = run_log(num_epochs=2)
    log.append_raw(Record("rollouts", 0, -1, T0_MS, b"run-1", b"\xc3\x01garbage-bytes"))
    log.append_raw(Record("rollouts", 0, -1, T0_MS, b"run-1", None))
    items = items_of(log, "rollouts")
    assert [item.event_type for item in items[-2:]] == ["", ""]
    assert "fingerprint" in str(items[-2].error) and "no value" in str(items[-1].error)
    assert log.end_offsets(["dead-letters"]) == {Place("dead-letters", 0): 0}


def test_only_the_wanted_run_is_heard(run: tuple[MemoryLog, list[Event]]) -> None:
    assert not heard(run, "runs", run_id="run-2")
    assert [item.event_type for item in items_of(run[0], "RunStarted", run_id="run-1")] == ["RunStarted"]


def followed(tail: Tail, name: str, stop: Callable[[], bool] = lambda: False, **selection: object) -> Iterator[Tapped]:
    return Selection(event_types_of(name), **selection).chosen(following(tail, stop))


def test_a_following_tap_hears_what_comes_later_until_it_is_stopped() -> None:
    log = MemoryLog(PARTITIONS)
    log.append([run_started()])
    stopped: list[bool] = []
    items = followed(LogTail(log, ["runs"], PARTITIONS), "runs", stop=lambda: bool(stopped))
    assert next(items).values["run_id"] == "run-1"
    log.append([run_started(run_id="run-2")])
    assert next(items).values["run_id"] == "run-2"
    stopped.append(True)
    assert list(items) == []


def test_a_tap_follows_an_archive_through_half_blocks_and_new_segments(tmp_path: Path) -> None:
    writer = ArchiveLog(tmp_path, PARTITIONS, segment_bytes=1000)
    writer.append([run_started(run_id=f"run-{i}") for i in range(3)])
    tail = LogTail(ArchiveLog(tmp_path), ["runs"], {"runs": 1})
    assert [r.offset for r in tail.read(0.0)] == [0, 1, 2] and tail.read(0.0) == []
    for i in range(3, 20):
        writer.append([run_started(run_id=f"run-{i}")])
        assert [(r.offset, event_of(r).run_id) for r in tail.read(0.0)] == [(i, f"run-{i}")]
    files = segments(tmp_path / "runs" / "0")
    assert len(files) > 2
    with files[-1].open("ab") as file:
        file.write(b"\x02\x80\x80")
    assert tail.read(0.0) == []
    assert [r.offset for r in LogTail(ArchiveLog(tmp_path), ["runs"], {"runs": 1}).read(0.0)] == list(range(20))
    files[1].unlink()
    with pytest.raises(LogGap, match="runs-0: offsets"):
        LogTail(ArchiveLog(tmp_path), ["runs"], {"runs": 1}).read(0.0)


def test_a_tap_on_a_broker_follows_without_a_group_and_hears_spread_partitions(connection: Connection) -> None:
    writer, reader = KafkaLog(connection), KafkaLog(connection)
    said = [body(f"t{i}", 1, 0, 1.0, "g") for i in range(20)]
    writer.append(said)
    writer.append_raw(Record("trajectories", 1, -1, 1, b"k", b"not avro"))
    items = items_of(reader, "trajectories")
    assert {item.values["event_id"] for item in items if not item.error} == {e.event_id for e in said}
    assert sum(item.error is not None for item in items) == 1
    follower = followed(LogTail(reader, ["runs"], partitions_of(connection)), "runs", run_id="run-9")
    writer.append([run_started(), run_started(run_id="run-9")])
    assert next(follower).values["run_id"] == "run-9"
    assert not any(KafkaLog(connection).end_offsets(["dead-letters"]).values())
    writer.close()
    reader.close()


def test_plain_values_are_ready_for_json_and_unpack_on_request() -> None:
    name, values = "TrajectoryRecorded", as_record(body("t", 1, 2, 0.5, "g", num_tokens=3))
    unpacked = plain(name, values, unpack=True)
    assert plain(name, values)["token_ids"] == "yAAAAMkAAADKAAAA"
    assert unpacked["token_ids"] == [200, 201, 202] and unpacked["mask"] == [0, 1, 0]
    assert plain(name, values | {"token_ids": b"abc"}, unpack=True)["token_ids"] == "YWJj"
    assert subject(name, values) == "step=1 task_id=t attempt=0 rollout_index=2"
