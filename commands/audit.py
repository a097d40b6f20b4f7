"""``rods audit-tasks``: is every task fit to train or judge a policy?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from environments.audit import FAULTS, AuditReport, audit
from environments.registry import environment, load_tasks


def report_of(environment_name: str) -> AuditReport:
    """The audit of every task of an environment, held-out ones against training ones."""
    held_out = {task.task_id for split in ("val", "test") for task in load_tasks(split, environment_name)}
    return audit(environment(environment_name), load_tasks("all", environment_name), frozenset(held_out))


def show(environment_name: str, out: Path | None, as_json: bool, console: Console) -> None:
    """Print the findings by kind, and each fault."""
    report = report_of(environment_name)
    rows = [
        {
            "task_id": f.task_id,
            "turn": f.turn,
            "kind": f.kind.value,
            "function": f.function,
            "is_fault": f.is_fault,
            "detail": f.detail,
        }
        for f in report.findings
    ]
    if out is not None:
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if as_json:
        print(
            json.dumps(
                {
                    "num_tasks": report.num_tasks,
                    "num_faulty_tasks": report.num_faulty_tasks,
                    "counts": report.counts(),
                    "faults": [row for row in rows if row["is_fault"]],
                }
            )
        )
        return
    table = Table(
        box=None,
        pad_edge=False,
        title=f"{report.num_tasks} tasks, {report.num_faulty_tasks} with a fault",
        title_justify="left",
    )
    for heading in ("finding", "times", "tasks", "weight"):
        table.add_column(heading)
    tasks_of = Counter(kind for kind, _ in {(f.kind.value, f.task_id) for f in report.findings})
    for kind, count in report.counts().items():
        table.add_row(kind, str(count), str(tasks_of[kind]), "fault" if kind in {f.value for f in FAULTS} else "note")
    console.print(table)
    for row in rows:
        if row["is_fault"]:
            console.print(
                f"{row['task_id']} turn {row['turn']}: {row['kind']} {row['function']}: {row['detail']}",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
