"""``rods``: the command line. The one file that knows every command; each imports its room when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    help="RODS Streams: train tool-use agents from an event log that also makes the training tasks.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)
console = Console()
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file; the shipped two-core run if not given.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, wins over file and environment.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
RunName = Annotated[str | None, typer.Argument(help="Run id or folder; the newest run if not given.")]


@app.command()
def run(
    config: ConfigFile = None, overrides: Overrides = None,
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
def replay(
    name: RunName = None, runs: Runs = Path("runs"), as_json: AsJson = False,
    parts: Annotated[str, typer.Option(help="decisions,learning,rewards: what to repeat.")] = "decisions,learning,rewards",
    source: Annotated[str, typer.Option("--from", help="Broker (host:port) to read from instead of the archive.")] = "",
) -> None:
    """Decide, learn and play a recorded run again; exit code 0 only if all is equal."""
    from commands import replay as command

    raise typer.Exit(0 if command.show(name, runs, source, tuple(parts.split(",")), as_json, console) else 1)


@app.command()
def fork(
    name: Annotated[str, typer.Argument(help="Run to fork: id or folder.")],
    at: Annotated[int, typer.Option("--at", help="Last step that is shared.")],
    overrides: Overrides = None, runs: Runs = Path("runs"), as_json: AsJson = False,
    retrain: Annotated[bool, typer.Option(help="Learn the recorded rollouts again under the changed settings.")] = False,
) -> None:
    """Prepare a new run that shares another's past; `rods run --resume` goes on with it."""
    from commands import fork as command
    from streams.fork import ForkMode

    mode = ForkMode.RETRAIN if retrain else ForkMode.CONTINUE
    command.show(name, at, mode, overrides or [], runs, as_json, console)


@app.command()
def rescore(
    name: RunName = None, overrides: Overrides = None, runs: Runs = Path("runs"), as_json: AsJson = False,
    verifier: Annotated[str, typer.Option(help="recorded, binary, progress or official.")] = "recorded",
) -> None:
    """What a recorded run would have been under other rewards or --set pool.key=value, without a model."""
    from commands import rescore as command

    command.show(name, command.Verifier(verifier), overrides or [], runs, as_json, console)


@app.command()
def topics(as_json: AsJson = False) -> None:
    """Every event type with its topic, key and meaning."""
    from commands import topics as command

    command.show(as_json, console)


@app.command("warm-start")
def warm_start(
    out: Annotated[Path, typer.Option(help="Folder for the policy.")], config: ConfigFile = None, overrides: Overrides = None,
    num_variants: Annotated[int, typer.Option(min=0, help="Scripted variants taught per seed.")] = 96,
) -> None:
    """Teach a small policy the reference traces of a run's training seeds; --set key=value changes the recipe."""
    from commands import warm_start as command
    from commands.config import load_config

    command.make(load_config(config, os.environ, []), out, num_variants, overrides or [], console)


@app.command("audit-tasks")
def audit_tasks(
    environment: Annotated[str, typer.Option(help="Registered environment.")] = "bfcl-v3", as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Also write every finding to this file, one JSON object a line.")] = None,
) -> None:
    """Replay every ground truth and report what cannot be right."""
    from commands import audit as command

    command.show(environment, out, as_json, console)


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
