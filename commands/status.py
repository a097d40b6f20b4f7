"""``rods status``: what a run has come to, folded from its archive."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from commands.folder import find_run
from commands.run import facts_of
from commands.view import epochs_table, panel, summary_table
from streams.summary import summary_of


def show(name: str | None, runs: Path, as_json: bool, console: Console) -> None:
    """Print the panel and the summary, or the summary as JSON."""
    folder = find_run(name, runs)
    facts = facts_of(folder)
    summary = summary_of(facts)
    if as_json:
        print(json.dumps(summary))
        return
    console.print(panel(facts, None, "finished" if facts.finished else "not finished"))
    console.print(epochs_table(facts))
    console.print(summary_table(summary))
