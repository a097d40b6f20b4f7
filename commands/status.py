"""``rods status``: what a run has come to, folded from its archive."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.summary import summary_of
from analysis.yields import synthesis_of
from commands.folder import find_run
from commands.run import facts_of
from commands.view import epochs_table, panel, summary_table


def synthesis_table(section: dict) -> Table:
    """The figures of synthesis that are there, for people."""
    table = Table(box=None, show_header=False, pad_edge=False, title="synthesis", title_justify="left")
    for key, value in section.items():
        if value not in (None, {}, [], 0, 0.0):
            table.add_row(key.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    return table


def show(name: str | None, runs: Path, as_json: bool, console: Console) -> None:
    """Print the panel and the summary, or both as JSON."""
    folder = find_run(name, runs)
    facts = facts_of(folder)
    summary = summary_of(facts)
    section = synthesis_of(facts)
    if as_json:
        print(json.dumps({**summary, "synthesis": section}))
        return
    console.print(panel(facts, None, "finished" if facts.finished else "not finished"))
    console.print(epochs_table(facts))
    console.print(summary_table(summary))
    console.print(synthesis_table(section))
