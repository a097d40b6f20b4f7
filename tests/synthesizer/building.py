"""Small tasks and signals for the synthesizer's tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from environments.registry import environment, load_tasks
from schemas import make
from schemas.events import BoundaryDetected, Call, Category, Evidence, Task, TaskSeeded, Turn, Zone
from synthesizer.backend import Draft
from synthesizer.execution import run

ENVIRONMENT = environment("bfcl-v3")
RUN = "run-1"
SEEDS = {task.task_id: task for task in load_tasks("train")}

Said = tuple[str, Sequence[tuple[str, Mapping[str, object]]]]
"""A user text and its reference calls."""


def call(name: str, **arguments: object) -> Call:
    """A call with canonical arguments."""
    return Call(name=name, arguments_json=json.dumps(arguments, sort_keys=True, separators=(",", ":")))


def turn(text: str, *calls: Call, restores: Sequence[str] = ()) -> Turn:
    """A user turn."""
    return Turn(user_text=text, ground_truth=calls, restored_functions=tuple(restores))


def file_task(*turns: Turn, category: Category = Category.BASE, **fields: object) -> Task:
    """A task in a directory with a.txt and an empty directory."""
    files = {"a.txt": {"type": "file", "content": "alpha beta"}, "box": {"type": "directory", "contents": {}}}
    config = {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": files}}}}
    return make_task("files", ("GorillaFileSystem",), config, turns, category, **fields)


def ticket_task(*turns: Turn, category: Category = Category.BASE, **fields: object) -> Task:
    """A task of a logged-in user with one open ticket."""
    queue = [{"id": 7001, "title": "Printer", "description": "Paper jam", "status": "Open", "priority": 2}]
    config = {"TicketAPI": {"ticket_queue": queue, "ticket_counter": 8000, "current_user": "Nora Novak"}}
    return make_task("tickets", ("TicketAPI",), config, turns, category, **fields)


def make_task(
    name: str, classes: tuple[str, ...], config: Mapping, turns: Sequence[Turn], category: Category, **fields: object
) -> Task:
    """A task of the built-in environment."""
    return Task(
        task_id=f"{name}_{category.value}",
        environment=ENVIRONMENT.name,
        environment_version=ENVIRONMENT.version,
        category=category,
        involved_classes=classes,
        initial_config_json=json.dumps(config),
        turns=tuple(turns),
        **fields,
    )


def drafted(task: Task, **fields: object) -> Draft:
    """A draft of a task with its own trace."""
    return Draft(task, run(ENVIRONMENT, task), **fields)


def seeded(task: Task, position: int = 0) -> TaskSeeded:
    """The event that brings a task into the run."""
    return make(TaskSeeded, RUN, task=task, position=position)


def signal_for(task: Task, step: int = 3, generation: int = 0) -> BoundaryDetected:
    """A boundary signal for a task."""
    evidence = Evidence(step=step, num_rollouts=4, num_valid=4, mean=0.5, variance=0.1, phi=1.0, zone=Zone.BOUNDARY)
    return make(
        BoundaryDetected,
        RUN,
        task_id=task.task_id,
        category=task.category,
        step=step,
        epoch=0,
        evidence=evidence,
        rank=1,
        quota=4,
        root_task_id=task.task_id,
        generation=generation,
        policy_version=step,
    )
