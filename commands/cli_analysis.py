"""Commands that read a run: archive, tap, export, sql, why, explain, doctor, replay, fork, rescore, report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from commands.options import AsJson, Overrides, RunId, RunName, RunOption, Runs, Source, console

app = typer.Typer(help="Read a run.")
archive_app = typer.Typer(help="Check an archive, and move it between folder and broker.", no_args_is_help=True)
app.add_typer(archive_app, name="archive")


@archive_app.command("verify")
def archive_verify(name: RunName = None, runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """Compare an archive with its manifest; names every damaged or missing range. Exit code 1 if there is one."""
    from commands import archive as command

    raise typer.Exit(0 if command.check(name, runs, as_json, console) else 1)


@archive_app.command("push")
def archive_push(
    to: Annotated[str, typer.Option("--to", help="Broker as host:port; its topics must be empty or missing.")],
    name: RunName = None,
    runs: Runs = Path("runs"),
) -> None:
    """Fill a broker from an archive, offsets kept."""
    from commands import archive as command

    command.push(name, runs, to, console)


@archive_app.command("pull")
def archive_pull(
    source: Annotated[str, typer.Option("--from", help="Broker as host:port.")],
    to: Annotated[Path, typer.Option("--to", help="Archive folder; an earlier pull is continued.")],
) -> None:
    """Copy a broker's topics into an archive folder, offsets kept."""
    from commands import archive as command

    command.pull(source, to, console)


@app.command()
def tap(
    topic: Annotated[str, typer.Argument(help="Topic, event type, or all.")],
    source: Source = None,
    runs: Runs = Path("runs"),
    run_id: Annotated[str, typer.Option("--run", help="Only events of this run id.")] = "",
    since: Annotated[str, typer.Option(help="now, -10m (s, m, h, d), or an ISO time; UTC if it names no zone.")] = "",
    until: Annotated[str, typer.Option(help="As --since; this moment is excluded.")] = "",
    where: Annotated[list[str] | None, typer.Option(help="field=value; may be repeated, all must hold.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on at the end until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many records; 0 for no limit.")] = 0,
    style: Annotated[str, typer.Option("--format", help="table, jsonl, parquet or arrow.")] = "table",
    out: Annotated[Path | None, typer.Option(help="File; standard output if not given.")] = None,
    unpack: Annotated[bool, typer.Option(help="Packed token arrays as lists of numbers.")] = False,
) -> None:
    """Listen to a topic of a run that goes on or has ended, without disturbing it."""
    from commands import tap as command

    try:
        command.listen(
            topic,
            source,
            runs,
            run_id=run_id,
            since=since,
            until=until,
            where=where or [],
            follow=follow,
            limit=limit,
            style=style,
            out=out,
            unpack=unpack,
        )
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


@app.command()
def export(
    to: Annotated[Path, typer.Option("--to", help="Target folder; other runs in it stay.")],
    name: RunName = None,
    runs: Runs = Path("runs"),
    only: Annotated[
        list[str] | None, typer.Option(help="Topic or event type; all if not given. May be repeated.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier export of the same run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as Parquet: one data set an event type, partitioned by run and day."""
    from commands import export as command

    command.write(name, runs, to, only or [], overwrite, as_json, console)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="SQL; the list of views if not given.")] = "",
    name: RunOption = None,
    runs: Runs = Path("runs"),
    export_folder: Annotated[Path | None, typer.Option("--from", help="Ask an export instead of an archive.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a run with SQL (DuckDB): one view an event type, and shipped views."""
    from commands import sql as command

    command.ask(query, name, export_folder, runs, as_json, console)


@app.command()
def why(
    wanted: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a task, trajectory, group, signal or batch, or step:NUMBER.")
    ],
    source: Source = None,
    run_id: RunId = "",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """The chain of causes behind a task, a rollout, a step or a signal."""
    from commands import why as command

    command.show(wanted, source, run_id, runs, as_json, console)


@app.command()
def explain(
    task_id: Annotated[str, typer.Argument(metavar="TASK_ID")],
    step: Annotated[int, typer.Option("--at", min=1, help="Training step.")],
    source: Source = None,
    run_id: RunId = "",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Why a task was or was not a seed, injected or retired at a step, with the numbers."""
    from commands import explain as command

    command.show(task_id, step, source, run_id, runs, as_json, console)


@app.command()
def doctor(
    name: RunName = None,
    runs: Runs = Path("runs"),
    run_id: RunId = "",
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Append dead letters that can be read now to their topics.")
    ] = False,
    to: Annotated[str, typer.Option("--to", help="Broker that --redrive appends to, as host:port.")] = "",
    as_json: AsJson = False,
) -> None:
    """Whether a run's log is healthy: nothing lost, twice, damaged or unread. Exit code 1 if not."""
    from commands import doctor as command

    if redrive != bool(to):
        raise typer.BadParameter("--redrive and --to HOST:PORT go together")
    raise typer.Exit(0 if command.show(name, run_id, runs, to, as_json, console) else 1)


@app.command()
def replay(
    name: RunName = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    parts: Annotated[
        str, typer.Option(help="decisions,learning,rewards,synthesis: what to repeat.")
    ] = "decisions,learning,rewards,synthesis",
    source: Annotated[str, typer.Option("--from", help="Broker (host:port) to read from instead of the archive.")] = "",
    checkpoints: Annotated[
        Path | None, typer.Option(help="Checkpoints of the run, if they are not in its folder.")
    ] = None,
) -> None:
    """Decide, learn, play and synthesize a recorded run again; exit code 0 only if all is equal."""
    from commands import replay as command

    raise typer.Exit(0 if command.show(name, runs, source, parts, checkpoints, as_json, console) else 1)


@app.command()
def fork(
    name: Annotated[str, typer.Argument(help="Run to fork: id or folder.")],
    at: Annotated[int, typer.Option("--at", help="Last step that is shared.")],
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    retrain: Annotated[
        bool, typer.Option(help="Learn the recorded rollouts again under the changed settings.")
    ] = False,
) -> None:
    """Prepare a new run that shares another's past; `rods run --resume` goes on with it."""
    from analysis.fork import ForkMode
    from commands import fork as command

    mode = ForkMode.RETRAIN if retrain else ForkMode.CONTINUE
    command.show(name, at, mode, overrides or [], runs, as_json, console)


@app.command()
def rescore(
    name: RunName = None,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    verifier: Annotated[str, typer.Option(help="recorded, binary, progress or official.")] = "recorded",
) -> None:
    """What a recorded run would have been under other rewards or --set pool.key=value, without a model."""
    from commands import rescore as command

    command.show(name, command.verifier_of(verifier), overrides or [], runs, as_json, console)


@app.command()
def report(
    name: RunName = None,
    runs: Runs = Path("runs"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file; report.html in the run folder if not given.")
    ] = None,
) -> None:
    """One self-contained page with the plots and tables of a run."""
    from commands import report as command

    command.write(name, runs, output, console)
