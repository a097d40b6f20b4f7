"""Who plays what: the fold of claims, and which planned groups are free to be claimed. Pure.

A group is one task of one step. Workers claim attempts at groups in the log; the first claim of an attempt has it. Only
the trainer decides that an attempt takes too long, and says so by opening the next one. The first group in the log ends
its task in its step, for everyone; what comes later is late and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemas import event_id, make
from schemas.events import BatchPlanned, EpochPlanned, Event, GroupClaimed, GroupReopened, WeightsSynced
from trainer.rollouts.staleness import Bound, may_begin

GroupKey = tuple[int, str]
"""Step and task id."""


class Dispatch:
    """Claims, attempts and weights of one run; hearing an event twice changes nothing.

    Attributes:
        synced: Newest version by target.
    """

    def __init__(self) -> None:
        self.synced: dict[str, WeightsSynced] = {}
        self._claims: dict[tuple[GroupKey, int], GroupClaimed] = {}
        self._attempts: dict[GroupKey, int] = {}

    def hear(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case GroupClaimed():
                self._claims.setdefault(((event.step, event.task_id), event.attempt), event)
            case GroupReopened():
                key = (event.step, event.task_id)
                self._attempts[key] = max(event.attempt, self._attempts.get(key, 0))
            case WeightsSynced():
                known = self.synced.get(event.target)
                if known is None or known.policy_version < event.policy_version:
                    self.synced[event.target] = event

    def attempt_of(self, key: GroupKey) -> int:
        """The attempt that is open: 0 until the group was reopened."""
        return self._attempts.get(key, 0)

    def claim_of(self, key: GroupKey) -> GroupClaimed | None:
        """The claim that has the open attempt, if there is one."""
        return self._claims.get((key, self.attempt_of(key)))

    def held_by(self, worker: str) -> list[GroupKey]:
        """Groups whose open attempt a worker has, in order; ended ones too."""
        return sorted(
            key
            for (key, attempt), claim in self._claims.items()
            if claim.worker == worker and attempt == self.attempt_of(key)
        )

    @property
    def size(self) -> tuple[int, int]:
        """Claims that have an attempt, and attempts beyond the first: what grows while groups are played."""
        return len(self._claims), sum(self._attempts.values())

    def forget_before(self, step: int) -> None:
        """Let go of everything about the groups of earlier steps."""
        self._claims = {place: claim for place, claim in self._claims.items() if claim.step >= step}
        self._attempts = {key: attempt for key, attempt in self._attempts.items() if key[0] >= step}


def reopening(run_id: str, key: GroupKey, attempt: int, detail: str, caused_by: str = "") -> GroupReopened:
    """The event that opens an attempt at a group.

    Args:
        run_id: the run.
        key: the group.
        attempt: the attempt that may be claimed from now on.
        detail: why the one before was given up.
        caused_by: id of the batch, if the trainer opens it.
    """
    step, task_id = key
    return make(GroupReopened, run_id, caused_by=caused_by, step=step, task_id=task_id, attempt=attempt, detail=detail)


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that can be played.

    Attributes:
        plan: The batch it belongs to.
        task_id: Its task.
        attempt: Which attempt is open.
    """

    plan: BatchPlanned
    task_id: str
    attempt: int

    @property
    def key(self) -> GroupKey:
        """Step and task id."""
        return self.plan.step, self.task_id


def foreseen(step: int, plans: dict[int, BatchPlanned], epochs: dict[int, EpochPlanned]) -> BatchPlanned | None:
    """The plan of a step: as it was said, or, within an epoch whose first batch is known, as it will be said.

    Batches are slices of their epoch's order, so they are known as soon as the epoch is.

    Args:
        step: training step.
        plans: batch by step.
        epochs: epoch by number.
    """
    if step in plans:
        return plans[step]
    epoch = next((e for e in epochs.values() if e.first_step <= step < e.first_step + e.num_steps), None)
    if epoch is None or epoch.first_step not in plans:
        return None
    size, index = len(plans[epoch.first_step].task_ids), step - epoch.first_step
    return BatchPlanned(
        event_id=event_id(epoch.run_id, "BatchPlanned", step),
        run_id=epoch.run_id,
        step=step,
        epoch=epoch.epoch,
        task_ids=epoch.order[index * size : (index + 1) * size],
        is_last_of_epoch=index == epoch.num_steps - 1,
        input_cursor=(),
    )


def upcoming(
    next_step: int,
    policy_version: int,
    bound: Bound,
    plans: dict[int, BatchPlanned],
    epochs: dict[int, EpochPlanned],
    max_steps: int = 0,
) -> Iterator[BatchPlanned]:
    """Batches a worker may begin, in order of their steps.

    Args:
        next_step: the first step that is not completed.
        policy_version: version of the weights the worker holds.
        bound: how old rollouts may be.
        plans: batch by step.
        epochs: epoch by number.
        max_steps: last step of the run; 0 where only the epochs end it.
    """
    step = next_step
    while may_begin(step, policy_version, bound) and not 0 < max_steps < step:
        plan = foreseen(step, plans, epochs)
        if plan is None:
            return
        yield plan
        step += 1
