"""Judges recorded rollouts again, by playing their messages in fresh simulators under another profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from environments.evaluation import OfficialEpisode
from environments.parsing import parser
from environments.registry import environment
from environments.scoring import Reference
from schemas.events import RolloutGroupCompleted, Task, TrajectoryRecorded
from trainer.reopen import initial_policy
from trainer.repeat import played_again
from trainer.rollouts.episodes import EpisodeMaker


class Judge:
    """Gives groups new rewards.

    Args:
        checkpoints: of the run; they say how its messages are read.
        tasks: task by id.
        bodies: trajectory by id.
        official: the leaderboard's semantics instead of the progress protocol.
    """

    def __init__(
        self, checkpoints: Path, tasks: Mapping[str, Task], bodies: Mapping[str, TrajectoryRecorded], official: bool
    ) -> None:
        self._parser_name = initial_policy(checkpoints).template.parser
        self._tasks, self._bodies, self._official = tasks, bodies, official
        self._progress = EpisodeMaker(self._parser_name)

    def rescored(self, group: RolloutGroupCompleted) -> RolloutGroupCompleted:
        """The group with the rewards and verdicts of this judge; invalid rollouts stay invalid."""
        played = [
            None if reward is None else self._play(self._bodies[body], self._tasks[group.task_id])
            for reward, body in zip(group.rewards, group.trajectory_ids, strict=True)
        ]
        rewards = tuple(None if episode is None else float(episode.reward) for episode in played)
        verdicts = tuple(
            old if episode is None else episode.turn_verdicts
            for old, episode in zip(group.turn_verdicts, played, strict=True)
        )
        return replace(group, rewards=rewards, turn_verdicts=verdicts)

    def _play(self, body: TrajectoryRecorded, task: Task) -> object:
        return played_again(body, task, self._official_episode if self._official else self._progress)

    def _official_episode(self, task: Task) -> OfficialEpisode:
        world = environment(task.environment)
        return OfficialEpisode(world, task, parser(self._parser_name), Reference.of(world, task))
