"""Replay: a recorded run is decided again byte for byte, and one changed thing is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from schemas import Event, decode, encode
from schemas.events import BatchPlanned, EpochPlanned, RolloutGroupCompleted, RunStarted
from streams.keeper import INPUT_TOPICS, OUTPUT_TOPICS, PoolKeeper
from streams.log import MemoryLog, Record, beginning
from streams.replay import MISSING, Divergence, Recording, Repetition
from tests.streams.building import RUN, opening, reply
from tests.streams.test_fold import SETTINGS, mean_of

TOPICS = [*INPUT_TOPICS, *OUTPUT_TOPICS]
PARTITIONS = dict.fromkeys(TOPICS, 1)


def live_run(num_epochs: int = 3) -> list[Record]:
    """Records of a run as the keeper really decides it, cursors and all."""
    log, keeper, cursor = MemoryLog(PARTITIONS, clock=lambda: 9), PoolKeeper(), beginning(INPUT_TOPICS, PARTITIONS)
    keeper.refold(log, [0])
    log.append(opening(7, num_epochs, SETTINGS))
    while records := log.read(cursor, timeout_s=0.0):
        for record in records:
            cursor[record.place] = record.offset + 1
            heard = keeper.hear(record)
            log.append(heard.say)
            log.append([a for event in heard.say for a in reply(event, mean_of, lambda t: t.endswith("3"))])
    return [r for place in beginning(TOPICS, PARTITIONS) for r in log.read({place: 0}, 10_000, 0.0)]


def replayed(records: list[Record]) -> Divergence | None:
    return Repetition(Recording(RUN).add(records)).run(is_complete=True)


def changed(records: list[Record], kind: type, index: int, **values: object) -> list[Record]:
    """The records with one event of a type altered."""
    spots = [i for i, r in enumerate(records) if isinstance(decode(r.value), kind)]
    event: Event = replace(decode(records[spots[index]].value), **values)
    return [replace(r, value=encode(event)) if i == spots[index] else r for i, r in enumerate(records)]


def test_a_recorded_run_is_decided_again_byte_for_byte() -> None:
    records = live_run()
    assert sum(r.topic == "batches" for r in records) > 6
    assert replayed(records) is None


def test_records_heard_twice_do_not_matter() -> None:
    records = live_run()
    doubled = [*records, *(replace(r, offset=r.offset + 1000) for r in records if r.topic in OUTPUT_TOPICS)]
    assert replayed(doubled) is None


def test_another_batch_order_is_named() -> None:
    records = live_run()
    batch = [decode(r.value) for r in records if r.topic == "batches" and isinstance(decode(r.value), BatchPlanned)][2]
    difference = replayed(changed(records, BatchPlanned, 2, task_ids=batch.task_ids[::-1]))
    assert batch.event_id in difference.what and "task_ids" in difference.what


def test_another_epoch_plan_is_named() -> None:
    difference = replayed(changed(live_run(), EpochPlanned, 1, num_queued=99))
    assert "EpochPlanned" in difference.what and "num_queued" in difference.what and difference.recorded == "99"


def test_another_reward_changes_the_evidence_and_is_named_with_its_group() -> None:
    records = live_run()
    difference = replayed(changed(records, RolloutGroupCompleted, 0, rewards=(0.5, 0.5, 0.5, 0.4)))
    assert difference is not None and difference.cause


def test_another_setting_changes_the_first_plan_it_touches() -> None:
    config = json.dumps({"pool": {**SETTINGS, "batch_size": 3}})
    difference = replayed(changed(live_run(), RunStarted, 0, config_json=config))
    assert "EpochPlanned" in difference.what and "num_steps" in difference.what


def test_a_missing_or_additional_decision_is_named() -> None:
    records = live_run()
    without = [r for r in records if not (r.topic == "boundary-signals" and r.offset == 1)]
    assert replayed(without).where == MISSING
    extra = changed(records, BatchPlanned, 0, step=77, event_id="0" * 32)
    forged = [*records, *[replace(r, offset=900) for r in extra if r not in records]]
    assert "event_id of BatchPlanned" in replayed(forged).what


def test_unreadable_records_are_listed_with_their_place() -> None:
    records = live_run()
    broken = [replace(records[5], value=records[5].value[:-3]), *records]
    assert f"{records[5].topic}-0@{records[5].offset}" in Recording(RUN).add(broken).unreadable[0]


@pytest.mark.parametrize("num_plans", range(1, 9))
def test_a_run_cut_off_anywhere_replays_as_far_as_it_went(num_plans: int) -> None:
    records = live_run()
    last = Recording(RUN).add(records).plans[num_plans - 1]
    limits = {(c.topic, c.partition): c.next_offset for c in last.event.input_cursor}
    inputs = [r for r in records if r.topic in INPUT_TOPICS and r.offset < limits.get((r.topic, r.partition), 0)]
    steps = [r for r in inputs if r.topic == "steps"]
    plans = [r for r in records if r.topic == "batches" and r.offset <= last.record.offset]
    signals = [r for r in records if r.topic == "boundary-signals" and decode(r.value).step <= len(steps)]
    assert Repetition(Recording(RUN).add([*inputs, *plans, *signals])).run(is_complete=False) is None
