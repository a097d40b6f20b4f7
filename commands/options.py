"""Options that several commands share, the console they print to, and texts safe to show on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

console = Console()
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file; the shipped two-core run if not given.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value, wins over file and environment.")
]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
RunName = Annotated[str | None, typer.Argument(help="Run id or folder; the newest run if not given.")]
SourceName = Annotated[
    str | None,
    typer.Option("--source", help="Run id, run or archive folder, or broker host:port; the newest run if not given."),
]
RunId = Annotated[str, typer.Option("--run-id", help="Which run, where a log holds several.")]
RunOption = Annotated[str | None, typer.Option("--run", help="Run id or folder; the newest run if not given.")]
Model = Annotated[
    str, typer.Option(help="Folder of a transformers model, 'default', or http://host:port of a vLLM server.")
]
Greedy = Annotated[bool, typer.Option("--greedy", help="Take the likeliest tokens; one rollout a task.")]
Tokenizer = Annotated[str, typer.Option(help="Tokenizer of a served model, by folder or hub name.")]
Parser = Annotated[
    str, typer.Option(help="How messages of a chat model are read; empty: as its checkpoint says, else hermes.")
]
Seed = Annotated[int, typer.Option(help="Seed of the sampling.")]
Broker = Annotated[
    str, typer.Option("--connection", help="Broker as JSON, from the program that starts this process and outlives it.")
]
OfRun = Annotated[
    Path | None, typer.Option("--run-folder", help="Run this process belongs to: its settings, archive and journal.")
]
ReadyFile = Annotated[Path | None, typer.Option("--ready-file", help="Written when the process listens.")]


def columns(*headings: str, right: bool = False, title: str | None = None) -> Table:
    """A plain table; all columns but the first stand to the right if asked."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if right and index else "left")
    return table


def visible(text: str, keep: str = "") -> str:
    """A text of models or data as a terminal may get it: what is no printable character is spelled out.

    >>> visible("\x1b[31mred\u202e")
    '\\x1b[31mred\\u202e'

    Args:
        text: any text.
        keep: unprintable characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
