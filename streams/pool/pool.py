"""The replay buffer as a fold of events. Pure.

``apply(pool, event)`` adds one fact. Facts are kept by their ids and never changed, so an event heard twice, late or
in another order across topics gives the same pool. A Faust agent and a replay are two callers of this function.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from itertools import groupby, pairwise
from typing import NamedTuple

from immutables import Map

from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Category,
    EpochPlanned,
    Event,
    Evidence,
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
from schemas.heads import GroupHead
from streams.pool.boundary import evidence_of
from streams.pool.settings import PoolConfig

GROUPS = (RolloutGroupCompleted, GroupHead)
Position = tuple[int, int, str]
"""Orders tasks: step and rank of the signal that asked for it (0 and place in the seed list for a human task), task id."""


@dataclass(frozen=True, slots=True)
class PoolTask:
    """What the pool knows of a task: facts and pointers, no body."""

    task_id: str
    category: Category
    origin: Origin
    is_protected: bool
    position: Position
    parent_task_id: str
    root_task_id: str
    generation: int
    event_id: str


class Pool(NamedTuple):
    """Everything decisions are made from.

    Attributes:
        run_id: the run; empty before RunStarted.
        started_by: event_id of RunStarted.
        seed: master seed.
        config: pool settings as recorded in RunStarted.
        finished: whether the run was completed; one that was left before may go on.
        stages: StageStarted by first epoch.
        tasks: PoolTask by task id.
        generated: position of each generated task.
        observations: by task id, its evidence ordered by step.
        ended: group event_id by (step, task id), also of groups that are no observation.
        steps: event_id of StepCompleted by step.
        batches: BatchPlanned by step.
        epochs: EpochPlanned by number.
        signalled: by task id, the steps of its signals in order.
        signals: BoundaryDetected by signal id.
        answered: task id of the variant, or an empty text, by signal id.
        retired: TaskRetired by task id.
        injected: epoch that took a generated task in, by task id.
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
    generated: Map = Map()
    observations: Map = Map()
    ended: Map = Map()
    steps: Map = Map()
    batches: Map = Map()
    epochs: Map = Map()
    signalled: Map = Map()
    signals: Map = Map()
    answered: Map = Map()
    retired: Map = Map()
    injected: Map = Map()
    last_epoch: int = -1
    last_step: int = 0
    early: tuple[RolloutGroupCompleted, ...] = ()


def initial() -> Pool:
    """The pool before anything happened."""
    return Pool()


@singledispatch
def _rule(event: Event | GroupHead, pool: Pool) -> Pool:
    return pool


def apply(pool: Pool, event: Event | GroupHead) -> Pool:
    """The pool after one more event. Idempotent, and indifferent to order across topics."""
    return _rule(event, pool)


def fold(pool: Pool, events: Iterable[Event | GroupHead]) -> Pool:
    """The pool after many events: what :func:`apply` gives one by one, with neighbouring groups in one go."""
    for are_groups, run in groupby(events, key=lambda event: isinstance(event, GROUPS)):
        if are_groups:
            pool = with_groups(pool, run)
        else:
            for event in run:
                pool = apply(pool, event)
    return pool


@_rule.register
def _(event: RunStarted, pool: Pool) -> Pool:
    if pool.started_by:
        return pool
    config = PoolConfig.model_validate(json.loads(event.config_json).get("pool", {}))
    started = pool._replace(run_id=event.run_id, started_by=event.event_id, seed=event.seed, config=config, early=())
    return with_groups(started, pool.early)


@_rule.register
def _(event: RunFinished, pool: Pool) -> Pool:
    return pool._replace(finished=pool.finished or event.outcome is RunOutcome.COMPLETED)


@_rule.register
def _(event: StageStarted, pool: Pool) -> Pool:
    return pool._replace(stages=pool.stages.set(event.first_epoch, event))


@_rule.register
def _(event: TaskSeeded, pool: Pool) -> Pool:
    task = event.task
    fact = PoolTask(
        task_id=task.task_id,
        category=task.category,
        origin=Origin.HUMAN,
        is_protected=event.is_protected,
        position=(0, event.position, task.task_id),
        parent_task_id="",
        root_task_id=task.task_id,
        generation=0,
        event_id=event.event_id,
    )
    generated = pool.generated.delete(task.task_id) if task.task_id in pool.generated else pool.generated
    return pool._replace(tasks=pool.tasks.set(task.task_id, fact), generated=generated)


@_rule.register
def _(event: TaskSynthesized, pool: Pool) -> Pool:
    task = event.task
    if task.task_id in pool.tasks:
        return pool
    fact = PoolTask(
        task_id=task.task_id,
        category=task.category,
        origin=Origin.GENERATED,
        is_protected=False,
        position=(event.seed_step, event.seed_rank, task.task_id),
        parent_task_id=event.parent_task_id,
        root_task_id=event.root_task_id,
        generation=event.generation,
        event_id=event.event_id,
    )
    return pool._replace(
        tasks=pool.tasks.set(task.task_id, fact),
        generated=pool.generated.set(task.task_id, fact.position),
        answered=pool.answered.set(event.signal_id, task.task_id),
    )


@_rule.register
def _(event: SynthesisFailed, pool: Pool) -> Pool:
    if event.signal_id in pool.answered:
        return pool
    return pool._replace(answered=pool.answered.set(event.signal_id, ""))


@_rule.register(RolloutGroupCompleted)
@_rule.register(GroupHead)
def _(event: RolloutGroupCompleted | GroupHead, pool: Pool) -> Pool:
    return with_groups(pool, (event,))


def with_groups(pool: Pool, groups: Iterable[RolloutGroupCompleted | GroupHead]) -> Pool:
    """The pool after some groups; one for a step and task that has ended already changes nothing."""
    if not pool.started_by:
        return pool._replace(early=(*pool.early, *(g.whole() if isinstance(g, GroupHead) else g for g in groups)))
    ended, observations = pool.ended.mutate(), pool.observations.mutate()
    fresh: dict[str, list[Evidence]] = {}
    for group in groups:
        place = (group.step, group.task_id)
        if place in ended:
            continue
        ended[place] = group.event_id
        evidence = evidence_of(group, pool.config)
        if evidence is not None:
            fresh.setdefault(group.task_id, []).append(evidence)
    for task_id, seen in fresh.items():
        observations[task_id] = in_order(observations.get(task_id, ()), seen)
    return pool._replace(ended=ended.finish(), observations=observations.finish())


def in_order(known: tuple[Evidence, ...], fresh: list[Evidence]) -> tuple[Evidence, ...]:
    """Evidence ordered by step, with some more pieces; of one step in the order of arrival."""
    every = (*known, *fresh)
    if all(earlier.step <= later.step for earlier, later in pairwise(every[len(known) - 1 if known else 0 :])):
        return every
    return tuple(sorted(every, key=lambda item: item.step))


@_rule.register
def _(event: StepCompleted, pool: Pool) -> Pool:
    return pool._replace(steps=pool.steps.set(event.step, event.event_id))


@_rule.register
def _(event: BatchPlanned, pool: Pool) -> Pool:
    if event.step in pool.batches:
        return pool
    return pool._replace(batches=pool.batches.set(event.step, event), last_step=max(pool.last_step, event.step))


@_rule.register
def _(event: EpochPlanned, pool: Pool) -> Pool:
    if event.epoch in pool.epochs:
        return pool
    injected = pool.injected.update(dict.fromkeys(event.injected, event.epoch))
    return pool._replace(
        epochs=pool.epochs.set(event.epoch, event), injected=injected, last_epoch=max(pool.last_epoch, event.epoch)
    )


@_rule.register
def _(event: BoundaryDetected, pool: Pool) -> Pool:
    if event.signal_id in pool.signals:
        return pool
    steps = tuple(sorted((*pool.signalled.get(event.task_id, ()), event.step)))
    return pool._replace(
        signals=pool.signals.set(event.signal_id, event), signalled=pool.signalled.set(event.task_id, steps)
    )


@_rule.register
def _(event: TaskRetired, pool: Pool) -> Pool:
    return pool._replace(retired=pool.retired.set(event.task_id, event))
