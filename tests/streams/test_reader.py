"""Who only looks reads what is there and writes nothing, even when a record is broken."""

from __future__ import annotations

import pytest

from streams.log.port import LogUnavailable, MemoryLog, Place, Record, partition_counts
from streams.log.reader import EventReader
from tests.streams.building import RUN, opening

PARTITIONS = partition_counts(("runs", "tasks", "dead-letters"), 1, 1)


def test_broken_records_are_counted_and_nothing_is_written() -> None:
    log = MemoryLog(PARTITIONS)
    log.append(opening(2, 1, {}))
    log.append_raw(Record("runs", 0, -1, 1, b"k", b"broken"))
    log.append(opening(1, 1, {}, run_id="other"))
    ends = log.end_offsets(PARTITIONS)
    observer = EventReader(log, ("runs", "tasks"), PARTITIONS)
    assert len(observer.catch_up()) == 7 and observer.num_broken == 1
    assert log.end_offsets(PARTITIONS) == ends and ends[Place("dead-letters", 0)] == 0


def test_only_the_run_that_was_asked_for_is_seen() -> None:
    log = MemoryLog(PARTITIONS)
    log.append([*opening(1, 1, {}), *opening(1, 1, {}, run_id="other")])
    assert {event.run_id for event in EventReader(log, ("runs", "tasks"), PARTITIONS, RUN).catch_up()} == {RUN}


def test_a_log_that_does_not_move_is_named() -> None:
    class Stuck(MemoryLog):
        def end_offsets(self, topics: object) -> dict[Place, int]:
            return {Place("runs", 0): 5}

    with pytest.raises(LogUnavailable, match="reader of runs: no progress"):
        EventReader(Stuck(PARTITIONS), ("runs",), PARTITIONS).catch_up(deadline_s=0.0)
