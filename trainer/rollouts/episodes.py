"""Fresh episodes of tasks, as the samplers play them."""

from __future__ import annotations

from collections.abc import Callable

from environments.episode import Episode
from environments.interface import CALL_FAILURES
from environments.parsing import parser
from environments.registry import environment
from environments.scoring import Reference
from schemas.events import Task

NewEpisode = Callable[[Task], Episode]


class UnplayableTask(ValueError):
    """A task that its environment cannot start; the text names the task."""


class EpisodeMaker:
    """Makes a fresh episode of any task of any installed environment.

    Args:
        parser_name: how messages are read; a template names its own as ``template.parser``.
        kind: class of the episodes; ``OfficialEpisode`` plays by the leaderboard's rules.
        options: switches of that class.
    """

    def __init__(self, parser_name: str, kind: type[Episode] = Episode, **options: object) -> None:
        self._parser, self._kind = parser(parser_name), kind
        self._options = options

    def __call__(self, task: Task) -> Episode:
        """A fresh episode.

        Raises:
            UnplayableTask: the environment cannot start the task or run its ground truth.
            environments.interface.EnvironmentUnavailable: the environment is not installed.
        """
        world = environment(task.environment)
        try:
            return self._kind(world, task, self._parser, Reference.of(world, task), **self._options)
        except CALL_FAILURES as error:
            raise UnplayableTask(f"task {task.task_id}: cannot start: {type(error).__name__}: {error}") from error
