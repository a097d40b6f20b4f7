"""``rods``: the command line. The one file that knows every command; each imports its room when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from commands import cli_analysis, cli_models, cli_services
from commands.options import AsJson, ConfigFile, Overrides, RunName, Runs, console

app = typer.Typer(
    help="RODS Streams: train tool-use agents from an event log that also makes the training tasks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for commands in (cli_analysis, cli_models, cli_services):
    app.add_typer(commands.app)


@app.command()
def run(
    config: ConfigFile = None,
    overrides: Overrides = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run (id or folder).")] = None,
    runs: Annotated[Path | None, typer.Option(help="Folder for run folders; wins over run.folder.")] = None,
) -> None:
    """Run the whole loop on this machine, live, to its end."""
    from commands import run as command
    from commands.config import load_config

    try:
        where = [f"run.folder={runs}"] if runs else []
        settings = load_config(config, os.environ, [*(overrides or []), *where])
        if resume:
            command.resume(resume, settings.run.folder, settings.kafka.client, console)
        else:
            command.start_new(settings, console)
    except KeyboardInterrupt:
        console.print("stopped; go on with: rods run --resume RUN (the id is in the first line above)")
        raise typer.Exit(130) from None


@app.command()
def status(name: RunName = None, runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """What a run has come to, from its archive; works while it goes on."""
    from commands import status as command

    command.show(name, runs, as_json, console)


@app.command()
def topics(as_json: AsJson = False) -> None:
    """Every event type with its topic, key and meaning."""
    from commands import topics as command

    command.show(as_json, console)


@app.command("config")
def show_config(config: ConfigFile = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Every setting with its value, meaning and source."""
    from commands import settings as command

    command.show(config, overrides or [], as_json, console)


def main() -> None:
    """Entry point; errors a person can mend are one message and exit code 2."""
    from commands.errors import MENDABLE

    try:
        app()
    except MENDABLE as error:
        Console(stderr=True).print(f"[red]rods:[/red] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
