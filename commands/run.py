"""``rods run``: the whole loop on one machine, live, to its end."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from analysis.index import RunIndex
from analysis.summary import summary_of
from commands.config import RunConfig, validated
from commands.fleet import BrokerLost, Fleet
from commands.folder import RunFolder, find_run
from commands.report import report_html
from commands.view import View, epochs_table, summary_table
from schemas import TOPICS
from streams.archive.segments import ArchiveLog
from streams.log.kafka import KafkaLog
from streams.log.lag import LagMeter
from streams.log.observer import Observer
from streams.log.port import LogUnavailable, Place
from streams.log.topics import partitions_of
from streams.pool.keeper import INPUT_TOPICS

FACT_TOPICS = tuple(topic for topic in TOPICS if topic != "trajectories")
POLL_S = 0.25
LAG_EVERY_S = 2.0


def new_run_id(config: RunConfig) -> str:
    """A fresh id: name, UTC time, a digest of configuration and time."""
    now = datetime.now(UTC)
    digest = hashlib.sha256(f"{config.as_json()}{now.isoformat()}".encode()).hexdigest()[:6]
    return "-".join(filter(None, [config.run.name, now.strftime("%Y%m%d-%H%M%S"), digest]))


def start_new(config: RunConfig, console: Console) -> dict:
    """Start a new run and see it to its end; returns the summary."""
    folder = RunFolder((config.run.folder / new_run_id(config)).resolve()).create(config)
    return drive(folder, config, console, resume=False)


def resume(name: str, runs: Path, client: Mapping[str, str], console: Console) -> dict:
    """Go on with a run that was stopped; returns the summary.

    Args:
        name: run id or folder.
        runs: where run folders lie.
        client: broker settings, which a run folder never records.
        console: where to print.
    """
    folder = find_run(name, runs)
    recorded = folder.config()
    recorded["kafka"]["client"] = dict(client)
    config = validated(recorded, str(folder.config_file))
    return drive(folder, config, console, resume=True)


def drive(folder: RunFolder, config: RunConfig, console: Console, resume: bool) -> dict:
    """Run every process until the trainer is done, then fold the archive into the summary.

    Raises:
        KeyboardInterrupt: stopped by Ctrl-C or SIGTERM; everything was stopped cleanly and can be resumed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with folder.lock():
        view = View(console)
        view.say(f"run {folder.run_id} in {folder.path}")
        with Fleet(folder, config, view.say) as fleet:
            see_through(fleet, folder.run_id, view, resume)
        facts = facts_of(folder)
        summary = summary_of(facts)
        folder.write_summary(summary)
        folder.report_file.write_text(report_html(facts))
    console.print(epochs_table(facts))
    console.print(summary_table(summary))
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    console.print(f"report: {folder.report_file}", highlight=False, soft_wrap=True)
    return summary


def see_through(fleet: Fleet, run_id: str, view: View, resume: bool) -> None:
    """Start everything and follow the run to its end, over the death of the embedded broker too.

    Raises:
        BrokerLost: it died more often than ``run.restarts`` allows.
    """
    start = partial(fleet.start, resume)
    while True:
        try:
            start()
            follow(fleet, run_id, view)
            return
        except (BrokerLost, LogUnavailable) as error:
            if fleet.broker is None or fleet.broker.is_alive() or not fleet.may_recover:
                raise
            view.say(f"{error}; a fresh one is filled from the archive and the journals")
            start = fleet.recover


def follow(fleet: Fleet, run_id: str, view: View) -> None:
    """Show events as they come until the trainer has finished."""
    partitions = partitions_of(fleet.connection)
    reader = Observer(KafkaLog(fleet.connection), FACT_TOPICS, partitions, run_id)
    inputs = [Place(topic, number) for topic in INPUT_TOPICS for number in range(partitions[topic])]
    meter = LagMeter(fleet.connection, fleet.connection.full_name("pool"), inputs)
    facts, lag, asked_at = RunIndex(), None, 0.0
    with view:
        while not fleet.watch():
            facts.add(reader.poll(POLL_S))
            if time.monotonic() - asked_at > LAG_EVERY_S:
                lag, asked_at = meter.lag(reader.cursor), time.monotonic()
            view.show(facts, lag)
        facts.add(reader.catch_up())
        view.show(facts, lag)
    meter.close()


def facts_of(folder: RunFolder) -> RunIndex:
    """Every fact of a run, folded from its archive."""
    archive = ArchiveLog(folder.archive)
    topics = [topic for topic in FACT_TOPICS if topic in archive.partitions]
    return RunIndex().add(Observer(archive, topics, archive.partitions, folder.run_id).catch_up())
