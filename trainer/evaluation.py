"""Held-out evaluation: a fixed set of tasks, played by the current policy, as one event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas import make
from schemas.events import EvaluationCompleted, Task
from trainer.episodes import NewEpisode
from trainer.sampler import OnProgress, Rollout, RolloutRequest, Sampler, SamplingParams


@dataclass(frozen=True)
class Suite:
    """A named set of tasks that are never trained on.

    Attributes:
        name: Name under which the result is recorded.
        tasks: The tasks.
        num_rollouts: Rollouts per task.
    """

    name: str
    tasks: tuple[Task, ...]
    num_rollouts: int


def evaluate(
    run_id: str, suite: Suite, step: int, sampler: Sampler, params: SamplingParams, new_episode: NewEpisode,
    caused_by: str = "", on_progress: OnProgress | None = None,
) -> EvaluationCompleted:
    """Play a suite; the same weights give the same event, and the random numbers are the same at every step.

    Args:
        run_id: the run.
        suite: what to play; at least one task and one rollout.
        step: step after which it is measured.
        sampler: who plays.
        params: how to sample.
        new_episode: a fresh episode of a task.
        caused_by: id of the step's event.
        on_progress: told how many rollouts have ended.
    """
    requests = [
        RolloutRequest(task, new_episode(task), index, ("evaluation", suite.name, task.task_id, index))
        for task in suite.tasks for index in range(suite.num_rollouts)
    ]
    rollouts = sampler.rollout(requests, params, on_progress)
    categories = [request.task.category.value for request in requests]
    rewards = [_reward(rollout) for rollout in rollouts]
    return make(
        EvaluationCompleted, run_id, caused_by=caused_by, suite=suite.name, step=step, policy_version=step,
        num_tasks=len(suite.tasks), num_rollouts=suite.num_rollouts, mean_reward=float(np.mean(rewards)),
        accuracy=float(np.mean([_is_solved(rollout) for rollout in rollouts])), by_category=_means(categories, rewards),
    )


def _reward(rollout: Rollout) -> float:
    """Progress reward; a rollout that broke counts as 0, so that the denominator stays fixed."""
    reward = rollout.episode.reward
    return float(reward) if np.isfinite(reward) and not rollout.error else 0.0


def _is_solved(rollout: Rollout) -> bool:
    return not rollout.error and all(verdict == 1 for verdict in rollout.episode.turn_verdicts)


def _means(categories: Sequence[str], rewards: Sequence[float]) -> dict[str, float]:
    return {
        category: float(np.mean([reward for own, reward in zip(categories, rewards, strict=True) if own == category]))
        for category in sorted(set(categories))
    }
