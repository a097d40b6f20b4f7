"""An archive as Parquet: one data set an event type, partitioned by run and day, packed arrays as lists.

Layout: ``<to>/<event_type>/run=<run id>/day=<YYYY-MM-DD>/<topic>-<partition>.parquet``; the day is that of
``occurred_at_ms`` in UTC. An event that lies in the log twice is exported once. Files are made in a hidden folder of this
export's own beside the data sets and moved into place at the end; an earlier data set is moved aside before and deleted
after. An export that was cut off leaves no half data set: the next one clears its folder away and puts back what it had
moved aside.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from analysis.columns import ColumnFile
from analysis.event_values import event_types_of, table_name, topics_of, values_of
from analysis.index import Firsts
from schemas import Undecodable
from streams.archive.scan import scan_archive
from streams.log.port import Place, Record

NO_RUN = "__HIVE_DEFAULT_PARTITION__"
INCOMING = ".incoming-"
ASIDE = "aside"
NAMED_FAULTS = 20
MS_A_DAY = 86_400_000
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


class ExportExists(FileExistsError):
    """The target holds an export of this run; the text says which and what to do."""


class Part(NamedTuple):
    """One Parquet file's coordinates."""

    event_type: str
    run_id: str
    day: str
    place: Place

    @property
    def folder(self) -> str:
        """Folder of the run's data set, relative to the target."""
        return f"{table_name(self.event_type)}/run={quote(self.run_id, safe='') or NO_RUN}"

    @property
    def file(self) -> str:
        """Path relative to the target."""
        return f"{self.folder}/day={self.day}/{self.place.topic}-{self.place.partition}.parquet"


@dataclass(slots=True)
class ExportReport:
    """What was exported.

    Attributes:
        rows: events by event type.
        num_bytes: size of the exported records' values, uncompressed.
        num_duplicates: records whose event was exported already.
        num_undecodable: records that are no events; ``faults`` names the first ones.
        num_broken: packed fields that did not unpack and are null.
        files: files written, relative to the target.
    """

    rows: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    num_duplicates: int = 0
    num_undecodable: int = 0
    num_broken: int = 0
    faults: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def count(self, part: Part, file: ColumnFile) -> None:
        """Add a file that is written."""
        self.files.append(part.file)
        self.rows[part.event_type] = self.rows.get(part.event_type, 0) + file.num_rows
        self.num_bytes += file.num_bytes
        self.num_broken += file.num_broken


@lru_cache(maxsize=64)
def day_of(occurred_at_ms: int) -> str:
    """UTC day of a time; one outside of the calendar gives 1970-01-01.

    >>> day_of(86_400_000), day_of(10**18)
    ('1970-01-02', '1970-01-01')
    """
    try:
        return date.fromordinal(EPOCH_ORDINAL + occurred_at_ms // MS_A_DAY).isoformat()
    except (ValueError, OverflowError):
        return date.fromordinal(EPOCH_ORDINAL).isoformat()


def export_archive(
    root: Path,
    to: Path,
    event_types: Iterable[str] = (),
    overwrite: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> ExportReport:
    """Write an archive's events as Parquet.

    Args:
        root: the archive folder; another process may be writing it.
        to: target folder, made if missing; other runs in it stay.
        event_types: only these; all if empty.
        overwrite: replace an earlier export of the same runs.
        on_bytes: told how many bytes on disk were read since the last call; the total is
            ``streams.archive.scan.archive_bytes``.

    Raises:
        ExportExists: ``to`` holds a data set of one of the runs and ``overwrite`` is off.
        LogGap: the archive has a hole.
        FileNotFoundError: there is no archive.
    """
    names = tuple(event_types) or event_types_of("all")
    report, firsts, folders = ExportReport(), Firsts(), set()

    def on_fault(record: Record, error: Undecodable) -> None:
        report.num_undecodable += 1
        if len(report.faults) < NAMED_FAULTS:
            report.faults.append(f"{record.topic}-{record.partition}@{record.offset}: {error}")

    with incoming_folder(to) as incoming, ThreadPoolExecutor(max_workers=1) as thread:
        records = scan_archive(root, topics_of(names), on_bytes)
        for place, values in groupby(values_of(records, names, on_fault), key=lambda row: row[0].place):
            files: dict[Part, ColumnFile] = {}
            with ExitStack() as held:
                for record, name, event in values:
                    if not firsts.is_first(event["event_id"]):
                        continue
                    part = Part(name, event["run_id"], day_of(event["occurred_at_ms"]), place)
                    if part not in files:
                        refuse_unless(overwrite, to / part.folder)
                        folders.add(part.folder)
                        path = incoming / part.file
                        path.parent.mkdir(parents=True, exist_ok=True)
                        files[part] = ColumnFile(name, path, thread)
                        held.callback(files[part].close)
                    files[part].add(record, event)
            for part, file in sorted(files.items()):
                report.count(part, file)
        report.num_duplicates = firsts.num_repeated
        with locked(to):
            publish(incoming, to, sorted(folders), overwrite)
    return report


@contextmanager
def incoming_folder(to: Path) -> Iterator[Path]:
    """A folder of this export's own inside the target, gone afterwards; those of exports that were cut off are cleared."""
    to.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with locked(to):
            for left in sorted(to.glob(f"{INCOMING}*")):
                with suppress(BlockingIOError), locked(left, fcntl.LOCK_NB):
                    clear(left, to)
            incoming = Path(tempfile.mkdtemp(prefix=INCOMING, dir=to))
            held.enter_context(locked(incoming))
        try:
            yield incoming
        finally:
            clear(incoming, to)


@contextmanager
def locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """Hold a folder against other exports; the lock goes with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(handle)


def clear(incoming: Path, to: Path) -> None:
    """Remove an export's folder; a data set it had moved aside and not replaced goes back to its place."""
    for old in sorted((incoming / ASIDE).glob("*/run=*")):
        target = to / old.relative_to(incoming / ASIDE)
        if not target.exists():
            old.replace(target)
    shutil.rmtree(incoming, ignore_errors=True)


def publish(incoming: Path, to: Path, folders: Iterable[str], overwrite: bool) -> None:
    """Move finished data sets into place, earlier ones aside.

    Raises:
        ExportExists: one came there meanwhile and ``overwrite`` is off.
    """
    for folder in folders:
        target, aside = to / folder, incoming / ASIDE / folder
        refuse_unless(overwrite, target)
        if target.exists():
            aside.parent.mkdir(parents=True, exist_ok=True)
            target.replace(aside)
        target.parent.mkdir(parents=True, exist_ok=True)
        (incoming / folder).replace(target)


def refuse_unless(overwrite: bool, target: Path) -> None:
    """Keep an earlier data set.

    Raises:
        ExportExists: it is there and may not be replaced.
    """
    if target.exists() and not overwrite:
        raise ExportExists(f"{target} is there already: choose another folder or pass --overwrite")
