"""The log and the pool agent under the traffic of a fleet of rollout workers.

``python -m benchmarks.load [--quick] [--json] [--seconds 20]``

Producers send the events of ``benchmarks.workload`` at the rate that 8, 1,000 and 10,000 GPUs make, each with its share of
rollout bodies, through the embedded broker to the real pool worker. The latency of a group is the time from its record to
the row of the pool table that tells of it, by the records' own times. A rate is held when the producers kept it and the pool
agent was less than two seconds behind at the end.
"""

from __future__ import annotations

import argparse
import bisect
import io
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import fastavro
import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import live, workload
from schemas import make
from schemas.events import FinishReason, RolloutGroupCompleted, TrajectoryRecorded
from schemas.heads import GroupHead, head_of
from streams.log.connection import Connection
from streams.log.embedded_broker import true_end_offsets
from streams.log.kafka import KafkaLog
from streams.log.port import Place, Record
from streams.log.port import as_record as log_record
from streams.log.topics import partitions_of
from streams.pool.keeper import INPUT_TOPICS
from streams.pool.rows import ROW_SCHEMA

RATES = ((8, 2.0, 0.07), (1_000, 253.0, 8.6), (10_000, 2_530.0, 86.0))
"""GPUs, core events a second, MB (10^6 bytes) a second as they lie compressed in the log."""
QUICK_RATES = ((8, 20.0, 0.7),)
SECONDS, QUICK_SECONDS = 20.0, 2.0
DRAIN_S = 30.0
TICK_S = 0.01
HELD_FRAC, HELD_LAG_S = 0.95, 2.0
NUM_BODIES = 32


@dataclass(frozen=True, slots=True)
class Load:
    """What happened at one rate.

    Attributes:
        gpus, wanted_events_per_s, wanted_mb_per_s: the rate.
        events_per_s, mb_per_s: what the producers got acknowledged.
        num_groups: groups sent; num_told: groups whose row was seen before the drain ended.
        p50_ms, p99_ms: from a group's record to its row in the pool table; ``None`` if no row was seen.
        ack_p50_ms, ack_p99_ms: from sending a core event to the broker's acknowledgement.
        max_lag, end_lag: groups that were sent and not told yet, at most and when the producers stopped.
        drain_s: from then until the last row.
        worker_cores, broker_cores, producer_cores: CPU seconds a second of wall time.
        holds: whether the machine held the rate.
    """

    gpus: int
    wanted_events_per_s: float
    wanted_mb_per_s: float
    events_per_s: float = 0.0
    mb_per_s: float = 0.0
    num_groups: int = 0
    num_told: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    ack_p50_ms: float | None = None
    ack_p99_ms: float | None = None
    max_lag: int = 0
    end_lag: int = 0
    drain_s: float = 0.0
    worker_cores: float = 0.0
    broker_cores: float = 0.0
    producer_cores: float = 0.0
    holds: bool = False


class Sender:
    """Sends records and remembers when each was acknowledged."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer = Producer({**connection.producer_settings(), "queue.buffering.max.kbytes": 256 * 1024})
        self.acks_ms: list[float] = []
        self.num_bytes = 0
        self.num_acked = 0

    def send(self, record: Record, timed: bool) -> None:
        """Send one record, stamped now; waits while the queue is full."""
        sent = time.time()

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.num_bytes += len(message.value())
                if timed:
                    self.num_acked += 1
                    self.acks_ms.append(1000 * (time.time() - sent))

        while True:
            try:
                self._producer.produce(
                    self._connection.full_name(record.topic),
                    partition=record.partition,
                    key=record.key,
                    value=record.value,
                    timestamp=int(sent * 1000),
                    on_delivery=acknowledged,
                )
                return
            except BufferError:
                self._producer.poll(TICK_S)

    def rest(self, seconds: float) -> None:
        """Hear acknowledgements for a while."""
        self._producer.poll(max(0.0, seconds))

    def finish(self) -> None:
        """Wait for every acknowledgement."""
        self._producer.flush(60.0)


def inputs(count: int, connection: Connection) -> tuple[list[Record], list[Record]]:
    """(opening, then ``count`` core events): the inputs of the pool in log order."""
    partitions, found = partitions_of(connection), []
    num_opening = len(workload.opening())
    for event in workload.endless(7):
        record = log_record(event, partitions)
        if record.topic in INPUT_TOPICS:
            found.append(record)
            if len(found) == num_opening + count:
                return found[:num_opening], found[num_opening:]
    raise AssertionError("the run never ends")


def bodies(size: int, connection: Connection) -> Iterator[Record]:
    """Rollout bodies of ``size`` incompressible bytes, for ever, spread over the partitions."""
    rng, partitions = np.random.default_rng(7), partitions_of(connection)
    made = [
        log_record(
            make(
                TrajectoryRecorded,
                workload.RUN,
                group_id="",
                task_id="",
                step=index,
                rollout_index=0,
                policy_version=0,
                token_ids=rng.bytes(size),
                logprobs=b"",
                mask=b"",
                messages=(),
                turn_verdicts=(),
                reward=None,
                format_reward=None,
                finish_reason=FinishReason.FINISHED,
            ),
            partitions,
        )
        for index in range(NUM_BODIES)
    ]
    while True:
        yield from made


def produce(sender: Sender, core: Sequence[Record], body: Iterator[Record], rate: float, seconds: float) -> float:
    """Send core events, a body with each, at a rate; returns how long it took."""
    started, sent = time.monotonic(), 0
    while sent < len(core) and time.monotonic() - started < 2 * seconds:
        due = min(len(core), int((time.monotonic() - started) * rate) + 1)
        for record in core[sent:due]:
            sender.send(record, timed=True)
            sender.send(next(body), timed=False)
        sent = max(sent, due)
        sender.rest(min(TICK_S, started + sent / rate - time.monotonic()))
    sender.finish()
    return time.monotonic() - started


def read_all(connection: Connection, topic: str, partition: int = 0) -> list[Message]:
    """Every record of one partition, by the topic's full name."""
    place = Place(topic, partition)
    left = true_end_offsets(connection.settings(), [place])[place]
    consumer = Consumer(connection.consumer_settings("load"))
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Message] = []
    while len(found) < left:
        found += [message for message in consumer.consume(500, 1.0) if message.error() is None]
    consumer.close()
    return found


def told(messages: Sequence[Message]) -> dict[str, tuple[list[int], list[int]]]:
    """By task: steps that its rows tell of, and when, in the order of writing."""
    rows: dict[str, tuple[list[int], list[int]]] = {}
    for message in messages:
        row = fastavro.schemaless_reader(io.BytesIO(message.value()), ROW_SCHEMA, None)
        steps, times_ms = rows.setdefault(row["task_id"], ([], []))
        steps.append(row["last_step"])
        times_ms.append(message.timestamp()[1])
    return rows


def group_times(sent: Sequence[Message], rows: dict[str, tuple[list[int], list[int]]]) -> list[tuple[int, int | None]]:
    """(sent, told) of each group, ms; told is the first row with its step or a later one."""
    times = []
    for message in sent:
        event = head_of(message.value())
        if isinstance(event, RolloutGroupCompleted | GroupHead):
            steps, times_ms = rows.get(event.task_id, ([], []))
            index = bisect.bisect_left(steps, event.step)
            times.append((message.timestamp()[1], times_ms[index] if index < len(steps) else None))
    return times


def await_rows(connection: Connection, topic: str, num_groups: int) -> list[tuple[int, int | None]]:
    """The times of all groups, once every one is told of or the patience is over."""
    deadline = time.monotonic() + DRAIN_S
    while True:
        times = group_times(read_all(connection, connection.full_name("rollouts")), told(read_all(connection, topic)))
        if len(times) == num_groups and all(heard is not None for _, heard in times) or time.monotonic() > deadline:
            return times
        time.sleep(0.5)


def lags(times: Sequence[tuple[int, int | None]]) -> tuple[int, int]:
    """(most, at the end of sending) groups sent and not told."""
    heard = sorted(at for _, at in times if at is not None)
    sent = sorted(at for at, _ in times)
    behind = [index + 1 - bisect.bisect_right(heard, at) for index, at in enumerate(sent)]
    return max(behind, default=0), behind[-1] if behind else 0


def percentile(values: Sequence[float], frac: float) -> float | None:
    """The value below which a share of the values lies."""
    return round(float(np.percentile(values, 100 * frac)), 1) if len(values) else None


def measure(gpus: int, rate: float, mb_per_s: float, seconds: float) -> Load:
    """One rate for some seconds on a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="rods-load-") as folder, live.broker(Path(folder)) as broker:
        connection, app_id = live.fresh_topics(broker.bootstrap_servers), f"load-{uuid.uuid4().hex[:8]}"
        opening, core = inputs(max(1, int(rate * seconds)), connection)
        core_bytes = sum(len(record.value) for record in core) / len(core)
        body = bodies(max(1, int(mb_per_s * 1e6 / rate - core_bytes)), connection)
        with live.worker(connection, Path(folder), app_id) as child:
            first = Sender(connection)
            for record in opening:
                first.send(record, timed=False)
            first.finish()
            log = KafkaLog(connection)
            live.await_records(log, "batches", 2, child)
            log.close()
            pids = (child.process.pid, broker.pid, os.getpid())
            before, sender = [live.cpu_s(pid) for pid in pids], Sender(connection)
            spent_s = produce(sender, core, body, rate, seconds)
            cores = [(live.cpu_s(pid) - start) / spent_s for pid, start in zip(pids, before, strict=True)]
            num_groups = sum(record.topic == "rollouts" for record in core)
            times = await_rows(connection, f"{app_id}-pool-changelog", num_groups)
    return outcome(Load(gpus, rate, mb_per_s), sender, times, spent_s, cores)


def outcome(
    wanted: Load, sender: Sender, times: Sequence[tuple[int, int | None]], spent_s: float, cores: Sequence[float]
) -> Load:
    """The figures of one rate."""
    latencies = [heard - sent for sent, heard in times if heard is not None]
    max_lag, end_lag = lags(times)
    events_per_s = sender.num_acked / spent_s
    last_heard = max((heard for _, heard in times if heard is not None), default=0)
    held = events_per_s >= HELD_FRAC * wanted.wanted_events_per_s and end_lag <= HELD_LAG_S * wanted.wanted_events_per_s
    return replace(
        wanted,
        events_per_s=round(events_per_s, 1),
        mb_per_s=round(sender.num_bytes / 1e6 / spent_s, 2),
        num_groups=len(times),
        num_told=len(latencies),
        p50_ms=percentile(latencies, 0.5),
        p99_ms=percentile(latencies, 0.99),
        ack_p50_ms=percentile(sender.acks_ms, 0.5),
        ack_p99_ms=percentile(sender.acks_ms, 0.99),
        max_lag=max_lag,
        end_lag=end_lag,
        drain_s=round(max(0, last_heard - max(sent for sent, _ in times)) / 1000, 2),
        worker_cores=round(cores[0], 2),
        broker_cores=round(cores[1], 2),
        producer_cores=round(cores[2], 2),
        holds=held and len(latencies) == len(times),
    )


COLUMNS = {
    "GPUs": "{gpus:,}",
    "events/s": "{events_per_s:,.0f} of {wanted_events_per_s:,.0f}",
    "MB/s": "{mb_per_s:.1f} of {wanted_mb_per_s:g}",
    "p50 ms": "{p50_ms}",
    "p99 ms": "{p99_ms}",
    "ack p50/p99 ms": "{ack_p50_ms} / {ack_p99_ms}",
    "lag max/end": "{max_lag:,} / {end_lag:,}",
    "drain s": "{drain_s}",
    "told": "{num_told:,} of {num_groups:,}",
    "cores worker/broker/producers": "{worker_cores} / {broker_cores} / {producer_cores}",
    "held": "{holds}",
}


def show(loads: Sequence[Load], console: Console) -> None:
    """The table for people."""
    table = Table(title="Rollout traffic through the log and the pool agent")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for load in loads:
        table.add_row(*(form.format(**asdict(load)) for form in COLUMNS.values()))
    console.print(table)
    console.print(f"machine load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs at the end")


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="print one JSON object as the last line, no table")
    options.add_argument("--quick", action="store_true", help="one small rate for two seconds: shows that it runs")
    options.add_argument("--seconds", type=float, default=SECONDS, help="how long each rate is kept")
    chosen = options.parse_args()
    rates, seconds = (QUICK_RATES, QUICK_SECONDS) if chosen.quick else (RATES, chosen.seconds)
    console, loads = Console(stderr=chosen.json), []
    before = os.getloadavg()[0]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rates", total=len(rates))
        for gpus, rate, mb_per_s in rates:
            progress.update(task, description=f"{gpus:,} GPUs")
            loads.append(measure(gpus, rate, mb_per_s, seconds))
            progress.advance(task)
    if chosen.json:
        print(
            json.dumps(
                {
                    "by_rate": [asdict(load) for load in loads],
                    "held_gpus": max((x.gpus for x in loads if x.holds), default=0),
                    "load_1m_before": round(before, 1),
                    "num_cpus": os.cpu_count(),
                }
            )
        )
    else:
        show(loads, console)


if __name__ == "__main__":
    main()
