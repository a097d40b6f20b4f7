"""When a curriculum stage is over and what begins next; the event of a run's end. Pure.

A stage lasts a fixed number of epochs, or until held-out reward has converged and the gradient norm is steady
(EnvTuning's rule: move on when validation accuracy has converged and the gradient norm is steady). How long such a
stage will last is not known when it begins, and the pool plans no epoch beyond what was opened. So it is opened piece by
piece: first for ``min_epochs``, then for one epoch at a time under the names ``base+1``, ``base+2``; every piece is a
StageStarted event of its own, and the pool waits at the end of each as it does at the end of any stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas import make
from schemas.events import EvaluationCompleted, RunFinished, RunOutcome, RunStarted, StageStarted, StepCompleted

PIECE = "+"


class Advance(BaseModel):
    """When to leave a stage."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    by: Literal["epochs", "converged"] = Field(
        "epochs", description="epochs: after all epochs of the stage. converged: earlier, if nothing moves any more."
    )
    min_epochs: int = Field(1, ge=1, description="Epochs before convergence is asked for.")
    patience: int = Field(3, ge=1, description="Evaluations without a gain after which held-out reward has converged.")
    min_gain: float = Field(0.005, ge=0, description="Smallest rise of the best held-out reward that is a gain.")
    window: int = Field(8, ge=2, description="Last steps whose gradient norms must be steady.")
    max_spread: float = Field(0.5, gt=0, description="Largest standard deviation over mean of steady gradient norms.")


@dataclass(frozen=True)
class StagePlan:
    """A stage as configured.

    Attributes:
        name: Its name.
        epochs: Most epochs it may last.
        advance: When it may end earlier.
    """

    name: str
    epochs: int
    advance: Advance = Advance()


@dataclass(frozen=True)
class StageOpening:
    """What begins next.

    Attributes:
        stage: 0-based configured stage.
        name: Name of this piece of it, never used before in the run.
        num_epochs: Epochs of the piece.
    """

    stage: int
    name: str
    num_epochs: int


def has_gained(rewards: Sequence[float], patience: int, min_gain: float) -> bool:
    """Whether the last ``patience`` held-out rewards beat the best one before them; also true of too few rewards.

    >>> has_gained([.2, .4, .41, .4], 2, .05), has_gained([.2, .4, .41, .5], 2, .05), has_gained([.2, .2], 2, .05)
    (False, True, True)
    """
    before, last = rewards[:-patience], rewards[-patience:]
    return not before or max(last) - max(before) >= min_gain


def is_steady(norms: Sequence[float], window: int, max_spread: float) -> bool:
    """Whether the last ``window`` gradient norms are there, finite, and vary by at most ``max_spread`` of their mean.

    >>> is_steady([9, 1, 1.1, .9], 3, .2), is_steady([1, 2, 1], 3, .2), is_steady([1, 1], 3, .2)
    (True, False, False)
    """
    last = norms[-window:]
    if len(last) < window or not all(math.isfinite(norm) for norm in last):
        return False
    mean = math.fsum(last) / len(last)
    variance = math.fsum((norm - mean) ** 2 for norm in last) / (len(last) - 1)
    return math.sqrt(variance) <= max_spread * mean


def has_converged(rewards: Sequence[float], norms: Sequence[float], rule: Advance) -> bool:
    """Whether a stage has nothing more to gain.

    Args:
        rewards: held-out mean reward of every evaluation of the stage, in order.
        norms: gradient norm of every step of the stage that changed the weights, in order.
        rule: what counts.
    """
    return not has_gained(rewards, rule.patience, rule.min_gain) and is_steady(norms, rule.window, rule.max_spread)


def first_opening(plans: Sequence[StagePlan]) -> StageOpening:
    """How a run begins."""
    return _opening(0, plans[0])


def next_opening(
    done: StepCompleted,
    plans: Sequence[StagePlan],
    begun: Sequence[StageStarted],
    evaluations: Sequence[EvaluationCompleted],
    steps: Sequence[StepCompleted],
) -> StageOpening | None:
    """What begins behind the last step of the last opened piece; ``None`` before that, and at the end of the run.

    Args:
        done: the step behind which the question is asked.
        plans: the configured stages.
        begun: every StageStarted so far.
        evaluations: held-out evaluations of one suite, of this step too.
        steps: completed steps.
    """
    if not done.is_last_of_epoch or not begun or done.epoch + 1 < planned_epochs(begun):
        return None
    last = max(begun, key=lambda stage: stage.first_epoch)
    number = next(i for i, plan in enumerate(plans) if plan.name == configured_name(last.stage))
    pieces = [stage for stage in begun if configured_name(stage.stage) == plans[number].name]
    first_epoch, first_step = (min(getattr(p, name) for p in pieces) for name in ("first_epoch", "first_step"))
    if done.epoch + 1 - first_epoch < plans[number].epochs:
        rewards = [e.mean_reward for e in sorted(evaluations, key=lambda e: e.step) if e.step >= first_step - 1]
        norms = [
            s.metrics.get("grad_norm", math.nan)
            for s in sorted(steps, key=lambda s: s.step)
            if s.step >= first_step and s.metrics.get("num_optimizer_steps", 1)
        ]
        if not has_converged(rewards, norms, plans[number].advance):
            return StageOpening(number, f"{plans[number].name}{PIECE}{len(pieces)}", 1)
    return _opening(number + 1, plans[number + 1]) if number + 1 < len(plans) else None


def _opening(number: int, plan: StagePlan) -> StageOpening:
    is_open = plan.advance.by == "converged"
    return StageOpening(number, plan.name, min(plan.epochs, plan.advance.min_epochs) if is_open else plan.epochs)


def configured_name(name: str) -> str:
    """The stage a piece belongs to.

    >>> configured_name("base+2"), configured_name("base")
    ('base', 'base')
    """
    head, sign, tail = name.rpartition(PIECE)
    return head if sign and tail.isdigit() else name


def planned_epochs(begun: Sequence[StageStarted]) -> int:
    """Epochs opened so far."""
    return max((stage.first_epoch + stage.num_epochs for stage in begun), default=0)


def end_of_run(last: StepCompleted | RunStarted, outcome: RunOutcome, reason: str) -> RunFinished:
    """How a run ended behind its last completed step, or behind its start if there is none."""
    step, epoch = (last.step, last.epoch) if isinstance(last, StepCompleted) else (0, 0)
    return make(
        RunFinished,
        last.run_id,
        caused_by=last.event_id,
        outcome=outcome,
        step=step,
        epoch=epoch,
        reason=reason,
        weights_digest=last.weights_digest,
    )
