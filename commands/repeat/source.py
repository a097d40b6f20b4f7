"""What a replay reads: the log, the run in it, its settings and its checkpoints; and whether the run contradicts itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.progress import Progress

from analysis.index import LogIndex, RunIndex
from analysis.replay import Divergence
from commands.config import ConfigError, RunConfig, load_config, validated
from commands.folder import RunFolder, find_run
from commands.source import archive_folder, run_folder
from schemas.events import RunStarted
from streams.archive.index import Problem, verify
from streams.archive.scan import Scanned, scan_log, scanned
from streams.archive.segments import ArchiveLog, partitions_in
from streams.log.discovery import existing, partitions_on
from streams.log.kafka import KafkaLog
from streams.log.port import Log, LogGap, Record
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS

DEAD_LETTERS = "dead-letters"
FACT_TOPICS = (*INPUT_TOPICS, *OUTPUT_TOPICS, DEAD_LETTERS)
BODIES = "trajectories"
CHUNK = 1000


@dataclass(frozen=True, slots=True)
class ReplayOrigin:
    """Where to look for a run.

    Attributes:
        name: as the user says it; the log's only run if empty.
        log: the log.
        partitions: number of partitions by topic.
        archive: its folder; ``None`` for a broker.
        folder: the run's folder; ``None`` where it is not known.
        runs: where run folders lie.
        damage: faults of the archive.
    """

    name: str
    log: Log
    partitions: Mapping[str, int]
    archive: Path | None
    folder: RunFolder | None
    runs: Path
    damage: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """A recorded run, its facts in memory.

    Attributes:
        origin: where it lies.
        log: what was read of the log.
        run: what the pool heard and said, with records.
        config: the settings recorded in RunStarted.
        folder: the run's folder; ``None`` where there is none here.
        checkpoints: folder of its checkpoints; ``None`` where they are not at hand.
    """

    origin: ReplayOrigin
    log: LogIndex
    run: RunIndex
    config: RunConfig
    folder: RunFolder | None
    checkpoints: Path | None

    @property
    def run_id(self) -> str:
        """The run."""
        return self.started.run_id

    @property
    def started(self) -> RunStarted:
        """Its opening."""
        return self.run.started

    @property
    def started_at(self) -> str:
        """Where its opening lies."""
        return self.run.scanned[self.started.event_id].where

    def bodies(self) -> Iterator[Scanned]:
        """The trajectories of the log from the beginning, read as they are asked for."""
        topics = [BODIES] if BODIES in self.origin.partitions else []
        return map(scanned, scan_log(self.origin.log, topics))


def origin_of(name: str | None, runs: Path, bootstrap_servers: str) -> ReplayOrigin:
    """Where a run lies: a run folder, an archive folder alone, or the topics of a broker.

    Raises:
        ConfigError: there is no such run.
        LogUnavailable: the broker does not answer or has no such topics.
    """
    if not bootstrap_servers:
        archive = archive_folder(name, runs)
        folder, partitions = run_folder(archive), partitions_in(archive)
        if not partitions:
            raise ConfigError(f"{archive} holds no topic")
        return ReplayOrigin(
            folder.run_id if folder else "",
            ArchiveLog(archive),
            partitions,
            archive,
            folder,
            runs,
            verify(archive).problems,
        )
    folder = _folder_of(name, runs)
    kafka = load_config(None, os.environ, []).kafka
    prefix = validated(folder.config(), str(folder.config_file)).kafka.topic_prefix if folder else kafka.topic_prefix
    connection = existing(bootstrap_servers, prefix, kafka.client)
    return ReplayOrigin(
        folder.run_id if folder else name or "", KafkaLog(connection), partitions_on(connection), None, folder, runs
    )


def _folder_of(name: str | None, runs: Path) -> RunFolder | None:
    """The folder of a run that is read from a broker; it may have none here."""
    try:
        return find_run(name, runs) if name else None
    except ConfigError:
        return None


def source_of(origin: ReplayOrigin, checkpoints: Path | None, progress: Progress) -> ReplaySource:
    """Read the facts of a run.

    Args:
        origin: where it lies.
        checkpoints: where its checkpoints lie, if not in its folder.
        progress: gets a bar with the number of records.

    Raises:
        LogGap: the log holds no such run, or offsets are missing.
    """
    run_id = run_in(origin)
    topics = [topic for topic in FACT_TOPICS if topic in origin.partitions]
    task = progress.add_task("reading", total=sum(origin.log.end_offsets(topics).values()))
    log, records = LogIndex(whole=True), scan_log(origin.log, topics)
    while chunk := list(islice(records, CHUNK)):
        log.add_records(scanned(record) for record in chunk if concerns(record, run_id))
        progress.advance(task, len(chunk))
    run = log.run(run_id)
    config = validated(settings_in(run.started), f"RunStarted of {run_id}")
    folder = origin.folder or _folder_of(run_id, origin.runs)
    return ReplaySource(origin, log, run, config, folder, checkpoints or (folder.checkpoints if folder else None))


def concerns(record: Record, run_id: str) -> bool:
    """Whether a record may say something of a run: by its key, or because it has none."""
    return record.key is None or record.key == run_id.encode() or record.topic == DEAD_LETTERS


def run_in(origin: ReplayOrigin) -> str:
    """Id of the run that is meant: the one named, else the only one in the log.

    Raises:
        LogGap: the log does not hold it, or holds several and none was named.
    """
    topics = [topic for topic in ("runs",) if topic in origin.partitions]
    events = (item.event for item in map(scanned, scan_log(origin.log, topics)))
    known = list(dict.fromkeys(event.run_id for event in events if isinstance(event, RunStarted)))
    if origin.name in known:
        return origin.name
    is_copy = origin.archive is not None and len(known) == 1
    if len(known) == 1 and (is_copy or not origin.name):
        return known[0]
    wanted = f"no RunStarted of {origin.name}" if origin.name else "no RunStarted" if not known else "several runs"
    raise LogGap(
        f"{origin.archive or 'the broker'} holds {wanted}; it holds the runs {known}. Is it the right run, archive, "
        "--from and topic prefix?"
    )


def settings_in(started: RunStarted) -> dict:
    """The configuration recorded in RunStarted.

    Raises:
        LogGap: it cannot be read.
    """
    try:
        return json.loads(started.config_json)
    except ValueError as error:
        raise LogGap(f"RunStarted {started.event_id}: its configuration cannot be read: {error}") from error


def settings_divergence(source: ReplaySource) -> Divergence | None:
    """The settings in which the run's folder and its RunStarted differ."""
    if source.folder is None:
        return None
    recorded, written = flat(settings_in(source.started)), flat(source.folder.config())
    keys = sorted(key for key in recorded.keys() | written.keys() if recorded.get(key) != written.get(key))
    if not keys:
        return None
    sides = ["; ".join(f"{key} = {side.get(key, '-')}" for key in keys[:5]) for side in (recorded, written)]
    what = f"setting {', '.join(keys[:5])}" + (f" and {len(keys) - 5} more" if keys[5:] else "")
    return Divergence(
        source.started_at,
        what,
        f"RunStarted: {sides[0]}",
        f"{source.folder.config_file}: {sides[1]}",
        source.started.event_id,
    )


def flat(tree: object, path: str = "") -> dict[str, object]:
    """Leaves of nested tables and lists by dotted path.

    >>> flat({"a": {"b": 1}, "c": [2, {"d": 3}]})
    {'a.b': 1, 'c.0': 2, 'c.1.d': 3}
    """
    if isinstance(tree, dict | list) and tree:
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {
            key: leaf
            for name, part in items
            for key, leaf in flat(part, f"{path}.{name}" if path else str(name)).items()
        }
    return {path: tree}
