"""The Faust worker: agents that keep the pool as a table, detect the boundary and plan epochs and batches.

``rods worker`` runs one. The agents move records; what is decided stands in ``streams.pool.decide``. The table is a cache: after recovery it is compared with the fold of the
topics, and rows that differ are written again with the next event.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import fastavro
import faust
from faust.auth import Credentials, SASLCredentials, SSLCredentials
from faust.serializers import codecs

from schemas import Event
from streams.archive.journal import Journal, JournaledLog
from streams.log.connection import Connection
from streams.log.embedded_broker import patch_faust
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable, Record, as_record
from streams.log.topics import partitions_of
from streams.pool.keeper import INPUT_TOPICS, SAYING_ORDER, PoolKeeper
from streams.pool.rows import ROW_SCHEMA, PoolRow, rows_of

logger = logging.getLogger("rods.worker")
CRASHED = 70
STOP_DEADLINE_S = 20.0
RECORDS_AT_ONCE = 4096
"""Records after which rows are written even if more records wait."""


class RowCodec(codecs.Codec):
    """Rows of the table as Avro bodies."""

    def _dumps(self, obj: PoolRow) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, ROW_SCHEMA, asdict(obj))
        return out.getvalue()

    def _loads(self, data: bytes) -> PoolRow:
        return PoolRow(**fastavro.schemaless_reader(io.BytesIO(data), ROW_SCHEMA, None))


codecs.register("rods-row", RowCodec())


class TableRow(faust.Record, serializer="rods-row"):
    """Tells Faust the codec of the table, whose values are :class:`streams.pool.rows.PoolRow`."""

    @classmethod
    def from_data(cls, data: PoolRow, *, preferred_type: type | None = None) -> PoolRow:
        """The row as it was read."""
        return data


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one worker runs.

    Attributes:
        connection: the broker.
        datadir: this worker's own folder.
        app_id: Faust application; workers with the same one share the partitions.
        ready_file: written when the pool is folded and the agents listen; none if empty.
        journal: keeps what is said on disk, for a broker that forgets.
    """

    connection: Connection
    datadir: Path
    app_id: str
    ready_file: str = ""
    journal: Journal | None = None


class PoolApp(faust.App):
    """An app that ends when an agent fails: Faust would acknowledge the record and lose it."""

    async def _on_agent_error(self, agent: faust.AgentT, error: BaseException) -> None:
        self.end(f"agent {agent}", error)

    def end(self, what: str, error: BaseException) -> None:
        """End this process at once."""
        logger.critical("%s failed: %r; the worker ends, the next one folds from the log", what, error)
        logging.shutdown()
        os._exit(CRASHED)

    async def stop(self) -> None:
        """Stop, and do not wait for ever for a broker that is gone: what matters is in the log."""
        giving_up = threading.Timer(STOP_DEADLINE_S, os._exit, (CRASHED,))
        giving_up.daemon = True
        giving_up.start()
        try:
            await super().stop()
        finally:
            giving_up.cancel()


def credentials_of(connection: Connection) -> Credentials | None:
    """The connection's security as Faust wants it."""
    security = connection.security()
    if security is None:
        return None
    if not security.mechanism:
        return SSLCredentials(security.ssl_context)
    return SASLCredentials(
        username=security.username,
        password=security.password,
        ssl_context=security.ssl_context,
        mechanism=security.mechanism,
    )


def create_app(settings: WorkerSettings) -> faust.App:
    """The Faust app without agents."""
    connection = settings.connection
    patch_faust()
    return PoolApp(
        settings.app_id,
        broker=";".join(f"aiokafka://{s}" for s in connection.bootstrap_servers.split(",")),
        broker_credentials=credentials_of(connection),
        datadir=str(settings.datadir),
        web_enabled=False,
        topic_disable_leader=True,
        store="memory://",
        topic_replication_factor=connection.replication_factor,
        topic_partitions=connection.num_decision_partitions,
        processing_guarantee="at_least_once",
        value_serializer="raw",
        key_serializer="raw",
        consumer_auto_offset_reset="earliest",
        stream_wait_empty=False,
        broker_commit_interval=1.0,
        broker_session_timeout=2 if connection.embedded else 10,
        broker_heartbeat_interval=0.4 if connection.embedded else 3,
        broker_request_timeout=20,
        broker_rebalance_timeout=10 if connection.embedded else 60,
        table_standby_replicas=0,
        stream_buffer_maxsize=16384,
        broker_max_poll_records=1000,
    )


class PoolWorker:
    """Binds the keeper to Faust: assignment, agents, table; and sends what is decided."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.connection = settings.connection
        self.keeper = PoolKeeper()
        self.app = create_app(settings)
        self.table = self.app.Table(
            "pool", partitions=self.connection.num_decision_partitions, key_type=str, value_type=TableRow
        )
        self.turn = asyncio.Lock()
        self.partitions = partitions_of(self.connection)
        self.log = KafkaLog(self.connection)
        if settings.journal is not None:
            self.log = JournaledLog(self.log, settings.journal, self.partitions)
        self.unsaid: list[tuple[int, Event]] = []
        self.is_due, self.all_said = asyncio.Event(), asyncio.Event()
        self.unwritten: dict[int, dict[tuple[str, str], None]] = {}
        self.topics = {
            name: self.app.topic(self.connection.full_name(name), value_type=bytes, key_type=bytes)
            for name in INPUT_TOPICS
        }
        self.app.on_partitions_assigned.connect(self.on_assigned)
        self.app.on_partitions_revoked.connect(self.on_revoked)
        self.app.on_rebalance_complete.connect(self.on_ready)

    def number_sets(self, places: Iterable) -> set[int]:
        """Partition numbers of the input topics among some Faust partitions."""
        names = {self.connection.full_name(name) for name in INPUT_TOPICS}
        return {place.partition for place in places if place.topic in names}

    async def on_assigned(self, app: faust.App, assigned: set, **kwargs: object) -> None:
        """Fold the topics of newly assigned partitions before any record is heard."""
        async with self.turn:
            await self.fold_missing(self.number_sets(assigned))

    async def fold_missing(self, numbers: set[int]) -> None:
        """Fold the partitions this worker has not folded. A record left over from before a rebalance may ask too."""
        fresh = numbers - self.keeper.pools.keys()
        if fresh:
            await asyncio.to_thread(self._refold, fresh)

    def _refold(self, numbers: set[int]) -> None:
        log = KafkaLog(self.connection)
        self.keeper.refold(log, numbers)
        log.close()

    async def on_revoked(self, app: faust.App, revoked: set, **kwargs: object) -> None:
        """Forget what another worker keeps from now on."""
        async with self.turn:
            numbers = self.number_sets(revoked)
            self.keeper.forget(numbers)
            self.unsaid = [(number, event) for number, event in self.unsaid if number not in numbers]
            for number in numbers & self.unwritten.keys():
                del self.unwritten[number]

    async def on_ready(self, app: faust.App, **kwargs: object) -> None:
        """Compare the table with the fold, and say what a crash left unsaid."""
        async with self.turn:
            for number, runs in sorted(self.keeper.pools.items()):
                for run_id in sorted(runs):
                    self.say(number, self.keeper.due(number, run_id))
                self.unwritten[number] = {
                    (row.run_id, row.task_id): None for pool in runs.values() for row in self.differing_rows(pool)
                }
        if self.settings.ready_file:
            Path(self.settings.ready_file).write_text(str(os.getpid()))

    def differing_rows(self, pool: object) -> list[PoolRow]:
        """Rows of the fold that the recovered table does not hold."""
        wrong = [row for row in rows_of(pool).values() if self.table.get(f"{row.run_id}/{row.task_id}") != row]
        if wrong:
            logger.warning("pool table differs from the fold in %d rows; they are written again", len(wrong))
        return wrong

    async def hear(self, event: faust.EventT, topic: str) -> None:
        """One record: fold it, say what is due, write rows.

        While more records wait, rows are kept back for a while, so that a task heard of many times is written once.
        """
        message = event.message
        number = message.partition
        record = Record(topic, number, message.offset, int(message.timestamp * 1000), message.key, message.value)
        async with self.turn:
            if number not in self.keeper.pools:
                await self.fold_missing({number})
            heard = self.keeper.hear(record)
            self.say(number, heard.say)
            unwritten = self.unwritten.setdefault(number, {})
            for task_id in heard.task_ids:
                unwritten[heard.run_id, task_id] = None
            if record.offset % RECORDS_AT_ONCE == 0 or not self.more_wait(message):
                self.write(number)
        if not heard.run_id:
            await self.all_said.wait()

    def more_wait(self, message: faust.types.Message) -> bool:
        """Whether the broker has told of records behind this one, in a partition that is still ours."""
        try:
            end = self.app.consumer.highwater(message.tp)
        except AssertionError:
            return False
        return end is not None and end > message.offset + 1

    def write(self, number: int) -> None:
        """Put changed rows into the table; only inside of an agent, which knows the partition."""
        for run_id, task_id in self.unwritten.pop(number):
            row = self.keeper.row(number, run_id, task_id)
            if row is not None:
                self.table[f"{run_id}/{task_id}"] = row

    def say(self, number: int, events: Sequence[Event]) -> None:
        """Have events of a partition sent."""
        if events:
            self.unsaid += [(number, event) for event in events]
            self.all_said.clear()
            self.is_due.set()

    async def keep_saying(self) -> None:
        """Send what is due, for as long as the worker lives: what comes up while the broker is asked goes with the next."""
        while True:
            await self.is_due.wait()
            self.is_due.clear()
            waiting, self.unsaid = self.unsaid, []
            records = [as_record(event, self.partitions)._replace(partition=number) for number, event in waiting]
            records.sort(key=lambda record: SAYING_ORDER.index(record.topic))
            for _, together in groupby(records, key=lambda record: record.topic):
                await asyncio.to_thread(self.log.send, list(together))
            if not self.unsaid:
                self.all_said.set()


def create_worker(settings: WorkerSettings) -> PoolWorker:
    """A worker with its agents, one per input topic."""
    worker = PoolWorker(settings)
    app, topics, hear = worker.app, worker.topics, worker.hear

    @app.agent(topics["runs"])
    async def fold_runs(stream: faust.StreamT) -> None:
        async for event in stream.events():
            await hear(event, "runs")

    @app.agent(topics["tasks"])
    async def fold_tasks(stream: faust.StreamT) -> None:
        async for event in stream.events():
            await hear(event, "tasks")

    @app.agent(topics["rollouts"])
    async def fold_rollouts(stream: faust.StreamT) -> None:
        async for event in stream.events():
            await hear(event, "rollouts")

    @app.agent(topics["synthesis-outcomes"])
    async def fold_synthesis_outcomes(stream: faust.StreamT) -> None:
        async for event in stream.events():
            await hear(event, "synthesis-outcomes")

    @app.agent(topics["steps"])
    async def fold_steps(stream: faust.StreamT) -> None:
        async for event in stream.events():
            await hear(event, "steps")

    @app.task
    async def keep_saying() -> None:
        try:
            await worker.keep_saying()
        except LogUnavailable as error:
            app.end("what is decided cannot be sent: the log", error)

    return worker


def run(settings: WorkerSettings) -> None:
    """Run one worker until it is told to stop; does not return."""
    worker = create_worker(settings)
    for chatty in ("aiokafka", "faust", "mode"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    faust.Worker(worker.app, loglevel="WARN", redirect_stdouts=False).execute_from_commandline()
