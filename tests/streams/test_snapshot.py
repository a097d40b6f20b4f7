"""Folding in bulk and from a snapshot gives what folding one by one from the beginning gives."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import Event, InvalidEvent, Undecodable, decode, encode
from schemas.events import RolloutGroupCompleted
from schemas.heads import GroupHead, head_of
from streams.archive.segments import ArchiveLog
from streams.log.port import LogGap, MemoryLog, Record
from streams.log.reader import event_of
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from streams.pool.pool import Pool, apply, fold, initial
from streams.pool.refold import fact_of, fold_archive, fold_log, folded
from streams.pool.snapshot import Snapshot, UnusableSnapshot, dump, load, read_snapshot, write_snapshot
from tests.analysis.test_replay import PARTITIONS, TOPICS, live_run
from tests.streams.building import RUN, group
from tests.streams.test_fold import interleaved, recorded

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False), st.sampled_from([0.0, 0.25, 1.0]))
TEXTS = st.one_of(st.text(max_size=80), st.sampled_from(["", "a" * 63, "a" * 64, "naïve"]))


def one_by_one(records: list[Record]) -> dict[str, Pool]:
    pools: dict[str, Pool] = {}
    for record in records:
        try:
            event = event_of(record)
        except Undecodable:
            continue
        pools[event.run_id] = apply(pools.get(event.run_id, initial()), event)
    return pools


def shuffled_records(seed: int) -> list[Record]:
    """Records of two runs and some broken ones; order kept within each topic."""
    rng = random.Random(seed)
    lanes: dict[str, list[Record]] = {}
    for record in live_run():
        lanes.setdefault(record.topic, []).append(record)
    merged: list[Record] = []
    while lanes:
        topic = rng.choice(sorted(lanes))
        record = lanes[topic].pop(0)
        merged.append(record)
        if rng.random() < 0.1:
            merged.append(record._replace(value=record.value[:-1]))
        if rng.random() < 0.1:
            other = replace(decode(record.value), run_id="other")
            merged.append(record._replace(value=encode(other)))
        if not lanes[topic]:
            del lanes[topic]
    counts: dict[str, int] = {}
    numbered = []
    for record in merged:
        numbered.append(record._replace(offset=counts.get(record.topic, 0)))
        counts[record.topic] = counts.get(record.topic, 0) + 1
    return numbered


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9))
def test_folding_in_bulk_is_folding_one_by_one(seed: int) -> None:
    records = shuffled_records(seed)
    assert dict(folded(Snapshot(), records).pools) == one_by_one(records)
    events = interleaved(recorded(3), random.Random(seed))
    assert fold(initial(), events) == reduce(apply, events, initial())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_fold_from_a_snapshot_taken_at_any_offset_is_the_fold_from_zero(seed: int) -> None:
    records = shuffled_records(seed)
    whole, before = folded(Snapshot(), records), Snapshot()
    for cut, record in enumerate(records):
        kept = load(dump(before))
        assert kept == before, f"at {cut}"
        assert folded(kept, records[cut:]) == whole, f"at {cut}"
        before = folded(before, [record])
    assert before == whole


def test_an_archive_folds_on_from_a_snapshot_in_a_file(tmp_path: Path) -> None:
    records = live_run()
    log = ArchiveLog(tmp_path / "archive", PARTITIONS, segment_bytes=2000)
    log.mirror(records[: len(records) // 2])
    log.close()
    write_snapshot(tmp_path / "snapshot", fold_archive(tmp_path / "archive", TOPICS))
    log = ArchiveLog(tmp_path / "archive", PARTITIONS, segment_bytes=2000)
    log.mirror(records[len(records) // 2 :])
    log.close()
    counted: list[int] = []
    resumed = fold_archive(tmp_path / "archive", TOPICS, read_snapshot(tmp_path / "snapshot"), counted.append)
    assert resumed == fold_archive(tmp_path / "archive", TOPICS)
    assert dict(resumed.pools) == one_by_one(records) and sum(counted) == len(records) - len(records) // 2
    broker = MemoryLog(PARTITIONS)
    for record in records:
        broker.append_raw(record)
    assert fold_log(broker, broker.end_offsets(TOPICS)) == resumed


def test_a_hole_in_the_archive_is_named(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path, PARTITIONS, segment_bytes=500)
    for record in live_run():
        log.mirror([record])
        log.sync()
    log.close()
    files = sorted((tmp_path / "rollouts" / "0").glob("*.avro"))
    files[1].unlink()
    with pytest.raises(LogGap, match=f"rollouts-0: offsets {int(files[1].stem)} to {int(files[2].stem) - 1}"):
        fold_archive(tmp_path, INPUT_TOPICS + OUTPUT_TOPICS)


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:40] + b"x" + data[41:], lambda data: b""])
def test_a_damaged_snapshot_is_refused(spoil: object) -> None:
    with pytest.raises(UnusableSnapshot, match="fold from the beginning"):
        load(spoil(dump(folded(Snapshot(), live_run()))))


def test_a_snapshot_of_another_fold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dump(Snapshot())
    monkeypatch.setattr("streams.pool.snapshot.VERSION", 2)
    with pytest.raises(UnusableSnapshot, match="version 1"):
        load(data)


def plausible(event: Event) -> GroupHead:
    """The head that an event's own fields make."""
    return GroupHead(
        event.event_id, event.run_id, event.task_id, event.step, event.num_rollouts, event.rewards, encode(event)
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBERS, max_size=20), TEXTS, st.integers(0, 2**40), st.lists(st.integers(-100, 100), max_size=70))
def test_the_head_of_a_group_is_the_event_it_was_taken_from(
    rewards: list[float | None], text: str, step: int, codes: list[int]
) -> None:
    event = replace(
        group("t", 1, rewards),
        step=step,
        detail=text,
        worker=text[:5],
        task_id=text[:64],
        codes=(tuple(codes),) * len(rewards),
    )
    try:
        data = encode(event)
    except InvalidEvent:
        return
    found = head_of(data)
    if isinstance(found, GroupHead):
        assert found == plausible(event) and found.whole() == event and found.turn_verdicts == event.turn_verdicts
    else:
        assert found == event


def test_a_group_of_the_usual_shape_takes_the_short_way() -> None:
    assert isinstance(head_of(encode(group("multi_turn_base_7", 300, [0.5, None] * 8))), GroupHead)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255), st.integers(0, 3))
def test_the_short_way_accepts_and_refuses_what_the_long_way_does(position: int, value: int, cut: int) -> None:
    data = bytearray(encode(group("t", 1, [0.5, None, 1.0, 0.25])))
    data[position % len(data)] = value
    spoilt = bytes(data[: len(data) - cut])
    record = Record("rollouts", 0, 0, 0, RUN.encode(), spoilt)
    try:
        event = event_of(record)
    except Undecodable:
        with pytest.raises(Undecodable):
            fact_of(record)
        return
    fact = fact_of(record)
    assert fold(initial(), [event]) == fold(initial(), [fact]) or any(r != r for r in event.rewards)
    if isinstance(fact, GroupHead):
        assert isinstance(event, RolloutGroupCompleted) and encode(event)[10:] == encode(fact.whole())[10:]
