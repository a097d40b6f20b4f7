"""Stages that last a number of epochs, and stages that last until nothing moves any more."""

import pytest

from schemas import make
from schemas.events import EvaluationCompleted, RewardKind, StageStarted, StepCompleted
from trainer.curriculum import (
    Advance,
    StageOpening,
    StagePlan,
    first_opening,
    has_converged,
    has_gained,
    is_steady,
    next_opening,
    planned_epochs,
)

STEPS_PER_EPOCH = 4
RULE = Advance(by="converged", min_epochs=2, patience=2, min_gain=0.05, window=3, max_spread=0.3)
FIXED = (StagePlan("format", 1), StagePlan("base", 2), StagePlan("full", 3))
OPEN = (StagePlan("format", 1), StagePlan("base", 6, RULE), StagePlan("full", 2))


def started(opening, begun, first_step):
    return make(
        StageStarted,
        "run",
        stage=opening.name,
        ordinal=len(begun),
        reward=RewardKind.PROGRESS,
        synthesis=False,
        first_step=first_step,
        first_epoch=planned_epochs(begun),
        num_epochs=opening.num_epochs,
    )


def step_of(step, norm=1.0, num_optimizer_steps=2.0):
    return make(
        StepCompleted,
        "run",
        step=step,
        epoch=(step - 1) // STEPS_PER_EPOCH,
        stage="s",
        policy_version=step,
        weights_digest="0" * 64,
        is_last_of_epoch=step % STEPS_PER_EPOCH == 0,
        num_groups=1,
        num_zero_variance=0,
        num_trajectories=1,
        num_trained_tokens=1,
        group_ids=(),
        metrics={"grad_norm": norm, "num_optimizer_steps": num_optimizer_steps},
    )


def evaluation_of(step, reward):
    return make(
        EvaluationCompleted,
        "run",
        suite="heldout",
        step=step,
        policy_version=step,
        num_tasks=1,
        num_rollouts=1,
        mean_reward=reward,
        accuracy=0.0,
        by_category={},
    )


def run_through(plans, reward_at=lambda step: 0.5, norm_at=lambda step: 1.0):
    """(name, first epoch, epochs) of every piece of a run that asks behind every step."""
    begun, steps, evaluations = [], [], [evaluation_of(0, reward_at(0))]
    begun.append(started(first_opening(plans), begun, 1))
    for step in range(1, 200):
        steps.append(step_of(step, norm_at(step)))
        if steps[-1].is_last_of_epoch:
            evaluations.append(evaluation_of(step, reward_at(step)))
        opening = next_opening(steps[-1], plans, begun, evaluations, steps)
        if opening is not None:
            begun.append(started(opening, begun, step + 1))
        elif steps[-1].epoch + 1 == planned_epochs(begun) and steps[-1].is_last_of_epoch:
            return [(stage.stage, stage.first_epoch, stage.num_epochs) for stage in begun]
    raise AssertionError("the run never ended")


def test_fixed_stages_follow_each_other_after_their_epochs():
    assert run_through(FIXED) == [("format", 0, 1), ("base", 1, 2), ("full", 3, 3)]


def test_a_stage_that_has_converged_ends_early():
    assert run_through(OPEN) == [("format", 0, 1), ("base", 1, 2), ("full", 3, 2)]


def test_a_stage_that_still_gains_is_opened_again_epoch_by_epoch_up_to_its_most():
    rising = run_through(OPEN, reward_at=lambda step: 0.1 * step)
    assert rising == [("format", 0, 1), ("base", 1, 2), *[(f"base+{n}", 2 + n, 1) for n in range(1, 5)], ("full", 7, 2)]


def test_a_stage_that_gains_for_a_while_ends_when_it_stops_gaining():
    pieces = run_through(OPEN, reward_at=lambda step: min(step, 16) * 0.1)
    assert [name for name, *_ in pieces] == ["format", "base", "base+1", "base+2", "base+3", "full"]


def test_a_restless_gradient_keeps_a_stage_open():
    pieces = run_through(OPEN, norm_at=lambda step: 1.0 + 5.0 * (step % 2))
    assert len(pieces) == len(OPEN) + 4


def test_between_the_ends_of_pieces_nothing_begins():
    begun = [started(first_opening(FIXED), [], 1)]
    assert next_opening(step_of(3), FIXED, begun, [], []) is None
    assert next_opening(step_of(4), FIXED, begun, [], []) == StageOpening(1, "base", 2)


def test_asking_again_after_the_answer_was_recorded_begins_nothing_twice():
    begun = [started(first_opening(FIXED), [], 1)]
    begun.append(started(next_opening(step_of(4), FIXED, begun, [], []), begun, 5))
    assert next_opening(step_of(4), FIXED, begun, [], []) is None


@pytest.mark.parametrize(
    ("rewards", "norms", "converged"),
    [
        ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], True),
        ([0.5, 0.5, 0.56], [1.0, 1.0, 1.0], False),
        ([0.5, 0.6, 0.4, 0.3], [1.0, 1.0, 1.0], True),
        ([0.5, 0.5], [1.0, 1.0, 1.0], False),
        ([0.5, 0.5, 0.5], [1.0, 1.0], False),
        ([0.5, 0.5, 0.5], [1.0, 3.0, 1.0], False),
        ([0.5, 0.5, 0.5], [1.0, float("nan"), 1.0], False),
        ([], [], False),
    ],
)
def test_convergence_needs_evaluations_without_gain_and_steady_norms(rewards, norms, converged):
    assert has_converged(rewards, norms, RULE) is converged


def test_steps_that_learned_nothing_have_no_norm():
    plans = (StagePlan("base", 9, RULE), StagePlan("full", 1))
    begun = [started(first_opening(plans), [], 1)]
    silent = [step_of(step, 0.0, 0.0) for step in range(1, 9)]
    flat = [evaluation_of(step, 0.5) for step in (0, 4, 8)]
    assert next_opening(silent[-1], plans, begun, flat, silent).name == "base+1"
    loud = [step_of(step) for step in range(1, 9)]
    assert next_opening(loud[-1], plans, begun, flat, loud).name == "full"


def test_gain_and_steadiness_on_their_edges():
    assert has_gained([0.5, 0.55], 1, 0.05 - 1e-12) and not has_gained([0.5, 0.5499], 1, 0.05)
    assert is_steady([2.0] * 3, 3, 0.01) and not is_steady([], 3, 0.5)
