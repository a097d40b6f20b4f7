"""``rods explain``: why a task was or was not a seed, injected or retired at a step."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from analysis.explain import UnknownMoment, explain
from analysis.index import LogIndex
from commands.options import AsJson, RunId, Runs, SourceName, console
from commands.source import FACTS, mendable, open_source, the_run
from streams.archive.scan import scanned

SHOWN_ITEMS = 12


def explain_command(
    task_id: Annotated[str, typer.Argument(metavar="TASK_ID")],
    step: Annotated[int, typer.Option("--at", min=1, help="Training step.")],
    name: SourceName = None,
    run_id: RunId = "",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Why a task was or was not a seed, injected or retired at a step, with the numbers."""
    show(task_id, step, name, run_id, runs, as_json, console)


def show(task_id: str, step: int, name: str | None, run_id: str, runs: Path, as_json: bool, console: Console) -> None:
    """Print the three answers with their numbers.

    Raises:
        ConfigError: the run has no such step or task.
    """
    source = open_source(name, runs)
    own = the_run(source, run_id)
    run = LogIndex(whole=True).add_records(map(scanned, source.records(FACTS))).run(own)
    with mendable(UnknownMoment):
        answers = explain(run, task_id, step)
    start = run.parent_at(step)
    parent = start.parent_run_id if start else ""
    if as_json:
        print(
            json.dumps(
                {"task_id": task_id, "step": step, "shared_with": parent, "answers": [asdict(a) for a in answers]}
            )
        )
        return
    console.print(f"task {task_id} after step {step}", highlight=False, markup=False, soft_wrap=True)
    if parent:
        console.print(
            f"shared with run {parent}, which decided it under its own settings; here by those of the fork",
            highlight=False,
        )
    for answer in answers:
        verdict = "[green]yes[/green]" if answer.verdict else "[red]no[/red]"
        console.print(f"{answer.question:>9}: {verdict} ", end="")
        console.print(answer.because, highlight=False, markup=False, soft_wrap=True)
        numbers = ", ".join(f"{name}={text(value)}" for name, value in answer.numbers.items())
        if numbers:
            console.print(f"           {numbers}", style="dim", highlight=False, markup=False, soft_wrap=True)


def text(value: object) -> str:
    """A number or a list of them for people."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value[-SHOWN_ITEMS:])) + "]"
    return str(value)
