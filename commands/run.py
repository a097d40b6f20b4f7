"""``rods run``: the whole loop on one machine, live, to its end."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from analysis.index import RunIndex
from analysis.summary import summary_of
from commands.config import RunConfig, load_config
from commands.folder import FACT_TOPICS, RunFolder, find_run
from commands.options import ConfigFile, Overrides, console
from commands.report import report_html
from commands.roles.fleet import BrokerLost, Fleet
from commands.status import LiveView, epochs_table, summary_table
from streams.log.kafka import KafkaLog
from streams.log.lag import LagMeter
from streams.log.port import LogUnavailable, Place
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from streams.pool.keeper import INPUT_TOPICS

POLL_S = 0.25
LAG_EVERY_S = 2.0


def run(
    config: ConfigFile = None,
    overrides: Overrides = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run (id or folder).")] = None,
    runs: Annotated[Path | None, typer.Option(help="Folder for run folders; wins over run.folder.")] = None,
) -> None:
    """Run the whole loop on this machine, live, to its end."""
    settings = load_config(config, os.environ, [*(overrides or []), *([f"run.folder={runs}"] if runs else [])])
    if resume:
        folder = find_run(resume, settings.run.folder)
        recorded = folder.settings()
        settings = recorded.model_copy(
            update={"kafka": recorded.kafka.model_copy(update={"client": settings.kafka.client})}
        )
    else:
        folder = RunFolder((settings.run.folder / new_run_id(settings)).resolve()).create(settings)
    try:
        drive(folder, settings, resume=bool(resume))
    except KeyboardInterrupt:
        console.print("stopped; go on with: rods run --resume RUN (the id is in the first line above)")
        raise typer.Exit(130) from None


def new_run_id(config: RunConfig) -> str:
    """A fresh id: name, UTC time, a digest of configuration and time."""
    now = datetime.now(UTC)
    digest = hashlib.sha256(f"{config.as_json()}{now.isoformat()}".encode()).hexdigest()[:6]
    return "-".join(filter(None, [config.run.name, now.strftime("%Y%m%d-%H%M%S"), digest]))


def drive(folder: RunFolder, config: RunConfig, resume: bool) -> None:
    """Run every process until the trainer is done, then make summary and report from the archive.

    Raises:
        KeyboardInterrupt: stopped by Ctrl-C or SIGTERM; everything was stopped cleanly and can be resumed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with folder.lock():
        view = LiveView(console)
        view.say(f"run {folder.run_id} in {folder.path}")
        with Fleet(folder, config, view.say) as fleet:
            see_through(fleet, folder.run_id, view, resume)
        facts = folder.facts()
        summary = summary_of(facts)
        folder.write_summary(summary)
        folder.report_file.write_text(report_html(facts))
    console.print(epochs_table(facts))
    console.print(summary_table(summary))
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    console.print(f"report: {folder.report_file}", highlight=False, soft_wrap=True)


def see_through(fleet: Fleet, run_id: str, view: LiveView, resume: bool) -> None:
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


def follow(fleet: Fleet, run_id: str, view: LiveView) -> None:
    """Show events as they come until the trainer has finished."""
    partitions, log = partitions_of(fleet.connection), KafkaLog(fleet.connection)
    reader = EventReader(log, FACT_TOPICS, partitions, run_id)
    inputs = [Place(topic, number) for topic in INPUT_TOPICS for number in range(partitions[topic])]
    meter = LagMeter(fleet.connection, fleet.connection.full_name("pool"), inputs)
    facts, lag, asked_at = RunIndex(), None, 0.0
    try:
        with view:
            while not fleet.watch():
                facts.add(reader.poll(POLL_S))
                if time.monotonic() - asked_at > LAG_EVERY_S:
                    lag, asked_at = meter.lag(reader.cursor), time.monotonic()
                view.show(facts, lag)
            facts.add(reader.catch_up())
            view.show(facts, lag)
    finally:
        meter.close()
        log.close()
