"""Where a command reads: a run by name, an archive folder, or a broker by its address; and what such commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from analysis.tap import Tail
from commands.config import ConfigError, load_config
from commands.folder import RunFolder, find_run
from schemas import TOPICS, Event
from schemas.events import RunStarted
from streams.archive.scan import scan_archive, scan_log, scanned
from streams.archive.segments import ArchiveLog, partitions_in
from streams.log.connection import Connection
from streams.log.discovery import existing, partitions_on, sized
from streams.log.kafka import KafkaLog
from streams.log.port import Log, Record
from streams.log.reader import LogTail

ADDRESS = re.compile(r"[\w.\-\[\]:]+:\d+(,[\w.\-\[\]:]+:\d+)*")
FACTS = tuple(topic for topic in TOPICS if topic not in ("trajectories", "dead-letters"))
"""Topics of everything but bodies and dead letters."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """A log to read.

    Attributes:
        name: as the user knows it.
        log: the log.
        partitions: number of partitions by topic.
        archive: its folder; ``None`` for a broker.
    """

    name: str
    log: Log
    partitions: Mapping[str, int]
    archive: Path | None = None

    def records(self, topics: Iterable[str], on_bytes: Callable[[int], None] = lambda _: None) -> Iterator[Record]:
        """Every record of some topics up to the end they have now."""
        present = [topic for topic in topics if topic in self.partitions]
        return scan_log(self.log, present) if self.archive is None else scan_archive(self.archive, present, on_bytes)

    def tail(self, topics: Iterable[str]) -> Tail:
        """Some topics from the beginning on, as they grow."""
        present = [topic for topic in topics if topic in self.partitions]
        return LogTail(self.log, present, self.partitions)

    def events(self, topics: Iterable[str] = FACTS) -> Iterator[Event]:
        """Every event of some topics; records that are no events are left out."""
        return (item.event for item in map(scanned, self.records(topics)) if item.event is not None)


def is_address(name: str) -> bool:
    """Whether a text is a broker's address rather than a run.

    >>> is_address("127.0.0.1:9092"), is_address("a:1,b:2"), is_address("20260131-120000-abcdef")
    (True, True, False)
    """
    return ADDRESS.fullmatch(name) is not None and not Path(name).exists()


def archive_folder(name: str | None, runs: Path) -> Path:
    """The archive of a run given by id or folder, or the archive folder itself; the newest run if not given.

    Raises:
        ConfigError: there is none.
    """
    path = Path(name) if name else None
    if path is not None and not (path / "config.json").exists() and (path / "runs").is_dir():
        return path
    folder = find_run(name, runs)
    if not folder.archive.is_dir():
        raise ConfigError(f"{folder.path} has no archive folder")
    return folder.archive


def run_folder(archive: Path) -> RunFolder | None:
    """The run folder an archive lies in, if it does."""
    return RunFolder(archive.resolve().parent) if (archive.resolve().parent / "config.json").exists() else None


def open_source(name: str | None, runs: Path) -> LogSource:
    """A source by run id, folder or broker address; the newest run if no name is given.

    Raises:
        ConfigError: no such run.
        LogUnavailable: the broker does not answer or has no such topics.
    """
    if name and is_address(name):
        connection = existing_broker(name)
        return LogSource(name, KafkaLog(connection), partitions_on(connection))
    archive = archive_folder(name, runs)
    partitions = partitions_in(archive)
    return LogSource(str(archive), ArchiveLog(archive, partitions), partitions, archive)


def existing_broker(address: str) -> Connection:
    """A connection to a broker that holds our topics; prefix and security from the ``RODS_KAFKA__`` variables."""
    kafka = load_config(None, os.environ, []).kafka
    return existing(address, kafka.topic_prefix, kafka.client)


def fresh_broker(address: str, partitions: Mapping[str, int]) -> Connection:
    """A connection to a broker that is to get topics with these partitions."""
    kafka = load_config(None, os.environ, []).kafka
    return sized(address, kafka.topic_prefix, kafka.client, partitions)


def the_run(source: LogSource, run_id: str = "") -> str:
    """The run a command is about: the one given, the one whose folder it is, or the only one in the log.

    Raises:
        ConfigError: none, or more than one and nobody said which.
    """
    known = [event.run_id for event in source.events(("runs",)) if isinstance(event, RunStarted)]
    folder = run_folder(source.archive) if source.archive else None
    for wanted in filter(None, (run_id, folder.run_id if folder and not run_id else "")):
        if wanted in known:
            return wanted
    if run_id or len(set(known)) != 1:
        raise ConfigError(f"{source.name} holds the runs {sorted(set(known))}; choose one with --run-id")
    return known[0]


@contextmanager
def analysis_extra(command: str) -> Iterator[None]:
    """Name the extra when pyarrow or duckdb are missing.

    Raises:
        ConfigError: one of them cannot be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyarrow", "duckdb"):
            raise
        raise ConfigError(f"`rods {command}` needs {error.name}: pip install 'rods-streams[analysis]'") from error


@contextmanager
def mendable(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into the one that reaches the terminal as a message.

    Raises:
        ConfigError: with the same text.
    """
    try:
        yield
    except kinds as error:
        raise ConfigError(str(error.args[0]) if error.args else str(error)) from error
