"""Commands that run one process of the system, or look after it: topics, worker, archiver, synthesizer, trainer, rollout, metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from commands.options import ConfigFile, DataDir, Overrides, ReadyFile, RunName, Runs, console

app = typer.Typer(help="Run a service.")


@app.command()
def dashboard(
    name: RunName = None,
    runs: Runs = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8900,
    live: Annotated[
        bool, typer.Option("--kafka", help="Read the topics of kafka.bootstrap_servers instead of an archive.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """A web page of a run, live or from its archive: pool, rewards, synthesis, lineage."""
    from commands import dashboard as command
    from commands.config import load_config

    command.serve(name, runs, host, port, load_config(config, os.environ, overrides or []) if live else None, console)


@app.command("init-topics")
def init_topics(config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Create the topics of a broker and register the schemas; safe to repeat."""
    from commands import service
    from commands.config import load_config

    service.init_topics(load_config(config, os.environ, overrides or []), console)


@app.command()
def worker(
    config: ConfigFile = None,
    overrides: Overrides = None,
    datadir: DataDir = Path("worker-data"),
    app_id: Annotated[
        str, typer.Option("--app-id", help="Workers with the same one share the partitions.")
    ] = "rods-pool",
    ready_file: ReadyFile = None,
) -> None:
    """Run a pool worker against kafka.bootstrap_servers."""
    from commands import service
    from commands.config import load_config

    service.worker(load_config(config, os.environ, overrides or []), datadir, app_id, ready_file)


@app.command()
def archiver(
    config: ConfigFile = None,
    overrides: Overrides = None,
    archive: Annotated[Path, typer.Option("--archive", help="Folder that gets every topic.")] = Path("archive"),
) -> None:
    """Mirror every topic of kafka.bootstrap_servers into a folder."""
    from commands import service
    from commands.config import load_config

    service.archiver(load_config(config, os.environ, overrides or []), archive)


@app.command()
def synthesizer(config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Answer the boundary signals of every run on kafka.bootstrap_servers."""
    from commands import service
    from commands.config import load_config

    service.synthesizer(load_config(config, os.environ, overrides or []))


@app.command()
@app.command("trainer", hidden=True)
def train(
    run_id: Annotated[str, typer.Argument(envvar="RODS_RUN_ID", help="Id of the run; the same id goes on with it.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Train one run against kafka.bootstrap_servers, from the start or from its last checkpoint."""
    from commands import service
    from commands.config import load_config

    service.trainer(load_config(config, os.environ, overrides or []), run_id)


@app.command()
def metrics(
    config: ConfigFile = None,
    overrides: Overrides = None,
    silence_s: Annotated[
        float, typer.Option("--silence-s", help="Seconds without events before a run's wait is named.")
    ] = 120.0,
) -> None:
    """Export the figures of every run for Prometheus (RODS_METRICS_PORT, 9464 if not set)."""
    from commands import service
    from commands.config import load_config

    service.metrics(load_config(config, os.environ, overrides or []), silence_s)


@app.command()
def health() -> None:
    """Ask the service on RODS_METRICS_PORT whether it is well; exit code 1 if not."""
    from commands import service

    if not service.health(os.environ, console):
        raise typer.Exit(1)


@app.command()
def rollout(
    run_id: Annotated[str, typer.Argument(help="Run to play for; its settings are those it started with.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    name: Annotated[
        str, typer.Option(help="Name of this worker; no other worker of the run may have it.")
    ] = "rollout-0",
    url: Annotated[str, typer.Option(help="vLLM server of this worker; one of the run's if not given.")] = "",
) -> None:
    """Play planned groups of a run on this machine; needs kafka.bootstrap_servers, as many as you like may run."""
    from commands import rollout as command
    from commands.config import load_config

    command.serve(load_config(config, os.environ, overrides or []), run_id, name, url)
