"""Held-out evaluation: a fixed set of tasks, played by the current policy, as one event."""

from __future__ import annotations

import logging
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
    """Play a suite after a step, as one event; equal weights give equal events, and every step has the same random numbers.

    The other arguments are those of :func:`play`; ``caused_by`` is the id of the step's event.
    """
    played = play(suite, sampler, params, new_episode, len(suite.wanted), on_progress)
    return make(
        EvaluationCompleted,
        run_id,
        caused_by=caused_by,
        suite=suite.name,
        step=step,
        policy_version=step,
        num_tasks=len(suite.tasks),
        num_rollouts=suite.num_rollouts,
        mean_reward=float(np.mean([each.reward for each in played])),
        accuracy=float(np.mean([each.is_right for each in played])),
        by_category={
            category: float(np.mean([each.reward for each in played if each.category == category]))
            for category in sorted({each.category for each in played})
        },
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
    """Play a suite; a rollout's random numbers depend on seed, task and number alone.

    A task that cannot start and a rollout that broke count as not solved, so that the denominator stays fixed.

    Args:
        suite: what to play; at least one task and one rollout.
        sampler: who plays.
        params: how to sample.
        new_episode: a fresh episode of a task.
        at_once: most rollouts in one call of the sampler.
        on_progress: told how many rollouts have ended.
    """
    wanted, found = suite.wanted, {}
    for first in range(0, len(wanted), at_once):
        requests = []
        for task, index in wanted[first : first + at_once]:
            try:
                key = ("evaluation", suite.name, task.task_id, index)
                requests.append(RolloutRequest(task, new_episode(task), index, key))
            except UnplayableTask as error:
                logger.warning("suite %s, %s: %s; counted as not solved", suite.name, task.task_id, error)
                found[task.task_id, index] = Played(task.task_id, task.category.value, 0.0, False, error=str(error))
        told = on_progress and (lambda ended, _, before=len(found): on_progress(before + ended, len(wanted)))
        for request, rollout in zip(requests, sampler.rollout(requests, params, told) if requests else (), strict=True):
            found[rollout.task_id, rollout.rollout_index] = _played(request.task, rollout)
    return [found[task.task_id, index] for task, index in wanted]


def _played(task: Task, rollout: Rollout) -> Played:
    episode, is_whole = rollout.episode, not rollout.error
    reward = float(episode.reward) if is_whole and np.isfinite(episode.reward) else 0.0
    is_right = is_whole and all(verdict == 1 for verdict in episode.turn_verdicts)
    return Played(task.task_id, task.category.value, reward, is_right, episode.turn_actions, rollout.error)
