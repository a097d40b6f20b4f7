"""Held-out evaluation: a fixed set of tasks, played by the current policy, as one event."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from environments.episode import Episode
from environments.evaluation import OfficialEpisode
from schemas import make
from schemas.events import EvaluationCompleted, Task
from trainer.measures import Played
from trainer.rollouts.episodes import EpisodeMaker, NewEpisode, UnplayableTask
from trainer.rollouts.sampler import OnProgress, Rollout, RolloutRequest, Sampler, SamplingParams

logger = logging.getLogger("rods.trainer")
PROFILES: dict[str, type[Episode]] = {"progress": Episode, "bfcl": OfficialEpisode}
"""Rules of play by name: the turn protocol of training, or that of the BFCL leaderboard."""


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

    @property
    def wanted(self) -> list[tuple[Task, int]]:
        """Task and number of every rollout, in order."""
        return [(task, index) for task in self.tasks for index in range(self.num_rollouts)]


def evaluate(
    run_id: str,
    suite: Suite,
    step: int,
    sampler: Sampler,
    params: SamplingParams,
    new_episode: NewEpisode,
    caused_by: str = "",
    on_progress: OnProgress | None = None,
) -> EvaluationCompleted:
    """Play a suite; the same weights give the same event, and the random numbers are the same at every step.

    A task that cannot start counts as not solved, so that the denominator stays fixed.

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
    requests, results = [], {(task.task_id, index): (0.0, False) for task, index in suite.wanted}
    for task, index in suite.wanted:
        try:
            requests.append(
                RolloutRequest(task, new_episode(task), index, ("evaluation", suite.name, task.task_id, index))
            )
        except UnplayableTask as error:
            logger.warning("suite %s, step %d, %s: %s; counted as not solved", suite.name, step, task.task_id, error)
    rollouts = sampler.rollout(requests, params, on_progress) if requests else []
    results |= {
        (rollout.task_id, rollout.rollout_index): (_reward(rollout), _is_solved(rollout)) for rollout in rollouts
    }
    rewards = [reward for reward, _ in results.values()]
    return make(
        EvaluationCompleted,
        run_id,
        caused_by=caused_by,
        suite=suite.name,
        step=step,
        policy_version=step,
        num_tasks=len(suite.tasks),
        num_rollouts=suite.num_rollouts,
        mean_reward=float(np.mean(rewards)),
        accuracy=float(np.mean([is_solved for _, is_solved in results.values()])),
        by_category=_means([task.category.value for task, _ in suite.wanted], rewards),
    )


def episodes_of(profile: str, parser_name: str) -> NewEpisode:
    """Fresh episodes under a profile."""
    return EpisodeMaker(parser_name, PROFILES[profile])


def play(
    suite: Suite,
    sampler: Sampler,
    params: SamplingParams,
    new_episode: NewEpisode,
    at_once: int = 64,
    on_progress: OnProgress | None = None,
) -> list[Played]:
    """Play a suite outside of a run; a rollout's random numbers depend on seed, task and number alone.

    Args:
        suite: what to play.
        sampler: who plays.
        params: how to sample.
        new_episode: a fresh episode of a task.
        at_once: most rollouts in one call of the sampler.
        on_progress: told how many rollouts have ended.
    """
    found: dict[tuple[str, int], Played] = {}
    waiting: list[RolloutRequest] = []
    wanted = suite.wanted
    for number, (task, index) in enumerate(wanted, 1):
        try:
            key = ("evaluation", suite.name, task.task_id, index)
            waiting.append(RolloutRequest(task, new_episode(task), index, key))
        except UnplayableTask as error:
            found[task.task_id, index] = Played(task.task_id, task.category.value, 0.0, False, error=str(error))
        if waiting and (len(waiting) == at_once or number == len(wanted)):
            rollouts = sampler.rollout(waiting, params)
            found |= {(r.task_id, r.rollout_index): _played(q.task, r) for q, r in zip(waiting, rollouts, strict=True)}
            waiting = []
            if on_progress is not None:
                on_progress(len(found), len(wanted))
    return [found[task.task_id, index] for task, index in wanted]


def _played(task: Task, rollout: Rollout) -> Played:
    return Played(
        task.task_id,
        task.category.value,
        _reward(rollout),
        _is_solved(rollout),
        rollout.episode.turn_actions,
        rollout.error,
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
