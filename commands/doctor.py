"""``rods doctor``: whether a run's log is healthy, and dead letters sent again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from analysis.checkup import NAMED, Checkup, redrive_record, redriven_event
from analysis.index import LogIndex
from commands.config import ConfigError
from commands.options import AsJson, RunId, RunName, Runs, console
from commands.source import LogSource, existing_broker, open_source, the_run
from schemas import TOPICS
from schemas.events import DeadLettered
from streams.archive.index import verify
from streams.archive.scan import scan_log, scanned
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, Record
from streams.log.topics import partitions_of


def doctor(
    name: RunName = None,
    runs: Runs = Path("runs"),
    run_id: RunId = "",
    redriven: Annotated[
        bool, typer.Option("--redrive", help="Append dead letters that can be read now to their topics.")
    ] = False,
    to: Annotated[str, typer.Option("--to", help="Broker that --redrive appends to, as host:port.")] = "",
    as_json: AsJson = False,
) -> bool:
    """Whether a run's log is healthy: nothing lost, twice, damaged or unread. Exit code 1 if not."""
    if redriven != bool(to):
        raise typer.BadParameter("--redrive and --to HOST:PORT go together")
    return show(name, run_id, runs, to, as_json, console)


def examine(source: LogSource, run_id: str) -> Checkup:
    """Read a whole log and count what is in it."""
    storage = [str(problem) for problem in verify(source.archive).problems] if source.archive else []
    log = LogIndex()
    for topics in (TOPICS,) if source.archive is None else [(topic,) for topic in TOPICS]:
        try:
            log.add_records(map(scanned, source.records(topics)))
        except LogGap as error:
            storage.append(str(error))
    return Checkup(log, the_run(source, run_id), storage)


def show(name: str | None, run_id: str, runs: Path, redrive_to: str, as_json: bool, console: Console) -> bool:
    """Print the findings; with a broker, redrive first; returns whether the log is healthy.

    Raises:
        ConfigError: no such run.
        LogUnavailable: the broker.
    """
    checkup = examine(open_source(name, runs), run_id)
    sent: Sequence[Record] = redrive(checkup.open_letters(), redrive_to) if redrive_to else ()
    figures = checkup.as_json() | ({"redriven": len(sent)} if redrive_to else {})
    if as_json:
        print(json.dumps(figures))
        return bool(figures["healthy"])
    for kind, texts in checkup.findings().items():
        console.print(f"[red]{kind}[/red]: {len(texts)}", highlight=False)
        for finding in texts[:NAMED]:
            console.print(f"  {finding}", highlight=False, markup=False, soft_wrap=True)
    for record in sent:
        console.print(
            f"redriven to {record.topic}-{record.partition}: the event of {record.headers[0][1].decode()}",
            highlight=False,
        )
    if redrive_to and not sent:
        console.print("nothing to redrive", highlight=False)
    verdict = "[green]healthy[/green]" if figures["healthy"] else "[red]not healthy[/red]"
    reasons = ", ".join(f"{count} {reason}" for reason, count in figures["dead_letters"].items()) or "none"
    console.print(
        f"run {escape(checkup.run_id)}: {verdict}, {checkup.log.num_records} records, {checkup.log.num_repeated} repeated, "
        f"dead letters: {reasons} ({figures['open_dead_letters']} open), "
        f"{'ended' if checkup.has_ended else 'not ended'}",
        highlight=False,
        soft_wrap=True,
    )
    return bool(figures["healthy"])


def redrive(letters: Sequence[DeadLettered], to: str) -> list[Record]:
    """Append the events of dead letters that can be read now to their topics on a broker, unless they are there.

    Raises:
        ConfigError: ``to`` is no broker.
        LogUnavailable: the broker.
    """
    if ":" not in to:
        raise ConfigError(f"--to {to!r}: expected a broker as host:port")
    connection = existing_broker(to)
    partitions = partitions_of(connection)
    log = KafkaLog(connection)
    wanted = [(redriven_event(letter), record) for letter in letters if (record := redrive_record(letter, partitions))]
    topics = sorted({record.topic for _, record in wanted})
    there = (
        {item.event.event_id for item in map(scanned, scan_log(log, topics)) if item.event is not None}
        if topics
        else set()
    )
    sent = []
    for event, record in wanted:
        if event.event_id not in there:
            log.append_raw(record)
            there.add(event.event_id)
            sent.append(record)
    log.close()
    return sent
