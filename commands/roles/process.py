"""What every process of a run or a stack shares: its broker, stop signal, ready file and journal; and how a run's end is told.

`rods run` gives its processes ``--connection``, ``--run-folder`` and ``--ready-file``. In a stack a process takes its broker
from ``kafka.*``, waits until it answers, and makes missing topics.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commands.config import ConfigError, RunConfig, load_config
from commands.folder import RunFolder
from schemas import Event
from schemas import registry as schema_registry
from schemas.events import RunFinished, RunOutcome, RunStarted, StepCompleted
from streams.archive.journal import Journal, JournaledLog
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import Log, LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import ensure_topics, partitions_of
from streams.processes import end_with_parent
from trainer.curriculum import end_of_run

logger = logging.getLogger("rods.process")
BROKER_PATIENCE_S = 120.0
RETRY_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        config: settings of its run, or of the stack.
        connection: the broker.
        stop: set by SIGTERM and SIGINT.
        folder: the run it belongs to; ``None`` for one that serves every run of a broker.
        ready_file: written by :meth:`ready`.
        is_child: whether `rods run` or another program started it, restarts it, and tells how the run ended.
    """

    config: RunConfig
    connection: Connection
    stop: threading.Event
    folder: RunFolder | None = None
    ready_file: Path | None = None
    is_child: bool = False

    def journal(self, name: str) -> Journal | None:
        """What this process writes, on disk until the archive holds it: on the embedded broker, which forgets."""
        if self.folder is None or not self.connection.embedded:
            return None
        return Journal(self.folder.journals / name, self.folder.archive)

    def producer(self, name: str) -> Log:
        """The log to append to."""
        log, journal = KafkaLog(self.connection), self.journal(name)
        return log if journal is None else JournaledLog(log, journal, partitions_of(self.connection))

    def ready(self) -> None:
        """Tell the parent that this process listens; of several under ``torchrun``, the first one does."""
        if self.ready_file and os.environ.get("RANK", "0") == "0":
            self.ready_file.write_text(str(os.getpid()))


def begin(
    file: Path | None,
    overrides: Sequence[str] | None,
    connection: str = "",
    folder: Path | None = None,
    ready_file: Path | None = None,
) -> Process:
    """The process of a command with these options.

    Raises:
        ConfigError: there is no broker to join, or a setting is wrong.
        LogUnavailable, UnsafeTopic: the broker of a stack does not answer, or holds a topic that would forget.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    run = RunFolder(folder) if folder else None
    config = run.settings() if run else load_config(file, os.environ, overrides or [])
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    if connection:
        end_with_parent()
        return Process(config, Connection.from_json(connection), stop, run, ready_file, is_child=True)
    broker = stack_connection(config)
    await_broker(lambda: ensure_topics(broker))
    return Process(config, broker, stop, run, ready_file)


def role_command(role: str, connection: Connection, *options: str, starter: Sequence[str] = ()) -> list[str]:
    """The command line of ``rods ROLE`` on a broker.

    Args:
        role: name of the command.
        connection: the broker.
        options: what follows the name.
        starter: options of Python that start it, as ``-m torch.distributed.run``.
    """
    return [sys.executable, *starter, "-m", "cli", role, *options, "--connection", connection.to_json()]


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


def last_word(events: Sequence[Event]) -> RunStarted | RunFinished | None:
    """What was said last of a run's start and end; a run that goes on says RunStarted once more.

    Args:
        events: of one run in log order, repeated ones too.
    """
    return next((event for event in reversed(events) if isinstance(event, RunStarted | RunFinished)), None)


def was_left(events: Sequence[Event]) -> bool:
    """Whether the last word of a run is an end before the last epoch: nobody drives it now; see :func:`last_word`."""
    last = last_word(events)
    return isinstance(last, RunFinished) and last.outcome is not RunOutcome.COMPLETED


def tell_end(connection: Connection, run_id: str, outcome: RunOutcome, reason: str) -> None:
    """Write that a run was left before its last epoch, unless it was not begun or has its end in the log.

    Raises:
        LogUnavailable: the broker does not answer.
    """
    log = KafkaLog(connection)
    try:
        events = EventReader(log, ("runs", "steps"), partitions_of(connection), run_id).catch_up()
        said = last_word(events)
        if not isinstance(said, RunStarted):
            return
        steps = [event for event in events if isinstance(event, StepCompleted)]
        last = max(steps, key=lambda done: done.step, default=said)
        log.append([end_of_run(last, outcome, reason)])
    finally:
        log.close()
