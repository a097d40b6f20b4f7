"""The life of a generated task: queue, injection, burn-in, drift, pruning, expiry."""

from __future__ import annotations

import hashlib

import pytest

from analysis.watchdog import wait_of
from schemas.events import BatchPlanned, BoundaryDetected, EpochPlanned, RetireReason, TaskRetired, TaskSynthesized
from streams.pool.lifecycle import drift_reason, num_to_inject, pruned, queue_of, shuffled
from streams.pool.pool import Pool, initial
from streams.pool.settings import PoolConfig
from tests.streams.scripted import of, play
from tests.streams.test_boundary import evidence

SETTINGS = {"batch_size": 4, "await_synthesis": True, "cooldown": 1, "cooldown_unit": "epochs", "injection_frac": 0.5}


def is_variant(task_id: str) -> bool:
    return "~" in task_id


def reasons(log: list) -> dict[str, str]:
    return {event.task_id: event.reason.value for event in of(log, TaskRetired)}


def pool_with(**settings: object) -> Pool:
    return Pool(started_by="x", config=PoolConfig(**settings))


def test_growth_without_retirement_is_the_published_one() -> None:
    active, generated, sizes = 400, 0, []
    pool = pool_with()
    for _ in range(5):
        injected = num_to_inject(10_000, active, generated, pool)
        active, generated = active + injected, generated + injected
        sizes.append(active)
    assert sizes == [480, 576, 691, 800, 800]


def test_injection_never_exceeds_the_queue_the_share_or_the_limit() -> None:
    assert num_to_inject(3, 400, 0, pool_with()) == 3
    assert num_to_inject(500, 400, 395, pool_with()) == 5
    assert num_to_inject(500, 400, 500, pool_with()) == 0
    assert num_to_inject(9, 10, 0, pool_with(static_pool=True)) == 0
    assert num_to_inject(9, 15, 0, pool_with()) == 3


@pytest.mark.parametrize(
    ("means", "settings", "reason"),
    [
        ([0.1], {}, RetireReason.BURN_IN),
        ([0.2], {}, None),
        ([0.1], {"burn_in_observations": 0}, None),
        ([0.1, 0.5], {"burn_in_observations": 2}, None),
        ([0.1, 0.1], {"burn_in_observations": 2}, RetireReason.BURN_IN),
        ([0.5, 0.96], {}, RetireReason.MASTERED),
        ([0.5, 0.95], {}, None),
        ([0.96], {}, RetireReason.MASTERED),
        ([0.5, 0.97], {"mastered_observations": 2}, None),
        ([0.5, 0.1], {}, None),
        ([0.5, 0.1, 0.19], {}, RetireReason.HARD),
        ([0.5, 0.1], {"hard_observations": 1}, RetireReason.HARD),
        ([], {}, None),
    ],
)
def test_each_reason_to_leave(means: list[float], settings: dict, reason: RetireReason | None) -> None:
    seen = [evidence(mean, step) for step, mean in enumerate(means, 1)]
    assert drift_reason(seen, pool_with(**settings), epoch=2) is reason


def test_a_task_not_observed_for_long_is_stale_when_the_setting_says_so() -> None:
    batch = BatchPlanned(event_id="", run_id="", step=1, epoch=0, task_ids=(), is_last_of_epoch=True, input_cursor=())
    pool = pool_with(stale_epochs=3)
    pool = Pool(started_by="x", config=pool.config, batches=pool.batches.set(1, batch))
    assert drift_reason([evidence(0.5)], pool, epoch=3) is None
    assert drift_reason([evidence(0.5)], pool, epoch=4) is RetireReason.STALE
    assert drift_reason([evidence(0.5)], Pool(config=PoolConfig(), batches=pool.batches), epoch=40) is None


def test_pruning_keeps_the_highest_phi_protects_the_unobserved_and_drops_the_older_of_equals() -> None:
    def mean_of(task_id: str, step: int) -> float:
        return 0.5 if not is_variant(task_id) else 0.3 + int(hashlib.sha256(task_id.encode()).hexdigest(), 16) % 5 / 10

    _, log = play(8, 6, {**SETTINGS, "max_generated": 6, "injection_frac": 1.0}, mean_of)
    assert max(plan.num_generated for plan in of(log, EpochPlanned)) == 6
    pool, _ = play(4, 3, SETTINGS, lambda t, s: 0.5)
    live = [t for t in pool.epochs[2].order if is_variant(t)]
    tight = pool._replace(config=PoolConfig(max_generated=1))
    observed = [t for t in live if pool.observations.get(t)]
    first = min(observed, key=lambda t: pool.tasks[t].position)
    assert pruned(live, tight)[0] == first
    assert set(pruned(live, tight)) <= set(observed)


def test_the_queue_is_first_in_first_out_by_step_of_the_signal_or_freshest_first() -> None:
    settings = {**SETTINGS, "injection_frac": 0.0, "queue_expiry_epochs": 0}
    pool, _ = play(8, 4, settings, lambda t, s: 0.5)
    steps = [pool.tasks[t].position[0] for t in queue_of(pool)]
    assert len(set(steps)) > 1 and steps == sorted(steps)
    pool, _ = play(8, 4, {**settings, "queue_order": "freshest"}, lambda t, s: 0.5)
    steps = [pool.tasks[t].position[0] for t in queue_of(pool)]
    assert steps == sorted(steps, reverse=True)


def test_waiting_tasks_expire_with_their_signal() -> None:
    pool, log = play(8, 7, {**SETTINGS, "injection_frac": 0.0, "queue_expiry_epochs": 2}, lambda t, s: 0.5)
    gone = list(of(log, TaskRetired))
    assert gone and {event.reason for event in gone} == {RetireReason.QUEUE_EXPIRED}
    for event in gone:
        signal_epoch = pool.batches[pool.tasks[event.task_id].position[0]].epoch
        assert event.epoch - signal_epoch == 3 and event.evidence is None


def test_a_variant_that_is_hard_at_once_burns_in_and_one_that_is_easy_is_mastered() -> None:
    def mean_of(task_id: str, step: int) -> float:
        return 0.5 if not is_variant(task_id) else (0.0 if task_id < "run-1-seed-4" else 1.0)

    _, log = play(8, 5, SETTINGS, mean_of)
    found = reasons(log)
    assert {"burn_in", "mastered"} == set(found.values())
    assert all((reason == "burn_in") == (task_id < "run-1-seed-4") for task_id, reason in found.items())


def test_human_seeds_stay_whatever_they_score_unless_unprotected_by_setting_and_task() -> None:
    for mean in (0.0, 1.0):
        pool, log = play(8, 5, SETTINGS, lambda t, s, mean=mean: mean)
        assert not of(log, TaskRetired) and len(pool.epochs[4].order) == 8
    _, log = play(8, 5, {**SETTINGS, "protect_seeds": False}, lambda t, s: 1.0)
    assert not of(log, TaskRetired), "the tasks themselves are protected"


def test_retirement_off_keeps_everything() -> None:
    _, log = play(8, 5, {**SETTINGS, "retirement": False}, lambda t, s: 0.0 if is_variant(t) else 0.5)
    assert not of(log, TaskRetired) and of(log, EpochPlanned)[-1].num_generated > 0


def test_a_retired_task_never_comes_back_and_each_variant_enters_once() -> None:
    pool, log = play(8, 8, SETTINGS, lambda t, s: 0.5 if not is_variant(t) else (s % 7) / 6)
    retired: set[str] = set()
    entered: list[str] = []
    for plan in of(log, EpochPlanned):
        retired |= set(plan.retired)
        entered += plan.injected
        assert not retired & set(plan.order)
    assert len(entered) == len(set(entered)) and retired
    assert {event.task_id for event in of(log, TaskRetired)} == retired


def test_signals_respect_quota_cooldown_and_generation() -> None:
    pool, log = play(16, 8, {**SETTINGS, "max_generation": 1, "cooldown": 3}, lambda t, s: 0.5)
    signals = of(log, BoundaryDetected)
    assert signals and all(signal.generation == 0 for signal in signals)
    last: dict[str, int] = {}
    for signal in signals:
        assert signal.epoch - last.get(signal.task_id, -9) >= 3
        last[signal.task_id] = signal.epoch
    _, log = play(16, 8, {**SETTINGS, "max_generation": 2}, lambda t, s: 0.5)
    assert max(event.generation for event in of(log, TaskSynthesized)) == 2


def test_the_last_epoch_of_a_stage_asks_for_no_variants() -> None:
    _, log = play(8, 3, SETTINGS, lambda t, s: 0.5)
    assert max(signal.epoch for signal in of(log, BoundaryDetected)) == 1


def test_the_order_of_an_epoch_is_a_permutation_drawn_from_seed_and_epoch() -> None:
    ids = [f"t{i}" for i in range(50)]
    assert sorted(shuffled(ids, 1, 0)) == sorted(ids)
    assert shuffled(ids, 1, 0) == shuffled(ids[::-1], 1, 0) != shuffled(ids, 1, 1) != shuffled(ids, 2, 0)


def test_an_epoch_is_one_pass_over_the_active_pool() -> None:
    _, log = play(10, 6, SETTINGS, lambda t, s: 0.5)
    for plan in of(log, EpochPlanned):
        batches = [b for b in of(log, BatchPlanned) if b.epoch == plan.epoch]
        assert tuple(t for batch in batches for t in batch.task_ids) == plan.order
        assert [b.step for b in batches] == list(range(plan.first_step, plan.first_step + plan.num_steps))
        assert [b.is_last_of_epoch for b in batches] == [False] * (len(batches) - 1) + [True]


def test_nothing_is_decided_before_the_run_and_its_seeds_are_known() -> None:
    from streams.pool.decide import decide
    from streams.pool.pool import apply
    from tests.streams.building import opening

    pool = initial()
    events = opening(4, 2, SETTINGS)
    for event in events[:-1]:
        pool = apply(pool, event)
        assert decide(pool) == []
    assert [type(e).__name__ for e in decide(apply(pool, events[-1]))] == ["EpochPlanned", "BatchPlanned"]


@pytest.mark.parametrize("max_steps", [1, 3, 5, 7])
def test_a_bounded_run_plans_no_step_behind_its_last_one_and_asks_for_no_variant_that_cannot_enter(
    max_steps: int,
) -> None:
    settings = {"batch_size": 2, "cooldown": 0, "max_steps": max_steps}
    whole, _ = play(4, 4, {**settings, "max_steps": 0}, lambda task_id, step: 0.5)
    pool, log = play(4, 4, settings, lambda task_id, step: 0.5)
    assert pool.last_step == max_steps < whole.last_step and wait_of(pool).event == "RunFinished"
    last = pool.epochs[pool.last_epoch]
    signals = [event for event in log if isinstance(event, BoundaryDetected)]
    assert all(signal.epoch < last.epoch for signal in signals)
    assert {batch.event_id for batch in pool.batches.values()} <= {batch.event_id for batch in whole.batches.values()}
