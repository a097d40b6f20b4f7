"""How long the plan of an epoch takes over a large pool.

Three shapes of a pool of N tasks, each as the fold leaves it at the end of an epoch: ``seeds`` (N human tasks, all in
training), ``queue`` (400 human and 400 generated in training, the others waiting), ``history`` (the same 800, 200 waiting,
the others injected once and retired since).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from immutables import Map

from schemas import make
from schemas.events import (
    BatchPlanned,
    Category,
    EpochPlanned,
    Evidence,
    Origin,
    RetireReason,
    RewardKind,
    StageStarted,
    TaskRetired,
    Zone,
)
from streams.pool.lifecycle import plan_epoch
from streams.pool.pool import Pool, PoolTask

RUN = "planning"
NUM_HUMAN, NUM_LIVE, NUM_WAITING, A_EPOCH = 400, 400, 200, 80
SHAPES = ("seeds", "queue", "history")
CATEGORIES = list(Category)
SEEN = (Evidence(step=1, num_rollouts=16, num_valid=16, mean=0.5, variance=0.1, phi=1.0, zone=Zone.BOUNDARY),)


@dataclass(frozen=True, slots=True)
class Planned:
    """Seconds to plan one epoch over a pool, best of some rounds.

    Attributes:
        shape, num_tasks: the pool.
        wall_s, cpu_s: wall time, and CPU time of the thread.
        num_active: tasks the epoch trains.
    """

    shape: str
    num_tasks: int
    wall_s: float
    cpu_s: float
    num_active: int


def measure(
    sizes: Sequence[int], num_rounds: int = 3, on_done: Callable[[Planned], None] = lambda _: None
) -> list[Planned]:
    """Plan an epoch over every shape and size; ``on_done`` hears each result."""
    results = []
    for shape in SHAPES:
        for size in sizes:
            results.append(timed(shape, size, num_rounds))
            on_done(results[-1])
    return results


def timed(shape: str, num_tasks: int, num_rounds: int) -> Planned:
    """One shape and size."""
    pool, stage = pool_of(shape, num_tasks)
    wall_s, cpu_s, num_active = float("inf"), float("inf"), 0
    for _ in range(num_rounds):
        wall, cpu = time.perf_counter(), time.thread_time()
        decision = plan_epoch(pool, stage, pool.last_epoch + 1)
        wall_s, cpu_s = min(wall_s, time.perf_counter() - wall), min(cpu_s, time.thread_time() - cpu)
        num_active = len(decision.order)
    return Planned(shape, num_tasks, wall_s, cpu_s, num_active)


def pool_of(shape: str, num_tasks: int) -> tuple[Pool, StageStarted]:
    """A pool of one shape and the stage it is in."""
    num_human = num_tasks if shape == "seeds" else min(NUM_HUMAN, num_tasks)
    num_generated = num_tasks - num_human
    num_kept = {"seeds": 0, "queue": min(NUM_LIVE, num_generated), "history": max(0, num_generated - NUM_WAITING)}[
        shape
    ]
    human = [f"seed_{index}" for index in range(num_human)]
    generated = [f"seed_{index % num_human}~{index:08x}" for index in range(num_generated)]
    entered, gone = generated[:num_kept], generated[: max(0, num_kept - NUM_LIVE)]
    plans = plans_of(human, entered, gone)
    tasks = {task_id: seed(task_id, index) for index, task_id in enumerate(human)}
    variants = {task_id: variant(task_id, index, plans) for index, task_id in enumerate(generated)}
    pool = Pool(
        run_id=RUN,
        started_by="start",
        tasks=Map(tasks | variants),
        generated=Map({task_id: task.position for task_id, task in variants.items()}),
        observations=Map(dict.fromkeys([*human, *entered], SEEN)),
        epochs=Map({plan.epoch: plan for plan in plans}),
        retired=Map(dict.fromkeys(gone, retired_by(plans[-1]))),
        batches=Map({plans[-1].first_step: batch_of(plans[-1])}),
        injected=Map({task_id: plan.epoch for plan in plans for task_id in plan.injected}),
        last_epoch=plans[-1].epoch,
        last_step=plans[-1].first_step,
    )
    return pool, stage_of(human)


def seed(task_id: str, index: int) -> PoolTask:
    """A human task."""
    return PoolTask(task_id, CATEGORIES[index % 4], Origin.HUMAN, True, (0, index, task_id), "", task_id, 0, "")


def variant(task_id: str, index: int, plans: Sequence[EpochPlanned]) -> PoolTask:
    """A generated task whose signal was sent at the first step of the last epoch."""
    position = (plans[-1].first_step, index, task_id)
    return PoolTask(
        task_id, CATEGORIES[index % 4], Origin.GENERATED, False, position, "", task_id.partition("~")[0], 1, ""
    )


def plans_of(human: Sequence[str], entered: Sequence[str], gone: Sequence[str]) -> list[EpochPlanned]:
    """The epochs that took the generated tasks in; the last one trains all that are not gone."""
    chunks = [entered[at : at + A_EPOCH] for at in range(0, len(entered), A_EPOCH)] or [[]]
    return [
        make(
            EpochPlanned,
            RUN,
            epoch=epoch,
            stage="full",
            first_step=1 + 25 * epoch,
            num_steps=25,
            injected=tuple(chunk),
            retired=(),
            order=(*human, *entered[len(gone) :]) if epoch == len(chunks) - 1 else (),
            num_human=len(human),
            num_generated=len(entered) - len(gone),
            num_queued=0,
            input_cursor=(),
        )
        for epoch, chunk in enumerate(chunks)
    ]


def retired_by(plan: EpochPlanned) -> TaskRetired:
    """A retirement before an epoch; the planner asks its epoch alone."""
    return make(
        TaskRetired,
        RUN,
        task_id="",
        reason=RetireReason.MASTERED,
        epoch=plan.epoch,
        evidence=None,
        num_observations=1,
        first_mean=None,
    )


def batch_of(plan: EpochPlanned) -> BatchPlanned:
    """The first batch of an epoch."""
    return make(
        BatchPlanned,
        RUN,
        step=plan.first_step,
        epoch=plan.epoch,
        task_ids=plan.order[:32],
        is_last_of_epoch=False,
        input_cursor=(),
    )


def stage_of(human: Sequence[str]) -> StageStarted:
    """A stage with every human task."""
    return make(
        StageStarted,
        RUN,
        stage="full",
        ordinal=0,
        reward=RewardKind.PROGRESS,
        synthesis=True,
        first_step=1,
        first_epoch=0,
        num_epochs=10**6,
        task_ids=tuple(human),
    )
