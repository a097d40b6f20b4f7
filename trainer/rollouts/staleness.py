"""How old rollouts may be when they are learned from, and what is left out of an update. Pure.

Weights are counted by the updates applied to them: version v is what step v left, and step s learns on top of version
s - 1. The staleness of a rollout is defined once, in :func:`staleness`, and computed when its step consumes it; workers
use the same function to tell beforehand whether a rollout would still be fresh enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas import make
from schemas.events import DropReason, RolloutGroupCompleted, RolloutsDropped, TrajectoryRecorded


class StalePolicy(StrEnum):
    """What a rollout worker does whose weights are too old for the next group."""

    WAIT = "wait"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Bound:
    """What may enter an update.

    Attributes:
        max_staleness: Most updates the sampling weights may lag behind; 0 is synchronous.
        policy: ``wait``: a worker begins no group that would be too old when it is consumed. ``drop``: it begins
            whatever is planned, and what is too old is left out.
        format_hash: Hash of the format the run samples under; empty accepts every format.
        sampling_json: Sampling parameters of the run as canonical JSON; empty accepts all.
    """

    max_staleness: int = 0
    policy: StalePolicy = StalePolicy.WAIT
    format_hash: str = ""
    sampling_json: str = ""


def staleness(step: int, policy_version: int) -> int:
    """Updates between the weights that sampled a rollout and the weights that step ``step`` learns on top of.

    >>> staleness(5, 4), staleness(5, 2)
    (0, 2)
    """
    return step - 1 - policy_version


def may_begin(step: int, policy_version: int, bound: Bound) -> bool:
    """Whether a worker that holds ``policy_version`` may begin a group of a step.

    >>> may_begin(5, 3, Bound(max_staleness=1)), may_begin(6, 3, Bound(max_staleness=1))
    (True, False)
    >>> may_begin(6, 3, Bound(max_staleness=1, policy=StalePolicy.DROP))
    True
    """
    return bound.policy == StalePolicy.DROP or staleness(step, policy_version) <= bound.max_staleness


def why_dropped(
    group: RolloutGroupCompleted, bodies: Mapping[str, TrajectoryRecorded], bound: Bound
) -> DropReason | None:
    """Why a group must stay out of the update of its step, or ``None``.

    A rollout that does not say how it was sampled is refused like one that says something else.

    Args:
        group: the group.
        bodies: body by trajectory id; must hold every body of the group.
        bound: what may enter.
    """
    members = [bodies[body] for body in group.trajectory_ids]
    is_foreign = any(
        bound.format_hash not in ("", body.format_hash) or bound.sampling_json not in ("", body.sampling_json)
        for body in members
    )
    if is_foreign:
        return DropReason.FORMAT_MISMATCH
    return DropReason.STALE if staleness(group.step, group.policy_version) > bound.max_staleness else None


def sorted_out(
    groups: Sequence[RolloutGroupCompleted], bodies: Mapping[str, TrajectoryRecorded], bound: Bound
) -> tuple[list[RolloutGroupCompleted], list[RolloutsDropped]]:
    """The groups that enter an update, in their order, and one event for each that does not."""
    reasons = [why_dropped(group, bodies, bound) for group in groups]
    kept = [group for group, reason in zip(groups, reasons, strict=True) if reason is None]
    dropped = [
        make(
            RolloutsDropped,
            group.run_id,
            caused_by=group.event_id,
            step=group.step,
            task_id=group.task_id,
            group_id=group.group_id,
            reason=reason,
            num_rollouts=group.num_rollouts,
            policy_version=group.policy_version,
            staleness=staleness(group.step, group.policy_version),
        )
        for group, reason in zip(groups, reasons, strict=True)
        if reason is not None
    ]
    return kept, dropped


def is_alarming(mean_gap: float, threshold: float) -> bool:
    """Whether a mean gap of log-probabilities is more than a run allows; one that is no number always is, 0 allows all.

    >>> is_alarming(0.01, 0.1), is_alarming(0.2, 0.1), is_alarming(float("nan"), 0.1), is_alarming(9.0, 0.0)
    (False, True, True, False)
    """
    return threshold > 0 and not mean_gap <= threshold
