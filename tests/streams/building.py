"""Builds runs event by event: a scripted trainer and synthesizer without models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence

from schemas import Event, make
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Category,
    GroupStatus,
    RewardKind,
    RolloutGroupCompleted,
    RunFinished,
    RunOutcome,
    RunStarted,
    StageStarted,
    StepCompleted,
    SynthesisFailed,
    SynthesisFailure,
    Task,
    TaskSeeded,
    TaskSynthesized,
    Turn,
)

RUN = "run-1"
CATEGORIES = list(Category)


def task(task_id: str, category: Category = Category.BASE) -> Task:
    return Task(
        task_id=task_id,
        environment="none",
        environment_version="1",
        category=category,
        involved_classes=("A",),
        initial_config_json="{}",
        turns=(Turn(user_text="go", ground_truth=()),),
    )


def run_started(pool: dict | None = None, run_id: str = RUN, seed: int = 7) -> RunStarted:
    return make(
        RunStarted,
        run_id,
        config_json=json.dumps({"pool": pool or {}}),
        seed=seed,
        versions={},
        template_hash="",
        tokenizer_hash="",
        tool_schema_hash="",
        weights_digest="",
    )


def stage_started(num_epochs: int, task_ids: Sequence[str], run_id: str = RUN, synthesis: bool = True) -> StageStarted:
    return make(
        StageStarted,
        run_id,
        stage="full",
        ordinal=0,
        reward=RewardKind.PROGRESS,
        synthesis=synthesis,
        first_step=1,
        first_epoch=0,
        num_epochs=num_epochs,
        task_ids=tuple(task_ids),
    )


def seeded(task_id: str, position: int, run_id: str = RUN, is_protected: bool = True) -> TaskSeeded:
    category = CATEGORIES[position % len(CATEGORIES)]
    return make(TaskSeeded, run_id, task=task(task_id, category), position=position, is_protected=is_protected)


def group(
    task_id: str, step: int, rewards: Sequence[float | None], epoch: int = 0, run_id: str = RUN, attempt: int = 0
) -> RolloutGroupCompleted:
    valid = [r for r in rewards if r is not None and math.isfinite(r)]
    status = GroupStatus.COMPLETED if len(valid) == len(rewards) else GroupStatus.PARTIAL
    return make(
        RolloutGroupCompleted,
        run_id,
        task_id=task_id,
        step=step,
        epoch=epoch,
        attempt=attempt,
        status=status,
        policy_version=step - 1,
        num_rollouts=len(rewards),
        num_valid=len(valid),
        rewards=tuple(rewards),
        format_rewards=tuple(None for _ in rewards),
        turn_verdicts=tuple((1,) if r == 1 else (0,) for r in rewards),
        codes=tuple(() for _ in rewards),
        trajectory_ids=tuple(f"{task_id}-{step}-{i}" for i in range(len(rewards))),
    )


def constant_group(
    task_id: str, step: int, mean: float | Sequence[float | None], epoch: int = 0, run_id: str = RUN
) -> RolloutGroupCompleted:
    """A group of four equal rewards, or of the given ones."""
    return group(task_id, step, mean if isinstance(mean, Sequence) else [mean] * 4, epoch, run_id)


def step_completed(batch: BatchPlanned) -> StepCompleted:
    return make(
        StepCompleted,
        batch.run_id,
        caused_by=batch.event_id,
        step=batch.step,
        epoch=batch.epoch,
        stage="full",
        policy_version=batch.step,
        weights_digest=f"w{batch.step}",
        is_last_of_epoch=batch.is_last_of_epoch,
        num_groups=len(batch.task_ids),
        num_zero_variance=0,
        num_trajectories=4 * len(batch.task_ids),
        num_trained_tokens=0,
        group_ids=(),
        metrics={},
    )


def synthesized(signal: BoundaryDetected) -> TaskSynthesized:
    variant = task(f"{signal.root_task_id}~{signal.signal_id[:8]}", signal.category)
    return make(
        TaskSynthesized,
        signal.run_id,
        caused_by=signal.event_id,
        signal_id=signal.signal_id,
        task=variant,
        parent_task_id=signal.task_id,
        root_task_id=signal.root_task_id,
        generation=signal.generation + 1,
        seed_step=signal.step,
        seed_rank=signal.rank,
        backend="none",
        num_attempts=1,
        fingerprint=signal.signal_id,
    )


def synthesis_failed(signal: BoundaryDetected) -> SynthesisFailed:
    return make(
        SynthesisFailed,
        signal.run_id,
        caused_by=signal.event_id,
        signal_id=signal.signal_id,
        task_id=signal.task_id,
        failure=SynthesisFailure.VM_EXEC_FAILED,
        detail="no",
        num_attempts=3,
        backend="none",
    )


def run_finished(step: int, epoch: int, run_id: str = RUN) -> RunFinished:
    return make(RunFinished, run_id, outcome=RunOutcome.COMPLETED, step=step, epoch=epoch, weights_digest="w")


def opening(num_seeds: int, num_epochs: int, pool: dict, run_id: str = RUN) -> list[Event]:
    """A run's first events: start, stage, seeds."""
    ids = [f"{run_id}-seed-{i}" for i in range(num_seeds)]
    return [
        run_started(pool, run_id),
        stage_started(num_epochs, ids, run_id),
        *(seeded(task_id, i, run_id) for i, task_id in enumerate(ids)),
    ]


def reply(
    event: Event, mean_of: Callable[[str, int], float], fails: Callable[[str], bool] = lambda _: False
) -> list[Event]:
    """What trainer and synthesizer answer to a planned batch or a signal."""
    if isinstance(event, BatchPlanned):
        groups = [
            constant_group(t, event.step, mean_of(t, event.step), event.epoch, event.run_id) for t in event.task_ids
        ]
        return [*groups, step_completed(event)]
    if isinstance(event, BoundaryDetected):
        return [synthesis_failed(event) if fails(event.task_id) else synthesized(event)]
    return []


def all_replies(events: Iterable[Event], mean_of: Callable[[str, int], float], **kwargs: object) -> list[Event]:
    return [answer for event in events for answer in reply(event, mean_of, **kwargs)]
