"""``rods metrics``: one exporter for all runs of a log: taps the topics, folds them, answers Prometheus.

Needs no part in any run: it reads without a consumer group and writes nothing. The watchdog's word on what a silent run
waits for is a metric and a line in the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from analysis.index import LogIndex, RunIndex
from analysis.measures import measures, staleness_buckets
from analysis.watchdog import Watchdog, wait_of
from schemas import TOPICS, Event
from streams.health import PORT, HealthServer, serve_if_asked
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.lag import LagMeter
from streams.log.observer import Observer
from streams.log.port import LogUnavailable, Place
from streams.log.topics import partitions_of
from streams.pool.keeper import INPUT_TOPICS

logger = logging.getLogger("rods.metrics")
POLL_S = 0.5
LAG_EVERY_S = 5.0
DEFAULT_PORT = "9464"
FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class RunBoard:
    """All runs that were heard of, for the collector and the follower; thread-safe.

    Args:
        silence_s: after how long without events a run's wait is named.
        now_s: monotonic clock, seconds.
    """

    def __init__(self, silence_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._index = LogIndex()
        self.lag: dict[str, int] = {}
        self.num_broken = 0
        self._silence_s = silence_s
        self._now_s = now_s
        self._watchdogs: dict[str, Watchdog] = {}
        self._complained: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, events: list[Event]) -> None:
        """Fold events, whichever run they belong to."""
        with self._lock:
            self._index.add(events)
            for event in events:
                self._watchdogs[event.run_id] = Watchdog(self._silence_s, self._now_s())

    @property
    def runs(self) -> dict[str, RunIndex]:
        """By run id."""
        return self._index.runs

    def complaints(self) -> dict[str, str]:
        """By run: what it has been waiting for too long."""
        with self._lock:
            found = {
                run_id: dog.complaint(self.runs[run_id].pool, self._now_s()) for run_id, dog in self._watchdogs.items()
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
        if wait is not None:
            watch.add_metric([run_id, wait.event, wait.owed_by], float(stalled))


def follow(connection: Connection, board: RunBoard, stopping: Callable[[], bool]) -> None:
    """Keep the board up to date until told to stop; a broker that is away is waited for."""
    partitions = partitions_of(connection)
    log = KafkaLog(connection)
    observer = Observer(log, (topic for topic in TOPICS if topic != "trajectories"), partitions)
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
