"""Who enters and who leaves the pool at an epoch boundary. Pure.

Order (each step sees the result of the one before): read observations, burn-in, drift, stale, prune, inject. Rules and
constants: RODS (arXiv 2606.19047), sections on the replay buffer; open points are settings of ``PoolConfig``.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.events import Evidence, Origin, RetireReason, StageStarted
from streams.pool.pool import Pool, Position


@dataclass(frozen=True, slots=True)
class Retirement:
    """A task that leaves and why."""

    task_id: str
    reason: RetireReason


@dataclass(frozen=True, slots=True)
class EpochDecision:
    """The pool of one epoch."""

    injected: tuple[str, ...]
    retired: tuple[Retirement, ...]
    order: tuple[str, ...]
    num_human: int
    num_generated: int
    num_queued: int


def seeds_of(pool: Pool, stage: StageStarted) -> list[str] | None:
    """Human tasks of a stage in seeding order, or ``None`` while some have not been heard."""
    if stage.task_ids:
        return list(stage.task_ids) if all(map(pool.tasks.__contains__, stage.task_ids)) else None
    human = [task for task in pool.tasks.values() if task.origin is Origin.HUMAN]
    return [task.task_id for task in sorted(human, key=lambda task: task.position)]


def injected_in(pool: Pool) -> set[str]:
    """Generated tasks that a plan took in."""
    return {task_id for plan in pool.epochs.values() for task_id in plan.injected}


def live_generated(pool: Pool, injected: Collection[str] | None = None) -> list[str]:
    """Generated tasks of the last planned epoch, in order of their signals.

    Args:
        pool: tasks and plans.
        injected: who was taken in; asked of the plans if ``None``.
    """
    if pool.last_epoch < 0:
        return []
    injected = injected_in(pool) if injected is None else injected
    entered = [task_id for task_id in pool.epochs[pool.last_epoch].order if task_id in injected]
    tasks = [pool.tasks[task_id] for task_id in entered if task_id in pool.tasks]
    return [task.task_id for task in sorted(tasks, key=lambda task: task.position)]


def left_before(pool: Pool, epoch: int) -> Collection[str]:
    """Tasks that had retired before an epoch is planned.

    A planner that died between its retirements and its plan finds the former in the log. They belong to the plan, which
    must come out the same.
    """
    if len(pool.retired) <= sum(len(plan.retired) for plan in pool.epochs.values()):
        return pool.retired
    ours = {task_id for task_id, event in pool.retired.items() if event.epoch >= epoch}
    return {task_id for task_id in pool.retired if task_id not in ours} if ours else pool.retired


def waiting(pool: Pool, left: Collection[str] | None = None, injected: Collection[str] | None = None) -> list[Position]:
    """Generated tasks that were neither injected nor have left, in no order that means anything.

    Args:
        pool: tasks and plans.
        left: who has left; all retired ones if ``None``.
        injected: who was taken in; asked of the plans if ``None``.
    """
    injected = injected_in(pool) if injected is None else injected
    gone = pool.retired if left is None else left
    return [
        position
        for task_id, position in pool.generated.items()
        if task_id not in injected and task_id not in gone and task_id in pool.tasks
    ]


def queue_of(pool: Pool) -> list[str]:
    """Generated tasks that were neither injected nor retired, in injection order."""
    return first_in_queue(waiting(pool), None, pool)


def freshness(position: Position) -> tuple:
    """Sorts the latest signal first, and within a step by rank."""
    return (-position[0], *position[1:])


def first_in_queue(tasks: Sequence[Position], most: int | None, pool: Pool) -> list[str]:
    """The ids of the first ``most`` waiting tasks in injection order; of all if ``None``."""
    key = freshness if pool.config.queue_order == "freshest" else None
    ordered = sorted(tasks, key=key) if most is None else heapq.nsmallest(most, tasks, key=key)
    return [task_id for _, _, task_id in ordered]


def drift_reason(observations: Sequence[Evidence], pool: Pool, epoch: int) -> RetireReason | None:
    """Why a task that is in training should leave, or ``None``.

    Args:
        observations: its evidence ordered by step.
        pool: settings and plans.
        epoch: the epoch being planned.
    """
    config = pool.config
    means = [evidence.mean for evidence in observations]
    low, high = config.alpha_low - config.zone_slack, config.alpha_retire + config.zone_slack
    trial = config.burn_in_observations
    if trial and len(means) <= trial and len(means) == trial and all(mean < low for mean in means):
        return RetireReason.BURN_IN
    if len(means) >= config.mastered_observations and all(
        mean > high for mean in means[-config.mastered_observations :]
    ):
        return RetireReason.MASTERED
    if len(means) >= config.hard_observations and all(mean < low for mean in means[-config.hard_observations :]):
        return RetireReason.HARD
    if config.stale_epochs and means and epoch - _epoch_of(pool, observations[-1].step) > config.stale_epochs:
        return RetireReason.STALE
    return None


def _epoch_of(pool: Pool, step: int) -> int:
    batch = pool.batches.get(step)
    return batch.epoch if batch else -1


def pruned(live: Sequence[str], pool: Pool) -> list[str]:
    """Tasks over the limit of live generated ones: lowest phi of the last observation first, older first among equals.

    Tasks without an observation are never pruned.
    """
    excess = len(live) - pool.config.max_generated
    if excess <= 0:
        return []
    observed = [task_id for task_id in live if pool.observations.get(task_id)]
    ranked = sorted(observed, key=lambda t: (pool.observations[t][-1].phi, pool.tasks[t].position))
    return ranked[:excess]


def retirements(live: Sequence[str], pool: Pool, epoch: int) -> list[Retirement]:
    """Live generated tasks that leave training before an epoch: drifted ones, then those over the limit."""
    if not pool.config.retirement:
        return []
    leaving: list[Retirement] = []
    for task_id in live:
        reason = drift_reason(pool.observations.get(task_id, ()), pool, epoch)
        if reason is not None:
            leaving.append(Retirement(task_id, reason))
    gone = {retirement.task_id for retirement in leaving}
    staying = [task_id for task_id in live if task_id not in gone]
    return leaving + [Retirement(task_id, RetireReason.PRUNED) for task_id in pruned(staying, pool)]


def expired(queue: Sequence[Position], pool: Pool, epoch: int) -> list[Retirement]:
    """Waiting tasks whose signal is too old, in injection order."""
    if not pool.config.retirement or not pool.config.queue_expiry_epochs:
        return []
    limit = pool.config.queue_expiry_epochs
    too_old = {step for step in {step for step, _, _ in queue} if epoch - _epoch_of(pool, step) > limit}
    old = [position for position in queue if position[0] in too_old] if too_old else []
    return [Retirement(task_id, RetireReason.QUEUE_EXPIRED) for task_id in first_in_queue(old, None, pool)]


def unprotected_leaving(seeds: Sequence[str], pool: Pool, epoch: int) -> list[Retirement]:
    """Human tasks that drift out, when the settings and the task allow it."""
    if pool.config.protect_seeds or not pool.config.retirement:
        return []
    found = []
    for task_id in seeds:
        reason = drift_reason(pool.observations.get(task_id, ()), pool, epoch)
        if reason is not None and reason is not RetireReason.BURN_IN and not pool.tasks[task_id].is_protected:
            found.append(Retirement(task_id, reason))
    return found


def num_to_inject(num_queued: int, num_active: int, num_generated: int, pool: Pool) -> int:
    """min(queue, floor(beta active), Pmax - live generated), never negative."""
    if pool.config.static_pool:
        return 0
    cap = int(pool.config.injection_frac * num_active + pool.config.zone_slack)
    return max(0, min(num_queued, cap, pool.config.max_generated - num_generated))


def shuffled(task_ids: Sequence[str], seed: int, epoch: int) -> list[str]:
    """A permutation that depends on seed, epoch and ids alone: ids sorted by a hash."""
    digests = b"".join([hashlib.sha256(f"{seed}\x1f{epoch}\x1f{task_id}".encode()).digest() for task_id in task_ids])
    words = np.frombuffer(digests, dtype=">u8").reshape(-1, 4).astype(np.uint64)
    order = np.argsort(words[:, 0], kind="stable")
    leading = words[order, 0]
    if (leading[1:] == leading[:-1]).any():
        order = np.lexsort(words.T[::-1])
    return [task_ids[index] for index in order.tolist()]


def plan_epoch(pool: Pool, stage: StageStarted, epoch: int) -> EpochDecision | None:
    """Who trains in an epoch, or ``None`` while seeds of the stage are missing."""
    seeds = seeds_of(pool, stage)
    if seeds is None:
        return None
    left, taken = left_before(pool, epoch), injected_in(pool)
    live, queue = live_generated(pool, taken), waiting(pool, left, taken)
    leaving = retirements(live, pool, epoch) + expired(queue, pool, epoch)
    human = [task_id for task_id in seeds if task_id not in left]
    leaving += unprotected_leaving(human, pool, epoch)
    gone = {retirement.task_id for retirement in leaving}
    human = [task_id for task_id in human if task_id not in gone]
    generated = [task_id for task_id in live if task_id not in gone]
    queue = [position for position in queue if position[2] not in gone]
    num = num_to_inject(len(queue), len(human) + len(generated), len(generated), pool)
    injected = first_in_queue(queue, num, pool)
    active = human + generated + injected
    order = shuffled(active, pool.seed, epoch) if pool.config.shuffle else active
    return EpochDecision(
        injected=tuple(injected),
        retired=tuple(leaving),
        order=tuple(order),
        num_human=len(human),
        num_generated=len(generated) + num,
        num_queued=len(queue) - num,
    )
