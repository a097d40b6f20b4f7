"""``rods metrics``: one exporter for all runs of a log: taps the topics, folds them, answers Prometheus.

Needs no part in any run: it reads without a consumer group and writes nothing. The watchdog's word on what a silent run
waits for is a metric and a line in the log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from analysis.index import LogIndex, RunIndex
from analysis.measures import measures, staleness_buckets
from analysis.watchdog import Watchdog, wait_of
from commands.folder import FACT_TOPICS
from commands.options import ConfigFile, Overrides
from commands.roles.process import begin
from schemas import Event
from schemas.events import RunFinished, RunStarted
from streams.health import PORT, HealthServer, serve_if_asked
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.lag import LagMeter
from streams.log.port import LogUnavailable, Place, now_ms
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from streams.pool.keeper import INPUT_TOPICS

logger = logging.getLogger("rods.metrics")
POLL_S = 0.5
LAG_EVERY_S = 5.0
DEFAULT_PORT = "9464"
NUM_RUNS = 20
"""Newest runs that are always shown: some 30 series each."""
LIVE_MS = 24 * 3_600_000
FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class RunBoard:
    """All runs that were heard of, for the collector and the follower; thread-safe.

    So that series do not add up for ever, only the newest runs are kept, and those that go on: not finished, and heard of
    within a day. What is said of a run that was let go is passed over until the exporter is started again.

    Args:
        silence_s: after how long without events a run's wait is named.
        now_s: monotonic clock, seconds.
        wall_ms: wall clock, milliseconds since 1970.
    """

    def __init__(
        self, silence_s: float, now_s: Callable[[], float] = time.monotonic, wall_ms: Callable[[], int] = now_ms
    ) -> None:
        self._index = LogIndex()
        self.lag: dict[str, int] = {}
        self.num_broken = 0
        self._silence_s = silence_s
        self._now_s, self._wall_ms = now_s, wall_ms
        self._last_ms: dict[str, int] = {}
        self._let_go: set[str] = set()
        self._watchdogs: dict[str, Watchdog] = {}
        self._complained: dict[str, str] = {}
        self._left: set[str] = set()
        self._lock = threading.Lock()

    def add(self, events: list[Event]) -> None:
        """Fold events, whichever run they belong to; one that was left waits for nothing until it says RunStarted once more."""
        with self._lock:
            heard = [event for event in events if event.run_id not in self._let_go]
            self._index.add(heard)
            for event in heard:
                self._last_ms[event.run_id] = max(event.occurred_at_ms, self._last_ms.get(event.run_id, 0))
                self._watchdogs[event.run_id] = Watchdog(self._silence_s, self._now_s())
                if isinstance(event, RunFinished):
                    self._left.add(event.run_id)
                elif isinstance(event, RunStarted):
                    self._left.discard(event.run_id)
            self._let_old_go()

    def _let_old_go(self) -> None:
        newest = sorted(self.runs, key=lambda run_id: (self._last_ms[run_id], run_id))[-NUM_RUNS:]
        for run_id in self.runs.keys() - set(newest):
            is_fresh = self._wall_ms() - self._last_ms[run_id] < LIVE_MS
            if self.runs[run_id].pool.finished or not is_fresh:
                del self.runs[run_id], self._last_ms[run_id], self._watchdogs[run_id]
                self._let_go.add(run_id)

    @property
    def runs(self) -> dict[str, RunIndex]:
        """By run id."""
        return self._index.runs

    def complaints(self) -> dict[str, str]:
        """By run: what it has been waiting for too long."""
        with self._lock:
            found = {
                run_id: dog.complaint(self.runs[run_id].pool, self._now_s())
                for run_id, dog in self._watchdogs.items()
                if run_id not in self._left
            }
        return {run_id: text for run_id, text in found.items() if text}

    def new_complaints(self) -> dict[str, str]:
        """Complaints whose condition was not reported yet."""
        found = self.complaints()
        conditions = {run_id: text.partition(": ")[2] for run_id, text in found.items()}
        fresh = {
            run_id: found[run_id]
            for run_id, condition in conditions.items()
            if self._complained.get(run_id) != condition
        }
        self._complained = conditions
        return fresh

    def collect(self) -> Iterator[Metric]:
        """Every metric family, for prometheus-client."""
        complaints = self.complaints()
        with self._lock:
            families: dict[str, Metric] = {}
            for run_id, run in sorted(self.runs.items()):
                self._add_run(families, run_id, run, bool(complaints.get(run_id)))
            lag = GaugeMetricFamily(
                "rods_consumer_lag_records", "Records a consumer group is behind.", labels=["group"]
            )
            for group, behind in sorted(self.lag.items()):
                lag.add_metric([group], behind)
            broken = CounterMetricFamily("rods_undecodable_records", "Records the exporter could not read.")
            broken.add_metric([], self.num_broken)
        yield from [*families.values(), lag, broken]

    def _add_run(self, families: dict[str, Metric], run_id: str, run: RunIndex, stalled: bool) -> None:
        for measure in measures(run):
            name = measure.name.removesuffix("_total")
            family = families.setdefault(name, FAMILIES[measure.kind](name, measure.meaning))
            suffix = "_total" if measure.kind == "counter" else ""
            for labels, value in measure.samples:
                family.add_sample(name + suffix, {"run": run_id, **labels}, value)
        stale = families.setdefault(
            "rods_rollout_staleness_updates",
            HistogramMetricFamily(
                "rods_rollout_staleness_updates", "Updates between sampling and training of a group.", labels=["run"]
            ),
        )
        buckets, total = staleness_buckets(run)
        stale.add_metric([run_id], buckets, total)
        watch = families.setdefault(
            "rods_waiting",
            GaugeMetricFamily(
                "rods_waiting",
                "What a run waits for now and who owes it; 1 when it has waited too long.",
                labels=["run", "event", "owed_by"],
            ),
        )
        wait = wait_of(run.pool)
        if wait is not None and run_id not in self._left:
            watch.add_metric([run_id, wait.event, wait.owed_by], float(stalled))


def metrics(
    config: ConfigFile = None,
    overrides: Overrides = None,
    silence_s: Annotated[
        float, typer.Option("--silence-s", help="Seconds without events before a run's wait is named.")
    ] = 120.0,
) -> None:
    """Export the figures of every run for Prometheus (RODS_METRICS_PORT, 9464 if not set)."""
    process, board = begin(config, overrides), RunBoard(silence_s)
    server = exporter(board, os.environ)
    logger.info("figures of every run on port %d", server.port)
    follow(process.connection, board, process.stop.is_set)
    server.stop()


def follow(connection: Connection, board: RunBoard, stopping: Callable[[], bool]) -> None:
    """Keep the board up to date until told to stop; a broker that is away is waited for."""
    partitions = partitions_of(connection)
    log = KafkaLog(connection)
    observer = EventReader(log, FACT_TOPICS, partitions)
    inputs = [Place(topic, number) for topic in INPUT_TOPICS for number in range(partitions[topic])]
    meter, asked_at_s = LagMeter(connection, "rods-pool", inputs), 0.0
    while not stopping():
        try:
            board.add(observer.poll(POLL_S))
        except LogUnavailable as error:
            logger.warning("%s", error)
        board.num_broken = observer.num_broken
        if time.monotonic() - asked_at_s > LAG_EVERY_S:
            lag, asked_at_s = meter.lag(observer.cursor), time.monotonic()
            board.lag = {} if lag is None else {"rods-pool": lag}
            for run_id, complaint in sorted(board.new_complaints().items()):
                logger.warning("run %s: %s", run_id, complaint)
    meter.close()
    log.close()


def exporter(board: RunBoard, environment: Mapping[str, str]) -> HealthServer:
    """The exporter's server, on port 9464 unless the environment says another; runs do not make it unhealthy."""
    registry = CollectorRegistry()
    registry.register(board)
    return serve_if_asked(
        "metrics", {PORT: DEFAULT_PORT, **{k: v for k, v in environment.items() if v}}, registry=registry
    )
