"""The fold: duplicates, late and reordered deliveries change nothing; decisions can be made again from any prefix."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.conservation import duplicate, missing
from analysis.index import RunIndex
from analysis.summary import summary_of
from schemas import BY_NAME, Event
from schemas.events import BatchPlanned, BoundaryDetected, EpochPlanned, TaskRetired
from streams.log.port import MemoryLog, beginning
from streams.pool.decide import decide
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS, PoolKeeper
from streams.pool.pool import Pool, apply, initial
from streams.pool.rows import rows_of
from tests.streams.building import RUN, opening, reply, run_finished
from tests.streams.scripted import of, play
from tests.streams.worlds import World, worlds

SETTINGS = {"batch_size": 4, "await_synthesis": True, "cooldown": 1, "cooldown_unit": "epochs", "injection_frac": 0.5}
DECIDED = (BatchPlanned, BoundaryDetected, EpochPlanned, TaskRetired)


def mean_of(task_id: str, step: int) -> float:
    return random.Random(f"{task_id}{step}").random()


def recorded(num_epochs: int = 4) -> list[Event]:
    return play(7, num_epochs, SETTINGS, mean_of, fails=lambda t: t.endswith("3"))[1]


def fold(events: list[Event]) -> Pool:
    return fold_on(initial(), events)


def fold_on(pool: Pool, events: list[Event]) -> Pool:
    for event in events:
        pool = apply(pool, event)
    return pool


def interleaved(events: list[Event], rng: random.Random) -> list[Event]:
    """Some order across topics that keeps the order within each topic, with every event heard one to three times."""
    lanes: dict[str, list[Event]] = {}
    for event in events:
        lanes.setdefault(BY_NAME[type(event).__name__].topic, []).append(event)
    merged: list[Event] = []
    while lanes:
        topic = rng.choice(sorted(lanes))
        merged.append(lanes[topic].pop(0))
        if rng.random() < 0.3:
            merged.append(rng.choice(merged))
        if not lanes[topic]:
            del lanes[topic]
    return merged


@settings(max_examples=250, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_any_interleaving_with_duplicates_folds_to_the_same_pool(world: World, rng: random.Random) -> None:
    events = world.play()[1]
    assert fold(interleaved(events, rng)) == fold(events)


def test_hearing_everything_twice_changes_nothing() -> None:
    events = recorded()
    assert fold(events + events) == fold(events)
    assert fold([e for event in events for e in (event, event)]) == fold(events)


@settings(max_examples=250, deadline=None)
@given(worlds(await_synthesis=st.just(True)), st.randoms(use_true_random=False))
def test_answers_that_arrive_in_any_order_and_again_lead_to_the_same_decisions(
    world: World, rng: random.Random
) -> None:
    disturbed, calm = world.play(rng)[1], world.play()[1]
    assert {e.event_id: said(e) for e in disturbed} == {e.event_id: said(e) for e in calm}


def said(event: Event) -> Event:
    """An event without its cause: which answer triggers a plan may differ, what it says may not."""
    return replace(event, caused_by="")


EXPIRING = World(
    4,
    3,
    {
        "batch_size": 1,
        "quota": {"base": 0, "miss_func": 0, "miss_param": 0, "long_context": 1},
        "cooldown": 0,
        "max_generated": 0,
        "queue_expiry_epochs": 1,
        "alpha_low": 0.0,
        "alpha_high": 0.05,
        "alpha_retire": 0.05,
    },
    ((0.0,),),
    0,
)
"""A variant waits in vain and retires; a crash may fall between that and the plan that leaves it out."""


@settings(max_examples=250, deadline=None)
@given(worlds())
@example(EXPIRING)
def test_a_crash_after_any_part_of_a_decision_completes_it_with_the_same_events(world: World) -> None:
    events, pool, heard = world.play()[1], initial(), set()
    for cut, event in enumerate(events):
        due = [e for e in decide(pool) if e.event_id not in heard]
        if isinstance(event, DECIDED):
            assert due == events[cut : cut + len(due)] != []
        else:
            assert due == []
        heard.add(event.event_id)
        pool = apply(pool, event)


def test_a_human_task_that_retired_just_before_a_crash_still_belongs_to_the_plan() -> None:
    start, stage, *seeds = opening(
        3, 2, {"batch_size": 4, "protect_seeds": False, "hard_observations": 1, "burn_in_observations": 0}
    )
    pool = fold([start, stage, *(replace(seed, is_protected=False) for seed in seeds)])
    plan, batch = decide(pool)
    pool = fold_on(pool, [plan, batch, *reply(batch, lambda task_id, _: 0.0 if task_id.endswith("1") else 0.5)])
    *signals, retired, following, _ = decide(pool)
    assert isinstance(retired, TaskRetired) and following.retired == (retired.task_id,)
    after_a_crash = decide(fold_on(pool, [*signals, retired]))
    assert next(e for e in after_a_crash if isinstance(e, EpochPlanned)) == following


@settings(max_examples=250, deadline=None)
@given(worlds())
def test_every_unit_ends_once_whatever_the_rewards_and_settings_are(world: World) -> None:
    pool, events = world.play()
    ledger = RunIndex().add(events)
    assert missing(ledger) == [] == duplicate(ledger)
    assert max(e.epoch for e in of(events, EpochPlanned)) == world.num_epochs - 1
    for seen in pool.observations.values():
        assert all(0 <= e.mean <= 1 and e.num_valid >= world.settings["min_valid_frac"] * e.num_rollouts for e in seen)
    active = [row for row in rows_of(pool).values() if row.state == "active"]
    assert (
        sum(row.origin == "generated" for row in active) <= world.settings["max_generated"]
        or not world.settings["retirement"]
    )


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(1, 9))
def test_the_table_of_a_live_agent_that_refolds_now_and_then_is_the_offline_fold(world: World, every: int) -> None:
    events = world.play()[1]
    partitions = dict.fromkeys([*INPUT_TOPICS, *OUTPUT_TOPICS], 1)
    log, keeper = MemoryLog(partitions, clock=lambda: 1), PoolKeeper()
    cursor = {place: 0 for place in beginning(partitions, partitions) if place.topic in INPUT_TOPICS}
    for count, event in enumerate(e for e in events if not isinstance(e, DECIDED)):
        if count % every == 0:
            keeper = PoolKeeper()
            keeper.refold(log, [0])
            log.append(keeper.due(0, RUN) if keeper.pools[0] else [])
        log.append([event])
        for record in log.read(cursor, timeout_s=0.0):
            cursor[record.place] = record.offset + 1
            log.append(keeper.hear(record).say)
    again = PoolKeeper()
    again.refold(log, [0])
    assert rows_of(again.pools[0][RUN]) == rows_of(keeper.pools[0][RUN]) == rows_of(fold(events))


def test_a_keeper_that_refolds_at_any_point_says_the_same() -> None:
    partitions = dict.fromkeys([*INPUT_TOPICS, "batches", "boundary-signals", "retirements"], 1)
    events = recorded(3)
    log, keeper, spoken = MemoryLog(partitions, clock=lambda: 1), PoolKeeper(), []
    cursor = beginning(partitions, partitions)
    for count, event in enumerate(e for e in events if not isinstance(e, DECIDED)):
        log.append([event])
        if count % 5 == 0:
            keeper = PoolKeeper()
            keeper.refold(log, [0])
            due = keeper.due(0, RUN) if keeper.pools[0] else []
            log.append(due)
            spoken += due
        for record in log.read({p: o for p, o in cursor.items() if p.topic in INPUT_TOPICS}, timeout_s=0.0):
            cursor[record.place] = record.offset + 1
            heard = keeper.hear(record)
            log.append(heard.say)
            spoken += heard.say
    strip = [(type(e).__name__, e.event_id) for e in spoken]
    assert strip == [(type(e).__name__, e.event_id) for e in events if isinstance(e, DECIDED)]
    again = PoolKeeper()
    again.refold(log, [0])
    assert rows_of(again.pools[0][RUN]) == rows_of(keeper.pools[0][RUN])


def test_conservation_counts_what_is_missing_and_what_came_twice() -> None:
    events = recorded()
    whole = RunIndex().add(events + events)
    assert missing(whole) == [] and duplicate(whole) == []
    group_event = next(e for e in events if type(e).__name__ == "RolloutGroupCompleted")
    outcome = next(e for e in events if type(e).__name__ == "TaskSynthesized")
    step = next(e for e in events if type(e).__name__ == "StepCompleted")
    lost = RunIndex().add(e for e in events if e not in (group_event, outcome, step))
    assert len(missing(lost)) == 3
    assert f"group of {group_event.task_id} at step {group_event.step}" in missing(lost)
    from tests.streams.building import group, synthesis_failed

    signal = next(e for e in events if isinstance(e, BoundaryDetected) and e.event_id == outcome.signal_id)
    again = group(group_event.task_id, group_event.step, [1.0], attempt=1)
    twice = RunIndex().add([*events, again, synthesis_failed(signal)])
    assert len(duplicate(twice)) == 2


def test_the_summary_compares_the_same_human_seeds_in_the_first_and_the_last_epoch() -> None:
    log = play(4, 3, SETTINGS, lambda t, s: (0.25 if s == 1 else 0.75) if "~" not in t else 0.4)[1]
    last = of(log, BatchPlanned)[-1]
    summary = summary_of(RunIndex().add([*log, run_finished(last.step, last.epoch), *log]))
    assert (summary["reward_first"], summary["reward_last"]) == (0.25, 0.75)
    assert summary["outcome"] == "completed" and summary["epochs"] == 3
    assert summary["conservation"]["missing"] == summary["conservation"]["duplicate"] == 0
    assert summary["tasks_injected"] > 0 and summary["injected_first_reward"] == 0.4
