"""What the pool agent says next, from the pool alone. Pure.

``decide`` compares what the facts ask for with what was already said. It may be called at any time, after a crash too:
what was said is a fact of the pool and is not said again.
"""

from __future__ import annotations

import math

from schemas import Event, make
from schemas.events import BatchPlanned, BoundaryDetected, Cursor, EpochPlanned, StageStarted, TaskRetired
from streams.pool.boundary import Candidate, selected
from streams.pool.lifecycle import Retirement, plan_epoch
from streams.pool.pool import Pool


def may_decide(pool: Pool) -> bool:
    """Whether anything can be due: the cheap question, asked at every record."""
    if not pool.started_by or pool.finished:
        return False
    batch = pool.batches.get(pool.last_step)
    return batch is None or is_done(pool, batch) or pool.epochs[pool.last_epoch].first_step > pool.last_step


def decide(pool: Pool, input_cursor: tuple[Cursor, ...] = ()) -> list[Event]:
    """Events that are due now, in the order in which they must reach the log.

    Signals come before the plan that follows them and retirements before the epoch that leaves them out, so that a
    plan in the log proves that the rest is there.

    Args:
        pool: everything heard so far.
        input_cursor: what had been folded; recorded in the plans.
    """
    if not may_decide(pool):
        return []
    if pool.last_epoch < 0:
        return open_epoch(pool, 0, input_cursor, pool.started_by)
    if pool.epochs[pool.last_epoch].first_step > pool.last_step:
        return [batch_of(pool.epochs[pool.last_epoch], pool, 0, input_cursor, pool.epochs[pool.last_epoch].event_id)]
    batch = pool.batches[pool.last_step]
    if is_last_step(pool, batch.step):
        return []
    signals = due_signals(pool, batch)
    if not batch.is_last_of_epoch:
        plan = pool.epochs[batch.epoch]
        index = batch.step + 1 - plan.first_step
        return [*signals, batch_of(plan, pool, index, input_cursor, pool.steps[batch.step])]
    if pool.config.await_synthesis and (signals or len(pool.answered) < len(pool.signals)):
        return signals
    return [*signals, *open_epoch(pool, batch.epoch + 1, input_cursor, pool.steps[batch.step])]


def is_last_step(pool: Pool, step: int) -> bool:
    """Whether the settings let no step follow this one."""
    return 0 < pool.config.max_steps <= step


def is_done(pool: Pool, batch: BatchPlanned) -> bool:
    """Whether a step was applied and every group of it has ended."""
    return batch.step in pool.steps and all((batch.step, task_id) in pool.ended for task_id in batch.task_ids)


def stage_at(pool: Pool, epoch: int) -> StageStarted | None:
    """The stage an epoch belongs to, if it has begun."""
    begun = [stage for first, stage in sorted(pool.stages.items()) if first <= epoch]
    return begun[-1] if begun and epoch < begun[-1].first_epoch + begun[-1].num_epochs else None


def open_epoch(pool: Pool, epoch: int, input_cursor: tuple[Cursor, ...], caused_by: str) -> list[Event]:
    """Retirements, the plan of an epoch and its first batch; nothing while the stage or its seeds are missing."""
    stage = stage_at(pool, epoch)
    decision = plan_epoch(pool, stage, epoch) if stage else None
    if decision is None or not decision.order:
        return []
    plan = make(
        EpochPlanned,
        pool.run_id,
        caused_by=caused_by,
        epoch=epoch,
        stage=stage.stage,
        first_step=pool.last_step + 1,
        num_steps=math.ceil(len(decision.order) / pool.config.batch_size),
        injected=decision.injected,
        retired=tuple(r.task_id for r in decision.retired),
        order=decision.order,
        num_human=decision.num_human,
        num_generated=decision.num_generated,
        num_queued=decision.num_queued,
        input_cursor=input_cursor,
    )
    gone = [
        retired_event(pool, retirement, epoch)
        for retirement in decision.retired
        if retirement.task_id not in pool.retired
    ]
    return [*gone, plan, batch_of(plan, pool, 0, input_cursor, plan.event_id)]


def retired_event(pool: Pool, retirement: Retirement, epoch: int) -> TaskRetired:
    """The event of one retirement, with the numbers behind it."""
    seen = pool.observations.get(retirement.task_id, ())
    cause = pool.ended[seen[-1].step, retirement.task_id] if seen else pool.tasks[retirement.task_id].event_id
    return make(
        TaskRetired,
        pool.run_id,
        caused_by=cause,
        task_id=retirement.task_id,
        reason=retirement.reason,
        epoch=epoch,
        evidence=seen[-1] if seen else None,
        num_observations=len(seen),
        first_mean=seen[0].mean if seen else None,
    )


def batch_of(
    plan: EpochPlanned, pool: Pool, index: int, input_cursor: tuple[Cursor, ...], caused_by: str
) -> BatchPlanned:
    """Batch ``index`` of an epoch: the next slice of its order."""
    size = pool.config.batch_size
    return make(
        BatchPlanned,
        pool.run_id,
        caused_by=caused_by,
        step=plan.first_step + index,
        epoch=plan.epoch,
        task_ids=plan.order[index * size : (index + 1) * size],
        is_last_of_epoch=index == plan.num_steps - 1,
        input_cursor=input_cursor,
    )


def due_signals(pool: Pool, batch: BatchPlanned) -> list[BoundaryDetected]:
    """Signals of a finished step that were not sent yet: per category, the best rested boundary tasks of the batch.

    The last epoch of a stage or of the run sends none, for no later epoch could take the variants in.
    """
    stage, epoch = stage_at(pool, batch.epoch), pool.epochs[batch.epoch]
    if pool.config.static_pool or stage is None or not stage.synthesis or stage_at(pool, batch.epoch + 1) is None:
        return []
    if is_last_step(pool, epoch.first_step + epoch.num_steps - 1):
        return []
    candidates = [c for task_id in batch.task_ids if (c := candidate_at(pool, task_id, batch)) is not None]
    chosen = selected(candidates, pool.config, draw=f"{pool.seed}\x1f{batch.step}")
    events = [signal_of(pool, candidate, rank, batch) for candidate, rank in chosen]
    return [event for event in events if event.event_id not in pool.signals]


def candidate_at(pool: Pool, task_id: str, batch: BatchPlanned) -> Candidate | None:
    """A task of the batch as a possible seed; ``None`` without an observation of this step or when too deep."""
    task = pool.tasks.get(task_id)
    if task is None:
        return None
    evidence = next((e for e in reversed(pool.observations.get(task_id, ())) if e.step == batch.step), None)
    too_deep = task.generation >= pool.config.max_generation or (
        task.generation and not pool.config.seed_from_generated
    )
    if evidence is None or too_deep:
        return None
    earlier = [step for step in pool.signalled.get(task_id, ()) if step < batch.step]
    return Candidate(task_id, task.category.value, evidence, rested=not earlier or is_rested(pool, earlier[-1], batch))


def is_rested(pool: Pool, last_step: int, batch: BatchPlanned) -> bool:
    """Whether the cooldown since a signal is over."""
    if pool.config.cooldown_unit == "epochs":
        return batch.epoch - pool.batches[last_step].epoch >= pool.config.cooldown
    return batch.step - last_step >= pool.config.cooldown


def signal_of(pool: Pool, candidate: Candidate, rank: int, batch: BatchPlanned) -> BoundaryDetected:
    """The signal of one chosen seed."""
    task = pool.tasks[candidate.task_id]
    return make(
        BoundaryDetected,
        pool.run_id,
        caused_by=pool.ended[batch.step, task.task_id],
        task_id=task.task_id,
        category=task.category,
        step=batch.step,
        epoch=batch.epoch,
        evidence=candidate.evidence,
        rank=rank,
        quota=pool.config.quota[candidate.category],
        root_task_id=task.root_task_id,
        generation=task.generation,
        policy_version=batch.step - 1,
    )
