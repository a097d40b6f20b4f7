"""``rods why``: the chain of causes behind a task, a rollout, a step or a signal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from analysis.index import RunIndex
from analysis.lineage import Link, UnknownId, lineage
from commands.options import AsJson, RunId, Runs, SourceName, console, visible
from commands.source import LogSource, mendable, open_source, the_run
from schemas.events import TrajectoryRecorded

STYLES = {
    "signal": "yellow",
    "outcome": "green",
    "rejection": "red",
    "retirement": "red",
    "injection": "cyan",
    "step": "blue",
    "drop": "red",
}
KINDS_WITH_ID = ("signal", "group", "rollout", "batch")
NEWLINE = "\n"
MOST_TEXT = 300


def why(
    wanted: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a task, trajectory, group, signal or batch, or step:NUMBER.")
    ],
    name: SourceName = None,
    run_id: RunId = "",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """The chain of causes behind a task, a rollout, a step or a signal."""
    show(wanted, name, run_id, runs, as_json, console)


def show(wanted: str, name: str | None, run_id: str, runs: Path, as_json: bool, console: Console) -> None:
    """Print the tree, or the same as JSON.

    Raises:
        ConfigError: nothing has this id.
    """
    source = open_source(name, runs)
    own = the_run(source, run_id)
    run = RunIndex(whole=True).add(event for event in source.events() if event.run_id == own)
    if wanted in run.group_of or not _is_known(run, wanted):
        run.add(bodies(source, wanted))
    with mendable(UnknownId):
        link = lineage(run, wanted)
    if as_json:
        print(json.dumps(link.as_json()))
    else:
        console.print(tree_of(link), highlight=False)


def _is_known(run: RunIndex, wanted: str) -> bool:
    return ":" in wanted or any(wanted in known for known in (run.tasks, run.pool.signals, run.firsts.ids, run.step_of))


def bodies(source: LogSource, trajectory_id: str) -> list[TrajectoryRecorded]:
    """The body of one rollout, if it was recorded."""
    found = (
        e
        for e in source.events(("trajectories",))
        if isinstance(e, TrajectoryRecorded) and e.trajectory_id == trajectory_id
    )
    return [event for event in [next(found, None)] if event is not None]


def tree_of(link: Link) -> Tree:
    """A chain for people; texts of models and data are shown as they are, never as markup."""
    tree = Tree(label(link))
    for cause in link.causes:
        tree.add(tree_of(cause))
    return tree


def label(link: Link) -> str:
    """One line of the tree, and below it what was asked and said."""
    style = STYLES.get(link.kind, "bold" if link.kind in ("task", "seed") else "default")
    shown = f" [dim]{escape(visible(link.id))}[/dim]" if link.kind in KINDS_WITH_ID and link.id else ""
    text = "".join(f"\n{start}{cut(value)}" for start, value in texts_of(link) if value)
    return f"[{style}]{link.kind}[/{style}]{shown} {escape(visible(cut(link.says) + text, keep=NEWLINE))}"


def texts_of(link: Link) -> list[tuple[str, str]]:
    """What is shown below a message, or a question to a model: (words before it, text)."""
    if link.kind == "message":
        return [("", link.facts["text"])]
    if link.kind == "completion":
        return [("asked: ", asked_text(link.facts["prompt"])), ("answered: ", link.facts["text"])]
    return []


def asked_text(prompt: str) -> str:
    """The last message of a recorded prompt; the prompt itself where it is no list of messages."""
    try:
        return str(json.loads(prompt)[-1]["content"])
    except (ValueError, LookupError, TypeError):
        return prompt


def cut(text: str) -> str:
    """The first characters of a text."""
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
