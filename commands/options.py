"""Options that several commands share, and the console they print to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file; the shipped two-core run if not given.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value, wins over file and environment.")
]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
RunName = Annotated[str | None, typer.Argument(help="Run id or folder; the newest run if not given.")]
Source = Annotated[
    str | None,
    typer.Option("--source", help="Run id, run or archive folder, or broker host:port; the newest run if not given."),
]
RunId = Annotated[str, typer.Option("--run-id", help="Which run, where a log holds several.")]
RunOption = Annotated[str | None, typer.Option("--run", help="Run id or folder; the newest run if not given.")]
DataDir = Annotated[Path, typer.Option("--datadir", help="This worker's own folder.")]
ReadyFile = Annotated[Path | None, typer.Option("--ready-file", help="Written when the service listens.")]
