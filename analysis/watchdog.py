"""Says what a run waits for when nothing moves. Pure: time comes in as a number.

Every wait of the loop is one condition of the pool; the first that holds is named, with ids and who owes the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streams.pool.decide import is_last_step, stage_at
from streams.pool.lifecycle import seeds_of
from streams.pool.pool import Pool

MOST_NAMES = 5
TRAINER, WORKER, SYNTHESIZER = "the trainer", "the pool worker", "the synthesizer"


@dataclass(frozen=True, slots=True)
class Wait:
    """What must come next.

    Attributes:
        event: event type.
        what: that, with ids and step, in words.
        owed_by: who says it.
    """

    event: str
    what: str
    owed_by: str

    @property
    def text(self) -> str:
        """One clause for people.

        >>> Wait("StepCompleted", "StepCompleted of step 3", TRAINER).text
        'waiting for StepCompleted of step 3 from the trainer'
        """
        return f"waiting for {self.what} from {self.owed_by}"


def named(ids: Sequence[str]) -> str:
    """The first few ids and how many more there are.

    >>> named(["a", "b"]), named(list("abcdefgh"))
    ('a, b', 'a, b, c, d, e and 3 more')
    """
    rest = len(ids) - MOST_NAMES
    return ", ".join(ids[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def wait_of(pool: Pool) -> Wait | None:
    """The condition that a run waits for; ``None`` when the run is finished."""
    if pool.finished:
        return None
    if not pool.started_by:
        return Wait("RunStarted", "RunStarted", TRAINER)
    if pool.last_epoch < 0:
        return _start(pool)
    if pool.epochs[pool.last_epoch].first_step > pool.last_step:
        return Wait("BatchPlanned", f"BatchPlanned of step {pool.last_step + 1}", WORKER)
    batch = pool.batches[pool.last_step]
    missing = [task_id for task_id in batch.task_ids if (batch.step, task_id) not in pool.ended]
    if missing:
        return Wait("RolloutGroupCompleted", f"groups {named(missing)} of step {batch.step}", TRAINER)
    if batch.step not in pool.steps:
        return Wait("StepCompleted", f"StepCompleted of step {batch.step}", TRAINER)
    if is_last_step(pool, batch.step):
        return Wait("RunFinished", f"RunFinished behind step {batch.step}, the last one", TRAINER)
    if batch.is_last_of_epoch:
        return _boundary(pool, batch.epoch + 1)
    return Wait("BatchPlanned", f"BatchPlanned of step {batch.step + 1}", WORKER)


def _start(pool: Pool) -> Wait:
    stage = stage_at(pool, 0)
    if stage is None:
        return Wait("StageStarted", "StageStarted of epoch 1", TRAINER)
    if seeds_of(pool, stage) is None:
        missing = [task_id for task_id in stage.task_ids if task_id not in pool.tasks]
        return Wait("TaskSeeded", f"TaskSeeded of {named(missing)}", TRAINER)
    return Wait("EpochPlanned", "EpochPlanned of epoch 1", WORKER)


def _boundary(pool: Pool, epoch: int) -> Wait:
    """What stands between the end of an epoch and the plan of the next, which is ``epoch``."""
    num_open = sum(signal_id not in pool.answered for signal_id in pool.signals)
    if pool.config.await_synthesis and num_open:
        return Wait("TaskSynthesized", f"outcomes of {num_open} signals", SYNTHESIZER)
    if stage_at(pool, epoch) is None:
        return Wait("RunFinished", f"RunFinished or StageStarted of epoch {epoch + 1}", TRAINER)
    return Wait("EpochPlanned", f"EpochPlanned of epoch {epoch + 1}", WORKER)


@dataclass(frozen=True, slots=True)
class Watchdog:
    """Silence of one run.

    Attributes:
        silence_s: how long nothing may come before the wait is named, seconds.
        heard_at_s: when the last event came.
    """

    silence_s: float
    heard_at_s: float

    def complaint(self, pool: Pool, now_s: float) -> str:
        """What the run has been waiting for too long, or an empty text."""
        quiet_s = now_s - self.heard_at_s
        wait = wait_of(pool) if quiet_s >= self.silence_s else None
        return f"nothing came for {quiet_s:.0f} s: {wait.text}" if wait else ""
