"""An archive as Parquet: one data set an event type, partitioned by run and day, packed arrays as lists.

Layout: ``<to>/<event_type>/run=<run id>/day=<YYYY-MM-DD>/<topic>-<partition>.parquet``; the day is that of
``occurred_at_ms`` in UTC. An event that lies in the log twice is exported once. Files are made in a hidden folder of this
export's own beside the data sets and moved into place at the end; an earlier data set is moved aside before and deleted
after. An export that was cut off leaves no half data set: the next one clears its folder away and puts back what it had
moved aside.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.arrow_tables import Row, num_broken, schema_for, table_of
from analysis.event_values import PACKED, event_types_of, table_name, topics_of
from schemas import Undecodable
from streams.archive.scan import plain_values, scan_archive
from streams.log.port import Place, Record

ROW_GROUP_BYTES = 16 * 1024 * 1024
COMPRESSION_LEVEL = 1
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


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    try:
        return date.fromordinal(EPOCH_ORDINAL + number).isoformat()
    except (ValueError, OverflowError):
        return date.fromordinal(EPOCH_ORDINAL).isoformat()


def day_of(occurred_at_ms: int) -> str:
    """UTC day of a time; one outside of the calendar gives 1970-01-01.

    >>> day_of(86_400_000), day_of(10**18)
    ('1970-01-02', '1970-01-01')
    """
    return _day(occurred_at_ms // MS_A_DAY)


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
    with incoming_folder(to) as incoming, closing(_Writer(to, incoming, overwrite)) as writer:
        with without_cycle_collection():
            for _, records in groupby(scan_archive(root, topics_of(names), on_bytes), key=lambda record: record.place):
                for record in records:
                    writer.add(record, names)
                writer.finish_place()
        with locked(to):
            publish(incoming, to, writer.folders(), overwrite)
    return writer.report


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
        if target.exists():
            refuse_unless(overwrite, target)
            aside.parent.mkdir(parents=True, exist_ok=True)
            target.replace(aside)
        target.parent.mkdir(parents=True, exist_ok=True)
        (incoming / folder).replace(target)


def refuse_unless(overwrite: bool, target: Path) -> None:
    """Keep an earlier data set.

    Raises:
        ExportExists: it may not be replaced.
    """
    if not overwrite:
        raise ExportExists(f"{target} is there already: choose another folder or pass --overwrite")


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Rows are trees without cycles; a collector that walks the growing heap again and again would halve the pace."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Writer:
    """Collects rows by part, writes full row groups in a second thread."""

    def __init__(self, to: Path, incoming: Path, overwrite: bool) -> None:
        self._to = to
        self._incoming = incoming
        self._overwrite = overwrite
        self._seen: set[str] = set()
        self._rows: dict[Part, list[Row]] = {}
        self._sizes: dict[Part, int] = {}
        self._open: dict[Part, pq.ParquetWriter] = {}
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future | None = None
        self.report = ExportReport()

    def add(self, record: Record, names: tuple[str, ...]) -> None:
        """Take a record in."""
        try:
            name, values = plain_values(record)
        except Undecodable as error:
            self.report.num_undecodable += 1
            where = f"{record.topic}-{record.partition}@{record.offset}"
            self.report.faults += [f"{where}: {error}"] if len(self.report.faults) < NAMED_FAULTS else []
            return
        if name not in names:
            return
        if values["event_id"] in self._seen:
            self.report.num_duplicates += 1
            return
        self._seen.add(values["event_id"])
        part = Part(name, values["run_id"], day_of(values["occurred_at_ms"]), record.place)
        self._rows.setdefault(part, []).append((record, values))
        self._sizes[part] = self._sizes.get(part, 0) + len(record.value)
        if self._sizes[part] >= ROW_GROUP_BYTES:
            self._flush(part)

    def _flush(self, part: Part) -> None:
        rows, size = self._rows.pop(part), self._sizes.pop(part)
        table = table_of(part.event_type, rows)
        self.report.rows[part.event_type] = self.report.rows.get(part.event_type, 0) + len(rows)
        self.report.num_bytes += size
        self.report.num_broken += num_broken(table, part.event_type)
        writer = self._writer(part)
        self._await()
        self._pending = self._thread.submit(writer.write_table, table)

    def _await(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _writer(self, part: Part) -> pq.ParquetWriter:
        if part not in self._open:
            if (self._to / part.folder).exists():
                refuse_unless(self._overwrite, self._to / part.folder)
            path = self._incoming / part.file
            path.parent.mkdir(parents=True, exist_ok=True)
            self.report.files.append(part.file)
            self._open[part] = writer_for(part.event_type, path)
        return self._open[part]

    def finish_place(self) -> None:
        """Write what is left and close the files of a partition."""
        for part in sorted(self._rows):
            self._flush(part)
        self._await()
        for writer in self._open.values():
            writer.close()
        self._open = {}

    def folders(self) -> list[str]:
        """Data sets that were written, relative to the target."""
        return sorted({str(Path(name).parents[1]) for name in self.report.files})

    def close(self) -> None:
        """Release files and the thread, whatever happened before."""
        self._thread.shutdown(wait=True)
        for writer in self._open.values():
            writer.close()
        self._open = {}


def writer_for(event_type: str, path: Path | pa.NativeFile, unpack: bool = True) -> pq.ParquetWriter:
    """A Parquet writer for tables of one event type: zstd, no dictionaries for packed arrays."""
    packed = PACKED.get(event_type, {})
    schema = schema_for(event_type, unpack)
    plain_columns = [f"{name}.list.element" if unpack else name for name in packed]
    dictionaries = [path for path in _leaf_paths(schema) if path not in plain_columns]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=dictionaries,
        write_statistics=[field.name for field in schema if not pa.types.is_nested(field.type)],
    )


def _leaf_paths(schema: pa.Schema) -> list[str]:
    """Parquet column paths of a schema, in order."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema):
        pass
    parquet = pq.ParquetFile(sink.getvalue()).schema
    return [parquet.column(index).path for index in range(len(parquet))]
