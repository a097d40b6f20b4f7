"""The processes of a stack, each against a broker that is there already.

``rods init-topics``, ``worker``, ``archiver``, ``synthesizer``, ``trainer``, ``metrics``, ``health``.

They run the same code as the children of ``rods run``; what differs is who starts them. Each opens ``/healthz`` and
``/metrics`` when ``RODS_METRICS_PORT`` is set.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from commands.config import ConfigError, RunConfig
from commands.folder import RunFolder
from schemas import registry as schema_registry
from streams.health import PORT, probe, serve_if_asked
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.topics import ensure_topics, partitions_of

logger = logging.getLogger("rods.service")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
BROKER_PATIENCE_S = 120.0
RETRY_EVERY_S = 1.0


def stack_connection(config: RunConfig) -> Connection:
    """The broker of a stack.

    Raises:
        ConfigError: none is configured, or registry and topics would disagree on the prefix.
    """
    if not config.kafka.bootstrap_servers:
        raise ConfigError(
            "kafka.bootstrap_servers is empty: a service of a stack needs a broker "
            "(RODS_KAFKA__BOOTSTRAP_SERVERS=host:port); `rods run` starts its own"
        )
    named = schema_registry.settings_from(os.environ)
    if named is not None and named.prefix != config.kafka.topic_prefix:
        raise ConfigError(
            f"kafka.topic_prefix is {config.kafka.topic_prefix!r} but the schema registry's subjects start with "
            f"{named.prefix!r}: set {schema_registry.PREFIX} instead of the file's topic_prefix"
        )
    return config.kafka.connection()


def prepare() -> threading.Event:
    """Logging and stop signals of a service; the event is set by SIGTERM and SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    return stop


def await_broker(ask: Callable[[], Sequence[str]], patience_s: float = BROKER_PATIENCE_S) -> Sequence[str]:
    """Ask until the broker answers.

    Raises:
        LogUnavailable: it did not in time.
    """
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except LogUnavailable as error:
            if time.monotonic() > give_up_s:
                raise
            logger.warning("%s", error)
            time.sleep(RETRY_EVERY_S)


def init_topics(config: RunConfig, console: Console) -> None:
    """Create missing topics, refuse unfit ones, register every schema where there is a registry; safe to repeat.

    Raises:
        UnsafeTopic, LogUnavailable, SchemaRefused, RegistryUnavailable: with the reason.
    """
    connection = stack_connection(config)
    created = await_broker(lambda: ensure_topics(connection))
    console.print(
        f"topics: {len(created)} created, {len(partitions_of(connection)) - len(created)} there already",
        highlight=False,
    )
    named = schema_registry.settings_from(os.environ)
    if named is not None:
        ids = schema_registry.registry_of(named).register_all()
        console.print(
            f"schemas: {len(ids)} registered at {named.url}, {schema_registry.COMPATIBILITY}", highlight=False
        )


def worker(config: RunConfig, datadir: Path, app_id: str, ready_file: Path | None) -> None:
    """Run one pool worker; start as many as there are partitions of decision topics."""
    from streams.pool.worker import WorkerSettings, run

    connection = stack_connection(config)
    ready = ready_file or datadir / "ready"
    datadir.mkdir(parents=True, exist_ok=True)
    ready.unlink(missing_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    await_broker(lambda: ensure_topics(connection))
    serve_if_asked("worker", os.environ, {"folded": lambda: "" if ready.exists() else "the pool is not folded yet"})
    run(WorkerSettings(connection, datadir, app_id, str(ready)))


def archiver(config: RunConfig, archive: Path) -> None:
    """Mirror every topic into a folder until stopped, then up to the log's end.

    Raises:
        LogUnavailable, LogGap: with the reason; what was copied is durable.
    """
    from streams.archive.archiver import mirror
    from streams.archive.segments import ArchiveLog

    connection, stop = stack_connection(config), prepare()
    await_broker(lambda: ensure_topics(connection))
    archive.mkdir(parents=True, exist_ok=True)
    serve_if_asked("archiver", os.environ)
    store = ArchiveLog(archive, partitions_of(connection))
    copied = mirror(KafkaLog(connection), store, stop.is_set, lambda: logger.info("mirroring into %s", archive))
    logger.info("%s", json.dumps({"copied": copied}))


def synthesizer(config: RunConfig) -> None:
    """Answer the boundary signals of every run until stopped; each run by its own recorded settings."""
    from commands.synthesis_runs import SynthesizerPool

    connection, stop = stack_connection(config), prepare()
    await_broker(lambda: ensure_topics(connection))
    pool = SynthesizerPool(connection, stop)
    serve_if_asked("synthesizer", os.environ, {"runs": pool.complaint})
    pool.run()


def run_folder(config: RunConfig, run_id: str) -> RunFolder:
    """The folder of a run that a stack's trainer drives; made on the first start, found again on the next.

    Raises:
        ConfigError: the id cannot be a folder's name.
    """
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"run id {run_id!r}: letters, digits, dots, hyphens and underscores, at most 81 (RODS_RUN_ID)"
        )
    folder = RunFolder((config.run.folder / run_id).resolve())
    return folder if folder.config_file.exists() else folder.create(config)


def trainer(config: RunConfig, run_id: str) -> None:
    """Train one run to its end, or on from its last checkpoint.

    Raises:
        SystemExit: 3 when it was stopped, 1 when it failed.
    """
    from commands.config import validated
    from commands.process import ProcessContext
    from commands.trainer import FAILURES, work
    from schemas.events import RunOutcome

    connection, stop = stack_connection(config), prepare()
    await_broker(lambda: ensure_topics(connection))
    folder = run_folder(config, run_id)
    recorded = validated(folder.config(), str(folder.config_file))
    with folder.lock():
        serve_if_asked("trainer", os.environ)
        try:
            outcome = work(ProcessContext(folder, recorded, connection, "", stop))
        except FAILURES as error:
            logger.error("%s", error)
            raise SystemExit(1) from error
    logger.info("%s", outcome.value)
    if outcome is not RunOutcome.COMPLETED:
        raise SystemExit(3)


def metrics(config: RunConfig, silence_s: float) -> None:
    """Answer Prometheus for every run of the log until stopped."""
    from commands.metrics import RunBoard, exporter, follow

    connection, stop = stack_connection(config), prepare()
    await_broker(lambda: ensure_topics(connection))
    board = RunBoard(silence_s)
    server = exporter(board, os.environ)
    logger.info("figures of every run on port %d", server.port)
    follow(connection, board, stop.is_set)
    server.stop()


def health(environment: Mapping[str, str], console: Console) -> bool:
    """Ask this machine's service whether it is well; what a container's health check calls.

    Raises:
        ConfigError: no port is known.
    """
    port = environment.get(PORT, "")
    if not port.isdigit() or port == "0":
        raise ConfigError(f"{PORT} says where to ask; it is {port!r}")
    healthy, answer = probe(int(port))
    console.print(answer, highlight=False, soft_wrap=True)
    return healthy
