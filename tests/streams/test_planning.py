"""Planning at scale: the quick way decides what the plain reading of the rules decides, and grows linearly in its work."""

from __future__ import annotations

import hashlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning import SHAPES, pool_of
from schemas.events import Origin, RetireReason, StageStarted
from streams.pool.decide import stage_at
from streams.pool.lifecycle import (
    EpochDecision,
    Retirement,
    drift_reason,
    live_generated,
    num_to_inject,
    plan_epoch,
    pruned,
    queue_of,
    shuffled,
    unprotected_leaving,
)
from streams.pool.pool import Pool, apply, fold, initial
from streams.pool.rows import state_of
from tests.streams.scripted import play


def plain_live(pool: Pool) -> list[str]:
    if pool.last_epoch < 0:
        return []
    tasks = [pool.tasks[task_id] for task_id in pool.epochs[pool.last_epoch].order]
    return [t.task_id for t in sorted(tasks, key=lambda t: t.position) if t.origin is Origin.GENERATED]


def plain_queue(pool: Pool, epoch: int | None = None) -> list[str]:
    injected = {task_id for plan in pool.epochs.values() for task_id in plan.injected}
    waiting = [
        t
        for t in pool.tasks.values()
        if t.origin is Origin.GENERATED and t.task_id not in injected and t.task_id not in plain_left(pool, epoch)
    ]
    if pool.config.queue_order == "freshest":
        return [t.task_id for t in sorted(waiting, key=lambda t: (-t.position[0], *t.position[1:]))]
    return [t.task_id for t in sorted(waiting, key=lambda t: t.position)]


def plain_left(pool: Pool, epoch: int | None) -> set[str]:
    return {t for t, event in pool.retired.items() if epoch is None or event.epoch < epoch}


def plain_seeds(pool: Pool, stage: StageStarted) -> list[str] | None:
    if stage.task_ids:
        return None if set(stage.task_ids) - set(pool.tasks) else list(stage.task_ids)
    return [t.task_id for t in sorted(pool.tasks.values(), key=lambda t: t.position) if t.origin is Origin.HUMAN]


def plain_retirements(pool: Pool, epoch: int) -> list[Retirement]:
    if not pool.config.retirement:
        return []
    reasons = {t: drift_reason(pool.observations.get(t, ()), pool, epoch) for t in plain_live(pool)}
    leaving = [Retirement(t, reason) for t, reason in reasons.items() if reason]
    leaving += [
        Retirement(t, RetireReason.PRUNED) for t in pruned([t for t, reason in reasons.items() if not reason], pool)
    ]
    for task_id in plain_queue(pool, epoch) if pool.config.queue_expiry_epochs else []:
        batch = pool.batches.get(pool.tasks[task_id].position[0])
        if epoch - (batch.epoch if batch else -1) > pool.config.queue_expiry_epochs:
            leaving.append(Retirement(task_id, RetireReason.QUEUE_EXPIRED))
    return leaving


def plain_plan(pool: Pool, stage: StageStarted, epoch: int) -> EpochDecision | None:
    """The rules as they are told, one list after the other."""
    seeds = plain_seeds(pool, stage)
    if seeds is None:
        return None
    human = [t for t in seeds if t not in plain_left(pool, epoch)]
    leaving = [*plain_retirements(pool, epoch), *unprotected_leaving(human, pool, epoch)]
    gone = {retirement.task_id for retirement in leaving}
    human, live = [t for t in human if t not in gone], [t for t in plain_live(pool) if t not in gone]
    queue = [t for t in plain_queue(pool, epoch) if t not in gone]
    num = num_to_inject(len(queue), len(human) + len(live), len(live), pool)
    active = human + live + queue[:num]
    order = plain_order(active, pool.seed, epoch) if pool.config.shuffle else active
    return EpochDecision(
        tuple(queue[:num]), tuple(leaving), tuple(order), len(human), len(live) + num, len(queue) - num
    )


def plain_order(task_ids: list[str], seed: int, epoch: int) -> list[str]:
    return sorted(task_ids, key=lambda t: hashlib.sha256(f"{seed}\x1f{epoch}\x1f{t}".encode()).digest())


SETTINGS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(2, 5),
        "await_synthesis": st.booleans(),
        "cooldown": st.integers(0, 2),
        "cooldown_unit": st.just("epochs"),
        "injection_frac": st.sampled_from([0.1, 0.5, 1.0]),
        "max_generated": st.integers(0, 6),
        "queue_order": st.sampled_from(["fifo", "freshest"]),
        "queue_expiry_epochs": st.integers(0, 2),
        "retirement": st.booleans(),
        "protect_seeds": st.booleans(),
        "shuffle": st.booleans(),
        "stale_epochs": st.integers(0, 1),
        "quota": st.sampled_from(
            [dict.fromkeys(("base", "miss_func", "miss_param", "long_context"), n) for n in (1, 4)]
        ),
    }
)


@settings(max_examples=25, deadline=None)
@given(SETTINGS, st.integers(0, 10**6))
def test_every_epoch_of_any_run_is_planned_as_the_rules_are_told(chosen: dict, seed: int) -> None:
    def mean_of(task_id: str, step: int) -> float:
        return random.Random(f"{seed}{task_id}{step}").choice([0.0, 0.1, 0.5, 0.7, 0.9, 1.0])

    pool = initial()
    for event in play(6, 5, chosen, mean_of, fails=lambda t: t.endswith("3"))[1]:
        pool = apply(pool, event)
        stage = stage_at(pool, pool.last_epoch + 1)
        if stage is not None:
            assert plan_epoch(pool, stage, pool.last_epoch + 1) == plain_plan(pool, stage, pool.last_epoch + 1)
            every = StageStarted(**{name: getattr(stage, name) for name in stage.__slots__ if name != "task_ids"})
            assert plan_epoch(pool, every, pool.last_epoch + 1) == plain_plan(pool, every, pool.last_epoch + 1)
        assert queue_of(pool) == plain_queue(pool) and live_generated(pool) == plain_live(pool)


@given(
    st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=60), st.integers(0, 2**63 - 1), st.integers(0, 1000)
)
def test_the_shuffle_is_the_order_of_the_hashes(task_ids: list[str], seed: int, epoch: int) -> None:
    assert shuffled(task_ids, seed, epoch) == plain_order(task_ids, seed, epoch)


def test_a_variant_is_active_from_its_injection_until_it_retires() -> None:
    events = play(
        6,
        5,
        {"batch_size": 4, "await_synthesis": True, "cooldown": 0, "injection_frac": 0.5},
        lambda t, s: random.Random(f"{t}{s}").random(),
    )[1]
    pool, seen = initial(), set()
    for event in events:
        pool = fold(pool, [event])
        for task_id, task in pool.tasks.items():
            entered = task.origin is Origin.HUMAN or any(task_id in plan.injected for plan in pool.epochs.values())
            expected = "retired" if task_id in pool.retired else "active" if entered else "waiting"
            assert state_of(pool, task_id) == expected
            seen.add(expected)
    assert seen == {"retired", "active", "waiting"}


def test_the_pools_of_the_benchmark_are_planned_as_the_rules_are_told() -> None:
    for shape in SHAPES:
        pool, stage = pool_of(shape, 1500)
        assert plan_epoch(pool, stage, pool.last_epoch + 1) == plain_plan(pool, stage, pool.last_epoch + 1)
