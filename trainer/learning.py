"""What a step learns from, and what to watch of it: the groups that may enter, one update, the figures of both."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from schemas.events import BatchPlanned, RolloutGroupCompleted
from trainer.rollouts.groups import batch_metrics, update_batch_from_events
from trainer.rollouts.staleness import is_alarming, sorted_out
from trainer.setup import TrainerSetup
from trainer.update.engine import UpdateBatch
from trainer.view import RunView

logger = logging.getLogger("rods.trainer")


def learn(
    setup: TrainerSetup, view: RunView, plan: BatchPlanned, groups: list[RolloutGroupCompleted]
) -> tuple[UpdateBatch, dict[str, float]]:
    """Update the weights from the recorded rollouts of some groups; returns what was learned from, and metrics by name."""
    config = setup.config
    batch = update_batch_from_events(
        plan.step,
        groups,
        view.trajectories,
        view.reward_of(plan.epoch, config.reward),
        normalise_std=config.normalise_std,
        leave_one_out=config.leave_one_out,
    )
    metrics = {**batch_metrics(groups, view.trajectories), **setup.engine.update(batch)}
    return batch, metrics | health(setup, view, plan, groups, metrics)


def left_in(
    setup: TrainerSetup, view: RunView, plan: BatchPlanned, groups: list[RolloutGroupCompleted]
) -> list[RolloutGroupCompleted]:
    """The groups that enter the update; each of the others is said to be dropped, and the step goes on without it.

    A step that is in the log took what it says it took, whatever would be decided today.
    """
    recorded = view.steps.get(plan.step)
    if recorded is not None:
        return [group for group in groups if group.group_id in recorded.group_ids]
    bound = setup.bound
    if view.is_taken_over(plan.step):
        bound = replace(bound, format_hash="", sampling_json="")
    kept, dropped = sorted_out(groups, view.trajectories, bound)
    setup.say(view, [event for event in dropped if event.group_id not in view.dropped])
    return kept


def health(
    setup: TrainerSetup,
    view: RunView,
    plan: BatchPlanned,
    groups: list[RolloutGroupCompleted],
    metrics: Mapping[str, float],
) -> dict[str, float]:
    """What to watch of a step's rollouts, by name; a gap between sampler and trainer above the threshold is also logged.

    ``groups`` are those that entered the update, ``metrics`` those of the update.
    """
    gap, threshold = metrics.get("logprob_gap_mean", 0.0), setup.config.logprob_gap_alarm
    is_alarm = is_alarming(gap, threshold)
    if is_alarm:
        logger.warning(
            "step %d: sampler and trainer are %.3g nats apart on average, %.3g are allowed; other weights, another "
            "precision or another temperature?",
            plan.step,
            gap,
            threshold,
        )
    return {
        "logprob_gap_alarm": float(is_alarm),
        "num_left_out_groups": float(len(plan.task_ids) - len(groups)),
        "num_late_groups": float(view.num_late_groups),
    }
