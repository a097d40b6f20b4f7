"""Checkups: a healthy log has no findings, and each fault is found and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.checkup import REDRIVEN, Checkup, redrive_record
from analysis.index import LogIndex
from schemas import Event, encode, make
from schemas.events import BoundaryDetected, DeadLettered, DeadLetterReason, RolloutGroupCompleted, StepCompleted
from streams.archive.scan import scan_log, scanned
from streams.log.port import MemoryLog, Record
from streams.log.reader import EventReader, dead_letter, event_of
from tests.streams.building import RUN
from tests.streams.recorded import PARTITIONS, run_log


def checked(log: MemoryLog) -> Checkup:
    return Checkup(LogIndex().add_records(map(scanned, scan_log(log, PARTITIONS))), RUN)


def log_of(events: list[Event]) -> MemoryLog:
    log = MemoryLog(PARTITIONS)
    log.append(events)
    return log


@pytest.fixture(scope="module")
def said() -> list[Event]:
    return run_log()[1]


def test_a_finished_run_is_healthy(said: list[Event]) -> None:
    checkup = checked(log_of([*said, said[5]]))
    assert checkup.findings() == {} and checkup.has_ended
    assert checkup.as_json()["healthy"] and checkup.log.num_repeated == 1


def test_a_lost_group_and_an_unanswered_signal_of_an_ended_run_are_named(said: list[Event]) -> None:
    group = next(e for e in said if isinstance(e, RolloutGroupCompleted))
    signal = next(e for e in said if isinstance(e, BoundaryDetected))
    kept = [e for e in said if e is not group and getattr(e, "signal_id", "") != signal.signal_id or e is signal]
    assert checked(log_of(kept)).findings()["lost"] == [
        f"group of {group.task_id} at step {group.step}",
        f"outcome of signal {signal.signal_id}",
    ]


def test_the_last_step_of_a_run_that_goes_on_may_wait_but_earlier_ones_may_not() -> None:
    _, said = run_log(finished=False)
    last = max(e.step for e in said if isinstance(e, StepCompleted))
    open_end = [
        e for e in said if getattr(e, "step", 0) != last or not isinstance(e, StepCompleted | RolloutGroupCompleted)
    ]
    assert checked(log_of(open_end)).findings() == {}
    without_first = [e for e in open_end if not (isinstance(e, StepCompleted) and e.step == 1)]
    assert checked(log_of(without_first)).findings() == {"lost": ["completion of step 1"]}


def test_a_second_outcome_is_found(said: list[Event]) -> None:
    group = next(e for e in said if isinstance(e, RolloutGroupCompleted))
    again = make(
        RolloutGroupCompleted,
        RUN,
        **{n: getattr(group, n) for n in group.__slots__ if n not in ("event_id", "run_id", "group_id", "attempt")},
        attempt=1,
    )
    assert checked(log_of([*said, again])).findings() == {"twice": [f"group of {group.task_id} at step {group.step}"]}


def test_an_unknown_schema_is_named_by_its_fingerprint(said: list[Event]) -> None:
    log = log_of(said)
    log.append_raw(Record("steps", 0, -1, 1, b"run-1", b"\xc3\x01" + bytes.fromhex("0123456789abcdef") + b"body"))
    found = checked(log).findings()
    assert found["unknown schema"] == ["fingerprint 0123456789abcdef: 1 records; upgrade the reader"]
    assert len(found["unread"]) == 1 and found["unread"][0].startswith("steps-0@")


def test_an_open_dead_letter_is_unhealthy_and_a_redriven_one_is_settled(said: list[Event]) -> None:
    group = next(e for e in said if isinstance(e, RolloutGroupCompleted))
    log = log_of([e for e in said if e is not group])
    log.append_raw(Record("steps", 0, -1, 1, b"run-1", encode(group)))
    reader = EventReader(log, ("steps",), PARTITIONS, RUN, "pool")
    reader.poll(0.0)
    assert reader.num_broken == 1
    before = checked(log)
    (letter,) = before.open_letters()
    assert (
        "wrong_topic" in before.findings()["dead letters"][0] and "redrive it" in before.findings()["dead letters"][0]
    )
    record = redrive_record(letter, PARTITIONS)
    assert (record.topic, record.value, record.headers) == (
        "rollouts",
        encode(group),
        ((REDRIVEN, f"steps-0@{letter.offset}".encode()),),
    )
    log.append_raw(record)
    assert checked(log).findings() == {} and checked(log).as_json()["dead_letters"] == {"wrong_topic": 1}


def test_what_still_cannot_be_read_is_not_redriven(said: list[Event]) -> None:
    bad = Record("rollouts", 0, 7, 1, b"run-1", b"junk")
    with pytest.raises(ValueError, match="header") as refused:
        event_of(bad)
    letter: DeadLettered = dead_letter(bad, refused.value, RUN, "pool")
    assert letter.reason is DeadLetterReason.UNDECODABLE
    assert (
        redrive_record(letter, PARTITIONS) is None and redrive_record(replace(letter, value=None), PARTITIONS) is None
    )
    assert "dead letters" in checked(log_of([*said, letter])).findings()
