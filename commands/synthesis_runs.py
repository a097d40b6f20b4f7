"""One synthesizer for many runs: hears of runs on the ``runs`` topic and serves each on a thread of its own."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from commands.config import ConfigError, validated
from commands.folder import RunFolder
from commands.process import ProcessContext
from commands.synthesizer import serve
from environments.interface import EnvironmentUnavailable
from schemas import Event
from schemas.events import RunFinished, RunOutcome, RunStarted
from schemas.registry import RegistryUnavailable, SchemaRefused
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.observer import Observer
from streams.log.port import LogUnavailable
from streams.log.topics import partitions_of
from synthesizer.backends import UnknownBackend
from synthesizer.llm.model import ModelRefused

logger = logging.getLogger("rods.synthesizer")
POLL_S = 0.5
JOIN_TIMEOUT_S = 30.0


class SynthesizerPool:
    """The runs that are served now.

    Args:
        connection: the broker.
        stop: ends everything.
    """

    def __init__(self, connection: Connection, stop: threading.Event) -> None:
        self._connection = connection
        self._stop = stop
        self._open: dict[str, RunStarted] = {}
        self._stops: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._refused: dict[str, str] = {}
        self._lost: list[Exception] = []

    def complaint(self) -> str:
        """Which runs cannot be served, for the health check; empty when all is well."""
        return "; ".join(f"{run_id}: {reason}" for run_id, reason in sorted(self._refused.items()))

    def run(self) -> None:
        """Follow the runs until stopped.

        Raises:
            LogUnavailable, RegistryUnavailable, SchemaRefused: broker or registry failed one of the runs.
        """
        log = KafkaLog(self._connection)
        observer = Observer(log, ("runs",), partitions_of(self._connection))
        try:
            self._hear(observer.catch_up())
            while not self._stop.is_set():
                self._hear(observer.poll(POLL_S))
        finally:
            for stop in self._stops.values():
                stop.set()
            for thread in self._threads.values():
                thread.join(JOIN_TIMEOUT_S)
            log.close()
        if self._lost:
            raise self._lost[0]

    def _hear(self, events: list[Event]) -> None:
        """Serve runs that began, leave those that ended for good."""
        for event in events:
            if isinstance(event, RunStarted):
                self._open.setdefault(event.run_id, event)
            elif isinstance(event, RunFinished) and event.outcome is not RunOutcome.INTERRUPTED:
                self._open.pop(event.run_id, None)
                self._stops.setdefault(event.run_id, threading.Event()).set()
        for run_id, started in self._open.items():
            if run_id not in self._threads:
                self._stops[run_id] = threading.Event()
                self._threads[run_id] = threading.Thread(target=self._serve, args=(started,), name=run_id, daemon=True)
                self._threads[run_id].start()

    def _serve(self, started: RunStarted) -> None:
        run_id = started.run_id
        try:
            config = validated(json.loads(started.config_json), f"RunStarted of {run_id}")
            context = ProcessContext(RunFolder(Path(run_id)), config, self._connection, "", self._stops[run_id])
            logger.info("run %s: answered %d signals", run_id, serve(context))
        except (ConfigError, EnvironmentUnavailable, ModelRefused, UnknownBackend, json.JSONDecodeError) as error:
            self._refused[run_id] = str(error)
            logger.error("run %s cannot be served: %s", run_id, error)
        except (LogUnavailable, RegistryUnavailable, SchemaRefused) as error:
            self._lost.append(error)
            self._stop.set()
