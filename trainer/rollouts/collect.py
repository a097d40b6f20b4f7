"""The trainer's side of rollouts that others play: their groups come in, and those that do not come are ended.

This is the one place that decides a deadline of a group. A claimed group from which nothing was heard for too long is opened to
other workers; after the last attempt, or if nobody takes it, the trainer closes it with the rollouts that are in the log, the
missing ones recorded as invalid. The first group in the log ends its task in its step, also for the trainer: it reads its own back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from schemas import Event
from schemas.events import BatchPlanned, RolloutGroupCompleted, TrajectoryRecorded
from trainer.rollouts.dispatch import GroupKey, reopening
from trainer.rollouts.groups import group_of, unplayed
from trainer.setup import NothingCame, TrainerSetup
from trainer.view import RunView

POLL_S = 0.5
CLOSING = -1
"""The attempt number under which the trainer ends a group; no worker has it."""
logger = logging.getLogger("rods.trainer")


@dataclass(slots=True)
class Signs:
    """When something was last heard of each group, and of the batch: seconds of the setup's clock, beside what was known then."""

    heard: dict[GroupKey | int, tuple[tuple[object, ...], float]] = field(default_factory=dict)

    def silence_s(self, key: GroupKey | int, known: tuple[object, ...], now_s: float) -> float:
        """Seconds since what is known of a group last changed, or of the rollouts of a step and all later ones."""
        if key not in self.heard or self.heard[key][0] != known:
            self.heard[key] = (known, now_s)
        return now_s - self.heard[key][1]

    def answer(self, key: GroupKey | int, now_s: float) -> None:
        """Begin to wait anew, for something was said about a silence."""
        self.heard[key] = (self.heard[key][0], now_s)


def collect(setup: TrainerSetup, view: RunView, plan: BatchPlanned) -> list[RolloutGroupCompleted] | None:
    """The groups of a batch in plan order once all have ended; ``None`` if asked to stop meanwhile.

    Raises:
        NothingCame: no worker claims a group, or a group's bodies do not come.
    """
    signs = Signs()
    while not setup.should_stop():
        groups = view.recorded_groups(plan)
        if groups is not None:
            return groups
        events = overdue(setup, view, plan, signs, setup.clock())
        if events:
            setup.log.append(events)
        view.hear(setup.reader.poll(POLL_S))
        ended = sum((plan.step, task_id) in view.groups for task_id in plan.task_ids)
        setup.on_progress("rollouts", ended * setup.config.group_size, len(plan.task_ids) * setup.config.group_size)
    return None


def overdue(setup: TrainerSetup, view: RunView, plan: BatchPlanned, signs: Signs, now_s: float) -> list[Event]:
    """What must be said about the groups of a batch that are silent for too long.

    A claimed group is silent by itself. One that nobody has claimed waits for a worker: as long as another group of the batch
    is played, or anything at all is heard of rollouts, the workers are busy and not gone.

    Raises:
        NothingCame: see :func:`collect`.
    """
    waiting = [task_id for task_id in plan.task_ids if (plan.step, task_id) not in view.groups]
    claimed = [task_id for task_id in waiting if view.dispatch.claim_of((plan.step, task_id)) is not None]
    events = [event for task_id in claimed for event in _if_silent(setup, view, plan, task_id, signs, now_s)]
    quiet_s = signs.silence_s(plan.step, view.signs_of_life, now_s)
    if claimed:
        return events
    if quiet_s > setup.config.workers.group_deadline_s:
        for task_id in waiting:
            if attempt := view.dispatch.attempt_of((plan.step, task_id)):
                events += closed_group(
                    setup, view, plan, task_id, f"no worker took attempt {attempt} within {quiet_s:.0f} s"
                )
    if events:
        signs.answer(plan.step, now_s)
    elif quiet_s > setup.patience_s:
        raise NothingCame(_missing(setup, view, plan, waiting))
    return events


def _missing(setup: TrainerSetup, view: RunView, plan: BatchPlanned, waiting: list[str]) -> str:
    if waiting:
        return (
            f"run {setup.run_id}: no worker claimed the group of {waiting[0]} at step {plan.step} within "
            f"{setup.patience_s:.0f} s; is `rods rollout` running?"
        )
    groups = [view.groups[plan.step, task_id] for task_id in plan.task_ids]
    group, lost = next(
        (group, body) for group in groups for body in group.trajectory_ids if body not in view.trajectories
    )
    return (
        f"run {setup.run_id}: group {group.group_id} of {group.task_id} at step {plan.step} is there, its rollout {lost} "
        f"did not come within {setup.patience_s:.0f} s"
    )


def _if_silent(
    setup: TrainerSetup, view: RunView, plan: BatchPlanned, task_id: str, signs: Signs, now_s: float
) -> list[Event]:
    """What is said about a claimed group: nothing before its deadline, then the next attempt, or its end after the last."""
    key = (plan.step, task_id)
    attempt, claim = view.dispatch.attempt_of(key), view.dispatch.claim_of(key)
    num_bodies = sum(body.attempt == attempt for body in view.bodies_of(*key))
    silence_s = signs.silence_s(key, (attempt, claim.worker, num_bodies), now_s)
    if silence_s <= setup.config.workers.group_deadline_s:
        return []
    signs.answer(key, now_s)
    detail = f"attempt {attempt} of {claim.worker} was silent for {silence_s:.0f} s with {num_bodies} rollouts"
    if attempt + 1 < setup.config.workers.max_attempts:
        return [reopening(setup.run_id, key, attempt + 1, detail, plan.event_id)]
    return closed_group(setup, view, plan, task_id, detail)


def closed_group(setup: TrainerSetup, view: RunView, plan: BatchPlanned, task_id: str, detail: str) -> list[Event]:
    """What ends a group at its deadline: a body for each rollout that did not come, and the group, partial or failed.

    Args:
        setup: the trainer.
        view: what was heard.
        plan: the batch.
        task_id: the task.
        detail: why.
    """
    come = fullest_attempt(view.bodies_of(plan.step, task_id))
    by = setup.by(min((body.policy_version for body in come.values()), default=plan.step - 1), CLOSING)
    missing = {
        index: unplayed(plan, view.tasks[task_id], index, detail, by)
        for index in range(setup.config.group_size)
        if index not in come
    }
    members = [{**come, **missing}[index] for index in range(setup.config.group_size)]
    return [*missing.values(), group_of(plan, task_id, members, CLOSING, min_valid_frac=setup.min_valid_frac)]


def fullest_attempt(bodies: list[TrajectoryRecorded]) -> dict[int, TrajectoryRecorded]:
    """Bodies by rollout index of the attempt that came furthest; of equals the later one."""
    by_attempt: dict[int, dict[int, TrajectoryRecorded]] = {}
    for body in bodies:
        by_attempt.setdefault(body.attempt, {})[body.rollout_index] = body
    return max(by_attempt.items(), key=lambda item: (len(item[1]), item[0]), default=(0, {}))[1]
