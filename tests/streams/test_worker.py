"""The Faust worker as a real process on a real broker."""

from __future__ import annotations

import io
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fastavro
import pytest
from confluent_kafka import Consumer, TopicPartition

from commands.roles.process import role_command
from schemas import Event, decode
from schemas.events import BatchPlanned, DeadLettered
from streams.log.connection import Connection
from streams.log.embedded_broker import true_end_offsets
from streams.log.kafka import KafkaLog
from streams.log.port import Place, Record, partition_of
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from streams.pool.pool import Pool, apply, initial
from streams.pool.rows import ROW_SCHEMA, PoolRow, rows_of
from streams.processes import Child
from tests.streams.building import RUN, opening, reply
from tests.streams.scripted import play
from tests.streams.test_fold import DECIDED, SETTINGS, mean_of, said

NUM_SEEDS, NUM_EPOCHS = 7, 4
DEADLINE_S = 60.0


def FAILS(task_id: str) -> bool:
    return task_id.endswith("3")


class Worker:
    """A worker process that can be stopped, killed and started again."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection, self.folder = connection, folder
        self.app_id = f"pool-{uuid.uuid4().hex[:8]}"
        self.child: Child | None = None

    def start(self) -> Worker:
        ready = self.folder / f"{uuid.uuid4().hex}.ready"
        options = (
            "--datadir",
            str(self.folder / uuid.uuid4().hex),
            "--app-id",
            self.app_id,
            "--ready-file",
            str(ready),
        )
        command = role_command("worker", self.connection, *options)
        self.child = Child("worker", command, self.folder / "worker.log").start()
        self.child.await_file(ready, DEADLINE_S)
        return self

    def table(self) -> dict[str, PoolRow]:
        """The table as its changelog tells it, by task id."""
        topic = f"{self.app_id}-pool-changelog"
        places = [Place(topic, number) for number in range(self.connection.num_decision_partitions)]
        ends = true_end_offsets(self.connection.settings(), places)
        consumer = Consumer(self.connection.consumer_settings())
        consumer.assign([TopicPartition(*place, 0) for place in places])
        rows, left = {}, sum(ends.values())
        while left:
            for message in consumer.consume(1, DEADLINE_S):
                row = PoolRow(**fastavro.schemaless_reader(io.BytesIO(message.value()), ROW_SCHEMA, None))
                rows[row.task_id] = row
                left -= 1
        consumer.close()
        return rows


@pytest.fixture
def worker(connection: Connection, tmp_path: Path) -> Iterator[Worker]:
    running = Worker(connection, tmp_path)
    yield running
    if running.child is not None:
        running.child.stop()


def reader_of(connection: Connection, topics: tuple[str, ...]) -> EventReader:
    return EventReader(KafkaLog(connection), topics, partitions_of(connection), RUN, "test")


def answer(
    connection: Connection, worker: Worker, copies: int = 1, disturb: Callable[[int], None] = lambda step: None
) -> None:
    """Play trainer and synthesizer until the last batch is answered; ``disturb`` is called after each step."""
    log, reader = KafkaLog(connection), reader_of(connection, OUTPUT_TOPICS)
    opened = opening(NUM_SEEDS, NUM_EPOCHS, SETTINGS)
    log.append(opened * copies)
    give_up = time.monotonic() + DEADLINE_S
    while True:
        for event in reader.poll(0.5):
            log.append(reply(event, mean_of, FAILS) * copies)
            if isinstance(event, BatchPlanned):
                disturb(event.step)
                if event.epoch == NUM_EPOCHS - 1 and event.is_last_of_epoch:
                    return
        worker.child.require_alive()
        assert time.monotonic() < give_up, "the worker decides nothing any more"


def logged(connection: Connection) -> list[Event]:
    return reader_of(connection, INPUT_TOPICS + OUTPUT_TOPICS).catch_up()


def fold(events: list[Event]) -> Pool:
    pool = initial()
    for event in events:
        pool = apply(pool, event)
    return pool


def facts(event: Event) -> Event:
    """A decided event without what depends on arrival: cause, time, cursor."""
    bare = said(event)
    cleared = {name: () for name in ("input_cursor",) if hasattr(bare, name)}
    return type(bare)(**{f: getattr(bare, f) for f in bare.__slots__} | cleared | {"occurred_at_ms": 0})


def assert_undisturbed(connection: Connection) -> None:
    """The log holds the decisions of the same run played in memory, no more and no less."""
    _, expected = play(NUM_SEEDS, NUM_EPOCHS, SETTINGS, mean_of, FAILS)
    decided = {e.event_id: facts(e) for e in logged(connection) if isinstance(e, DECIDED)}
    assert decided == {e.event_id: facts(e) for e in expected if isinstance(e, DECIDED)}


def await_table(worker: Worker, rows: dict[str, PoolRow]) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while (table := worker.table()) != rows:
        assert time.monotonic() < give_up, f"{[k for k in rows if table.get(k) != rows[k]]} differ"


def test_a_run_is_decided_as_in_memory_and_the_table_is_the_fold(connection: Connection, worker: Worker) -> None:
    worker.start()
    answer(connection, worker)
    assert_undisturbed(connection)
    await_table(worker, rows_of(fold(logged(connection))))
    worker.child.stop()
    assert worker.child.exit_code == 0
    worker.start()
    await_table(worker, rows_of(fold(logged(connection))))
    assert_undisturbed(connection)


def test_every_event_delivered_twice_changes_nothing(connection: Connection, worker: Worker) -> None:
    worker.start()
    answer(connection, worker, copies=2)
    assert_undisturbed(connection)
    await_table(worker, rows_of(fold(logged(connection))))


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_worker_killed_mid_run_and_started_again_ends_with_the_same_pool(
    connection: Connection, worker: Worker, step: int
) -> None:
    def disturb(done: int) -> None:
        if done == step:
            worker.child.kill()
            assert worker.child.exit_code == -signal.SIGKILL
            worker.start()

    worker.start()
    answer(connection, worker, disturb=disturb)
    assert_undisturbed(connection)
    await_table(worker, rows_of(fold(logged(connection))))


def test_broken_records_become_dead_letters_and_the_run_goes_on(connection: Connection, worker: Worker) -> None:
    log = KafkaLog(connection)
    number = partition_of(RUN.encode(), connection.num_decision_partitions)
    misplaced = logged_bytes(opening(1, 1, SETTINGS)[0])

    def disturb(step: int) -> None:
        for value in (b"\xc3\x01 nonsense", None, misplaced, b"\xc3\x01" + bytes(8) + b"body"):
            log.append_raw(Record("rollouts", number, -1, 1, RUN.encode(), value))

    worker.start()
    answer(connection, worker, disturb=lambda step: disturb(step) if step == 2 else None)
    assert_undisturbed(connection)
    letters = [e for e in reader_of(connection, ("dead-letters",)).catch_up() if isinstance(e, DeadLettered)]
    assert {letter.reason.value for letter in letters} == {"unknown_schema", "undecodable", "wrong_topic"}
    assert {letter.consumer for letter in letters} >= {"pool"} and len({letter.offset for letter in letters}) == 4
    assert {letter.value for letter in letters} >= {misplaced, None}


def logged_bytes(event: Event) -> bytes:
    from schemas import encode

    assert decode(encode(event)) == event
    return encode(event)


def test_a_table_with_wrong_rows_changes_no_decision_and_is_mended(connection: Connection, worker: Worker) -> None:
    worker.start()
    answer(connection, worker)
    worker.child.stop()
    rows = rows_of(fold(logged(connection)))
    spoilt = next(iter(rows.values()))
    log = KafkaLog(Connection(**{f: getattr(connection, f) for f in connection.__slots__} | {"prefix": ""}))
    body = io.BytesIO()
    wrong = {f: getattr(spoilt, f) for f in spoilt.__slots__} | {"state": "retired", "num_observations": 99}
    fastavro.schemaless_writer(body, ROW_SCHEMA, wrong)
    number = partition_of(RUN.encode(), connection.num_decision_partitions)
    key = f'"{RUN}/{spoilt.task_id}"'.encode()
    log._send(Record(f"{worker.app_id}-pool-changelog", number, -1, 1, key, body.getvalue()))
    log._flush("a wrong row")
    assert worker.table()[spoilt.task_id].num_observations == 99
    worker.start()
    KafkaLog(connection).append(opening(NUM_SEEDS, NUM_EPOCHS, SETTINGS))
    await_table(worker, rows)
    assert_undisturbed(connection)


def test_the_worker_listens_on_no_port(connection: Connection, worker: Worker) -> None:
    worker.start()
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{worker.child.process.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add(fields[9])
    held = {p.readlink().name for p in Path(f"/proc/{worker.child.process.pid}/fd").iterdir() if p.is_symlink()}
    assert not {f"socket:[{inode}]" for inode in listening} & held
