"""The human tasks of a run: seeds and held-out tasks by id, and the curriculum stages over them."""

from __future__ import annotations

from collections.abc import Iterable

from commands.config import ConfigError, RunConfig
from environments.registry import environment, load_tasks
from environments.reseed import reseed_all
from schemas.events import Task


def chosen(ids: Iterable[str], split: str, config: RunConfig) -> tuple[Task, ...]:
    """Tasks by id in the given order, or a whole split.

    Raises:
        ConfigError: an id is unknown.
        environments.interface.EnvironmentUnavailable: the data is missing.
    """
    wanted = tuple(ids)
    if not wanted:
        return load_tasks(split, config.tasks.environment)
    known = {task.task_id: task for task in load_tasks("all", config.tasks.environment)}
    unknown = [task_id for task_id in wanted if task_id not in known]
    if unknown:
        raise ConfigError(f"environment {config.tasks.environment} has no task {', '.join(unknown)}")
    return tuple(known[task_id] for task_id in wanted)


def training_tasks(config: RunConfig) -> tuple[Task, ...]:
    """Human seeds in seeding order; with ``tasks.id_seed`` their random ids are drawn anew where that is possible."""
    tasks = chosen(config.tasks.train, "train", config)
    if not config.tasks.id_seed:
        return tasks
    return reseed_all(environment(config.tasks.environment), tasks, config.tasks.id_seed)[0]


def heldout_tasks(config: RunConfig) -> tuple[Task, ...]:
    """Fixed held-out tasks; none of them may be a seed.

    Raises:
        ConfigError: a task is on both sides.
    """
    held = chosen(config.tasks.heldout, "val", config)
    both = {task.task_id for task in held} & {task.task_id for task in training_tasks(config)}
    if both:
        raise ConfigError(f"tasks.heldout: {', '.join(sorted(both))} is also trained on")
    return held
