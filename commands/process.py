"""What the child processes of a run share: their arguments, their stop signal, their ready file."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commands.config import RunConfig, validated
from commands.folder import RunFolder
from streams.archive.journal import Journal, JournaledLog
from streams.health import serve_if_asked
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import Log
from streams.log.topics import partitions_of
from streams.processes import end_with_parent


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """One child process.

    Attributes:
        folder: the run.
        config: its recorded configuration.
        connection: the broker.
        ready_file: written by :meth:`ready`.
        stop: set by SIGTERM.
    """

    folder: RunFolder
    config: RunConfig
    connection: Connection
    ready_file: str
    stop: threading.Event

    def producer(self, name: str) -> Log:
        """The log to append to; on the embedded broker, which forgets, with a journal on disk."""
        log = KafkaLog(self.connection)
        if not self.connection.embedded:
            return log
        return JournaledLog(
            log, Journal(self.folder.journals / name, self.folder.archive), partitions_of(self.connection)
        )

    def ready(self) -> None:
        """Tell the parent that this process listens; of several under ``torchrun``, the first one does."""
        if self.ready_file and os.environ.get("RANK", "0") == "0":
            Path(self.ready_file).write_text(str(os.getpid()))


def context_from_arguments(description: str, arguments: Sequence[str] | None = None) -> ProcessContext:
    """Read the command line, or the given part of it, and prepare the process."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--connection", required=True, help="connection settings as JSON")
    parser.add_argument("--run", required=True, type=Path, help="run folder")
    parser.add_argument("--ready-file", default="")
    options = parser.parse_args(arguments)
    end_with_parent()
    serve_if_asked(Path(sys.argv[0]).stem, os.environ)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    folder = RunFolder(options.run)
    config = validated(folder.config(), str(folder.config_file))
    return ProcessContext(folder, config, Connection.from_json(options.connection), options.ready_file, stop)
