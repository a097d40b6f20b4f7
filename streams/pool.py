"""The replay buffer as a fold of events. Pure.

``apply(pool, event)`` adds one fact. Facts are kept by their ids and never changed, so an event heard twice, late or
in another order across topics gives the same pool. A Faust agent and a replay are two callers of this function.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import singledispatch

from immutables import Map

from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Category,
    EpochPlanned,
    Event,
    Origin,
    RolloutGroupCompleted,
    RunFinished,
    RunOutcome,
    RunStarted,
    StageStarted,
    StepCompleted,
    SynthesisFailed,
    TaskRetired,
    TaskSeeded,
    TaskSynthesized,
)
from streams.boundary import evidence_of
from streams.pool_config import PoolConfig


@dataclass(frozen=True, slots=True)
class PoolTask:
    """What the pool knows of a task: facts and pointers, no body."""

    task_id: str
    category: Category
    origin: Origin
    is_protected: bool
    position: tuple[int, int, str]
    parent_task_id: str
    root_task_id: str
    generation: int
    event_id: str


@dataclass(frozen=True, slots=True)
class Pool:
    """Everything decisions are made from.

    Attributes:
        run_id: the run; empty before RunStarted.
        started_by: event_id of RunStarted.
        seed: master seed.
        config: pool settings as recorded in RunStarted.
        finished: whether the run ended for good.
        stages: StageStarted by first epoch.
        tasks: PoolTask by task id.
        observations: by task id, its evidence ordered by step.
        ended: group event_id by (step, task id), also of groups that are no observation.
        steps: event_id of StepCompleted by step.
        batches: BatchPlanned by step.
        epochs: EpochPlanned by number.
        signalled: by task id, the steps of its signals in order.
        signals: BoundaryDetected by signal id.
        answered: task id of the variant, or an empty text, by signal id.
        retired: TaskRetired by task id.
        last_epoch, last_step: highest planned, -1 and 0 before the first.
        early: groups heard before RunStarted, which says how to read them.
    """

    run_id: str = ""
    started_by: str = ""
    seed: int = 0
    config: PoolConfig = PoolConfig()
    finished: bool = False
    stages: Map = Map()
    tasks: Map = Map()
    observations: Map = Map()
    ended: Map = Map()
    steps: Map = Map()
    batches: Map = Map()
    epochs: Map = Map()
    signalled: Map = Map()
    signals: Map = Map()
    answered: Map = Map()
    retired: Map = Map()
    last_epoch: int = -1
    last_step: int = 0
    early: tuple[RolloutGroupCompleted, ...] = ()


def initial() -> Pool:
    """The pool before anything happened."""
    return Pool()


@singledispatch
def _rule(event: Event, pool: Pool) -> Pool:
    return pool


def apply(pool: Pool, event: Event) -> Pool:
    """The pool after one more event. Idempotent, and indifferent to order across topics."""
    return _rule(event, pool)


@_rule.register
def _(event: RunStarted, pool: Pool) -> Pool:
    if pool.started_by:
        return pool
    config = PoolConfig.model_validate(json.loads(event.config_json).get("pool", {}))
    early = pool.early
    pool = replace(pool, run_id=event.run_id, started_by=event.event_id, seed=event.seed, config=config, early=())
    for group in early:
        pool = apply(pool, group)
    return pool


@_rule.register
def _(event: RunFinished, pool: Pool) -> Pool:
    return replace(pool, finished=pool.finished or event.outcome is not RunOutcome.INTERRUPTED)


@_rule.register
def _(event: StageStarted, pool: Pool) -> Pool:
    return replace(pool, stages=pool.stages.set(event.first_epoch, event))


@_rule.register
def _(event: TaskSeeded, pool: Pool) -> Pool:
    task = event.task
    fact = PoolTask(
        task_id=task.task_id, category=task.category, origin=Origin.HUMAN, is_protected=event.is_protected,
        position=(0, event.position, task.task_id), parent_task_id="", root_task_id=task.task_id, generation=0,
        event_id=event.event_id,
    )
    return replace(pool, tasks=pool.tasks.set(task.task_id, fact))


@_rule.register
def _(event: TaskSynthesized, pool: Pool) -> Pool:
    task = event.task
    if task.task_id in pool.tasks:
        return pool
    fact = PoolTask(
        task_id=task.task_id, category=task.category, origin=Origin.GENERATED, is_protected=False,
        position=(event.seed_step, event.seed_rank, task.task_id), parent_task_id=event.parent_task_id,
        root_task_id=event.root_task_id, generation=event.generation, event_id=event.event_id,
    )
    answered = pool.answered.set(event.signal_id, task.task_id)
    return replace(pool, tasks=pool.tasks.set(task.task_id, fact), answered=answered)


@_rule.register
def _(event: SynthesisFailed, pool: Pool) -> Pool:
    if event.signal_id in pool.answered:
        return pool
    return replace(pool, answered=pool.answered.set(event.signal_id, ""))


@_rule.register
def _(event: RolloutGroupCompleted, pool: Pool) -> Pool:
    place = (event.step, event.task_id)
    if place in pool.ended:
        return pool
    if not pool.started_by:
        return replace(pool, early=(*pool.early, event))
    pool = replace(pool, ended=pool.ended.set(place, event.event_id))
    evidence = evidence_of(event, pool.config)
    if evidence is None:
        return pool
    known = pool.observations.get(event.task_id, ())
    ordered = tuple(sorted((*known, evidence), key=lambda item: item.step))
    return replace(pool, observations=pool.observations.set(event.task_id, ordered))


@_rule.register
def _(event: StepCompleted, pool: Pool) -> Pool:
    return replace(pool, steps=pool.steps.set(event.step, event.event_id))


@_rule.register
def _(event: BatchPlanned, pool: Pool) -> Pool:
    if event.step in pool.batches:
        return pool
    return replace(pool, batches=pool.batches.set(event.step, event), last_step=max(pool.last_step, event.step))


@_rule.register
def _(event: EpochPlanned, pool: Pool) -> Pool:
    if event.epoch in pool.epochs:
        return pool
    return replace(pool, epochs=pool.epochs.set(event.epoch, event), last_epoch=max(pool.last_epoch, event.epoch))


@_rule.register
def _(event: BoundaryDetected, pool: Pool) -> Pool:
    if event.signal_id in pool.signals:
        return pool
    steps = tuple(sorted((*pool.signalled.get(event.task_id, ()), event.step)))
    return replace(
        pool, signals=pool.signals.set(event.signal_id, event), signalled=pool.signalled.set(event.task_id, steps))


@_rule.register
def _(event: TaskRetired, pool: Pool) -> Pool:
    return replace(pool, retired=pool.retired.set(event.task_id, event))
