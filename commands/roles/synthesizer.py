"""The synthesizer: answers the boundary signals of one run, or of every run of a broker, each by its own recorded settings."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from pathlib import Path

from commands.config import validated
from commands.folder import RunFolder
from commands.options import Broker, ConfigFile, OfRun, Overrides, ReadyFile
from commands.roles.process import Process, begin
from environments.registry import load_tasks
from schemas import Event
from schemas.events import RunFinished, RunStarted
from schemas.registry import RegistryUnavailable, SchemaRefused
from streams.health import serve_if_asked
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from streams.pool.membership import Membership
from synthesizer.backends import backend_named
from synthesizer.book import TaskBook
from synthesizer.service import SIGNALS, TOPICS, SynthesisService

logger = logging.getLogger("rods.synthesizer")
POLL_S = 0.5
JOIN_TIMEOUT_S = 30.0


def synthesizer(
    config: ConfigFile = None,
    overrides: Overrides = None,
    connection: Broker = "",
    folder: OfRun = None,
    ready_file: ReadyFile = None,
) -> None:
    """Answer the boundary signals of every run of a broker, or of the one run that is given."""
    process = begin(config, overrides, connection, folder, ready_file)
    if process.folder is not None:
        serve_if_asked("synthesizer", os.environ)
        logger.info("answered %d signals", serve(process))
        return
    runs = ServedRuns(process.connection, process.stop)
    serve_if_asked("synthesizer", os.environ, {"runs": runs.complaint})
    runs.follow()


def serve(process: Process) -> int:
    """Answer the signals of one run until stopped; returns how many were answered.

    Raises:
        LogUnavailable: the broker is gone.
    """
    config, partitions, run_id = process.config, partitions_of(process.connection), process.folder.run_id
    held_out = [task for split in ("val", "test") for task in load_tasks(split, config.tasks.environment)]
    log, reading = process.producer("synthesizer"), KafkaLog(process.connection)
    reader = EventReader(reading, TOPICS, partitions, run_id, "synthesizer", placed_topic=SIGNALS)
    group, takes_all = f"{config.synthesis.group}-{run_id}", config.synthesis.consumer == "assign"
    member = Membership(process.connection, group, SIGNALS, partitions[SIGNALS], takes_all)

    async def answer() -> int:
        backend = backend_named(config.synthesis, os.environ)
        service = SynthesisService(log, reader, backend, TaskBook(held_out), config.synthesis, member)
        await service.run(process.stop.is_set, process.ready)
        return service.num_answered

    try:
        return asyncio.run(answer())
    finally:
        member.close()
        log.close()
        reading.close()


class ServedRuns:
    """One synthesizer for many runs: each that was begun and not left is served on a thread of its own.

    Args:
        connection: the broker.
        stop: ends everything.
    """

    def __init__(self, connection: Connection, stop: threading.Event) -> None:
        self._connection = connection
        self._stop = stop
        self._open: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._refused: dict[str, str] = {}
        self._lost: list[Exception] = []

    def complaint(self) -> str:
        """Which runs cannot be served, for the health check; empty when all is well."""
        return "; ".join(f"{run_id}: {reason}" for run_id, reason in sorted(self._refused.items()))

    def follow(self) -> None:
        """Serve runs as they come and go until stopped.

        Raises:
            LogUnavailable, RegistryUnavailable, SchemaRefused: broker or registry failed one of the runs.
        """
        log = KafkaLog(self._connection)
        observer = EventReader(log, ("runs",), partitions_of(self._connection))
        try:
            self.hear(observer.catch_up())
            while not self._stop.is_set():
                self.hear(observer.poll(POLL_S))
        finally:
            for stop in self._open.values():
                stop.set()
            for thread in self._threads.values():
                thread.join(JOIN_TIMEOUT_S)
            log.close()
        if self._lost:
            raise self._lost[0]

    def hear(self, events: list[Event]) -> None:
        """Serve runs that began or go on, leave those that ended, however; a run that goes on says RunStarted once more."""
        began: dict[str, RunStarted] = {}
        for event in events:
            if isinstance(event, RunStarted) and event.run_id not in self._open:
                began[event.run_id] = event
            elif isinstance(event, RunFinished):
                began.pop(event.run_id, None)
                self._refused.pop(event.run_id, None)
                self._open.pop(event.run_id, threading.Event()).set()
        for run_id, started in began.items():
            self._open[run_id] = stop = threading.Event()
            before = self._threads.get(run_id)
            self._threads[run_id] = threading.Thread(
                target=self._serve, args=(started, stop, before), name=run_id, daemon=True
            )
            self._threads[run_id].start()

    def _serve(self, started: RunStarted, stop: threading.Event, before: threading.Thread | None) -> None:
        run_id = started.run_id
        if before is not None:
            before.join()
        try:
            config = validated(json.loads(started.config_json), f"RunStarted of {run_id}")
            process = Process(config, self._connection, stop, RunFolder(Path(run_id)))
            logger.info("run %s: answered %d signals", run_id, serve(process))
        except (LogUnavailable, RegistryUnavailable, SchemaRefused) as error:
            self._lost.append(error)
            self._stop.set()
        except Exception as error:
            self._refused[run_id] = str(error)
            logger.exception("run %s cannot be served", run_id)
