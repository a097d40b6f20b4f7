"""A real broker, a real pool worker, and what they did: the parts that both benchmarks start and watch."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from commands.roles.process import role_command
from schemas import decode
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import Log, Record
from streams.log.topics import ensure_topics
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from streams.pool.refold import fold_log
from streams.pool.snapshot import Snapshot
from streams.processes import Child

READY_S = 120.0
SILENCE_S = 120.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@contextmanager
def broker(folder: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker for as long as the block runs."""
    with EmbeddedBroker(folder / "broker.log") as running:
        yield running


def fresh_topics(servers: str) -> Connection:
    """Topics of their own on a broker."""
    connection = Connection(servers, embedded=True, prefix=f"b{uuid.uuid4().hex[:8]}.", num_decision_partitions=1)
    ensure_topics(connection)
    return connection


@contextmanager
def worker(connection: Connection, folder: Path, app_id: str = "") -> Iterator[Child]:
    """The pool worker as a process, ready to hear."""
    name = uuid.uuid4().hex[:8]
    ready = folder / f"{name}.ready"
    options = ("--datadir", str(folder / name), "--app-id", app_id or f"pool-{name}", "--ready-file", str(ready))
    child = Child("worker", role_command("worker", connection, *options), folder / "worker.log").start()
    try:
        child.await_file(ready, READY_S)
        yield child
    finally:
        child.stop()


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def send(log: KafkaLog, records: Sequence[Record], chunk: int = 5000) -> None:
    """Write records as they are."""
    for at in range(0, len(records), chunk):
        log.send(records[at : at + chunk])


def await_records(log: Log, topic: str, count: int, child: Child) -> float:
    """Wait until a topic of one partition holds so many records; returns the moment it was seen, on the monotonic clock.

    Raises:
        TimeoutError: nothing came for too long; the text says how far it got.
        streams.processes.ProcessFailed: the worker ended.
    """
    cursor = dict.fromkeys(log.end_offsets((topic,)), 0)
    place, seen_at = next(iter(cursor)), time.monotonic()
    while cursor[place] < count:
        records = log.read(cursor, timeout_s=1.0)
        child.require_alive()
        if records:
            cursor[place], seen_at = records[-1].offset + 1, time.monotonic()
        elif time.monotonic() - seen_at > SILENCE_S:
            raise TimeoutError(
                f"{topic}: {cursor[place]} of {count} records, and no more for {SILENCE_S:.0f} s\n{child.last_words()}"
            )
    return seen_at


def consume_and_decode(connection: Connection, ends: dict, chunk: int = 500) -> tuple[int, float]:
    """The least a consumer does: confluent-kafka, the codec, nothing else; (records, seconds)."""
    consumer = Consumer(connection.consumer_settings("bench"))
    consumer.assign([TopicPartition(connection.full_name(place.topic), place.partition, 0) for place in ends])
    left, started = sum(ends.values()), time.perf_counter()
    while left:
        for message in consumer.consume(min(chunk, left), 1.0):
            if message.error() is None:
                decode(message.value())
                left -= 1
    spent = time.perf_counter() - started
    consumer.close()
    return sum(ends.values()), spent


def fold_from_broker(log: Log) -> tuple[Snapshot, float]:
    """What a worker does when it starts: fold every decision topic; (pools, seconds)."""
    ends = log.end_offsets(INPUT_TOPICS + OUTPUT_TOPICS)
    started = time.perf_counter()
    return fold_log(log, ends), time.perf_counter() - started
