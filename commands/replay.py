"""``rods replay``: decide, learn, play and synthesize a recorded run again, and say where the first difference is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from analysis.replay import Divergence, Repetition, unreadable_in
from commands.config import ConfigError
from commands.options import AsJson, RunName, Runs, console
from commands.repeat.report import DIFFERS, PARTS, SKIPPED, Report
from commands.repeat.source import (
    BODIES,
    FACT_TOPICS,
    ReplayOrigin,
    ReplaySource,
    origin_of,
    settings_divergence,
    source_of,
)
from streams.log.port import LogGap


def replay_command(
    name: RunName = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    parts: Annotated[str, typer.Option(help="What to repeat, separated by commas.")] = ",".join(PARTS),
    source: Annotated[str, typer.Option("--from", help="Broker (host:port) to read from instead of the archive.")] = "",
    checkpoints: Annotated[
        Path | None, typer.Option(help="Checkpoints of the run, if they are not in its folder.")
    ] = None,
) -> bool:
    """Decide, learn, play and synthesize a recorded run again; exit code 0 only if all is equal."""
    return show(name, runs, source, parts, checkpoints, as_json, console)


def parts_of(text: str) -> tuple[str, ...]:
    """The parts in a comma-separated list, in the order in which they run.

    Raises:
        ConfigError: a part that does not exist, or none.

    >>> parts_of("rewards, decisions")
    ('decisions', 'rewards')
    """
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in wanted if part not in PARTS]
    if unknown or not wanted:
        raise ConfigError(
            f"--parts {text!r}: {f'no part {unknown[0]!r}' if unknown else 'nothing to repeat'}; "
            f"choose from {', '.join(PARTS)}"
        )
    return tuple(part for part in PARTS if part in wanted)


def replay(
    origin: ReplayOrigin, asked: tuple[str, ...], checkpoints: Path | None, progress: Progress
) -> tuple[str, Report]:
    """Run the parts asked for, in order; the run's id and what was found.

    Raises:
        LogGap: the log holds no such run.
        ConfigError: no part had anything to compare, or the initial weights are needed and not at hand.
    """
    report = Report(asked, damage=origin.damage)
    try:
        source = source_of(origin, checkpoints, progress)
    except LogGap as error:
        if not origin.damage:
            raise
        report.refuse(damage_in(origin, FACT_TOPICS) or Divergence("the log", "missing range", str(error), "-"))
        return origin.name, report
    if (difference := settings_divergence(source)) is not None:
        report.refuse(difference)
        return source.run_id, report
    for part in asked:
        _repeat(part, source, report, progress)
    if all(report.verdicts[part] == SKIPPED for part in asked):
        raise ConfigError(f"run {source.run_id}: nothing to compare in {', '.join(asked)}")
    return source.run_id, report


def _repeat(part: str, source: ReplaySource, report: Report, progress: Progress) -> None:
    """One part; damage of a topic it reads is a difference even if everything else is equal."""
    damage = damage_in(source.origin, FACT_TOPICS if part in ("decisions", "synthesis") else (*FACT_TOPICS, BODIES))
    try:
        if part == "decisions":
            decisions(source, report, progress)
        elif part == "synthesis":
            from commands.repeat.synthesis import synthesis

            synthesis(source, report, progress)
        else:
            from commands.repeat import learning as replay_learning

            {"learning": replay_learning.learning, "rewards": replay_learning.rewards}[part](source, report, progress)
    except LogGap as error:
        report.set(part, damage or Divergence("the log", "missing range", str(error), "-"), 0)
    if damage is not None and report.verdicts[part] != DIFFERS:
        report.set(part, damage, report.counts[part], report.notes[part])


def damage_in(origin: ReplayOrigin, topics: tuple[str, ...]) -> Divergence | None:
    """The first fault of the archive in some topics."""
    for fault in origin.damage:
        if fault.topic in topics:
            to = f"to {fault.last_offset}" if fault.last_offset >= 0 else "and behind"
            return Divergence(
                f"{fault.topic}-{fault.partition} offsets {fault.first_offset} {to}", "damaged archive", fault.what, "-"
            )
    return None


def decisions(source: ReplaySource, report: Report, progress: Progress) -> None:
    """Zones, signals, injections, retirements and batches."""
    if broken := unreadable_in(source.log):
        report.set("decisions", Divergence(broken[0].where, "unreadable record", str(broken[0].error), "-"), 0)
        return
    again = Repetition(source.run)
    task = progress.add_task("decisions", total=len(again.plans))
    difference = again.repeat(source.run.pool.finished, lambda: progress.advance(task))
    report.set("decisions", difference, len(again.decided))


def show(
    name: str | None,
    runs: Path,
    bootstrap_servers: str,
    parts: str,
    checkpoints: Path | None,
    as_json: bool,
    console: Console,
) -> bool:
    """Replay a run and print the verdicts; returns whether all that was asked for is equal.

    Raises:
        ConfigError, LogGap, LogUnavailable: there is nothing to replay.
    """
    asked, origin = parts_of(parts), origin_of(name, runs, bootstrap_servers)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=as_json) as progress:
        run_id, report = replay(origin, asked, checkpoints, progress)
    origin.log.close()
    if as_json:
        print(report.as_json(run_id))
    else:
        report.show(run_id, console)
    return report.is_equal
