"""The human tasks of a run, seeds and held-out tasks by id; and whether every task is fit to train or judge a policy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from commands.config import ConfigError, RunConfig
from commands.options import AsJson, columns, console
from environments.audit import FAULTS, audit
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


def audit_tasks(
    environment_name: Annotated[str, typer.Option("--environment", help="Registered environment.")] = "bfcl-v3",
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write every finding to this file, one JSON object a line.")
    ] = None,
) -> None:
    """Replay every ground truth and report what cannot be right, held-out tasks against training ones."""
    held_out = {task.task_id for split in ("val", "test") for task in load_tasks(split, environment_name)}
    report = audit(environment(environment_name), load_tasks("all", environment_name), frozenset(held_out))
    names = ("task_id", "turn", "kind", "function", "is_fault", "detail")
    rows = [{name: getattr(finding, name) for name in names} for finding in report.findings]
    faults = [row for row in rows if row["is_fault"]]
    if out is not None:
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if as_json:
        figures = {"num_tasks": report.num_tasks, "num_faulty_tasks": report.num_faulty_tasks}
        print(json.dumps({**figures, "counts": report.counts(), "faults": faults}))
        return
    title = f"{report.num_tasks} tasks, {report.num_faulty_tasks} with a fault"
    table = columns("finding", "times", "tasks", "weight", title=title)
    tasks_of = Counter(kind for kind, _ in {(row["kind"], row["task_id"]) for row in rows})
    for kind, count in report.counts().items():
        table.add_row(kind, str(count), str(tasks_of[kind]), "fault" if kind in FAULTS else "note")
    console.print(table)
    for row in faults:
        text = f"{row['task_id']} turn {row['turn']}: {row['kind']} {row['function']}: {row['detail']}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
