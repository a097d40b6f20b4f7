"""Events as columns: Arrow tables, Parquet files and Arrow streams; one schema an event type, from the event classes.

Packed arrays become lists of numbers by joining their bytes into one buffer; no Python number is made. A packed field
whose bytes are no whole number of items becomes null.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import BinaryIO, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.event_values import PACKED
from schemas import events
from streams.log.port import Record

SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}
PLACE_FIELDS = (
    pa.field("log_partition", pa.int32(), nullable=False),
    pa.field("log_offset", pa.int64(), nullable=False),
    pa.field("log_timestamp_ms", pa.int64(), nullable=False),
)
"""Where a row's record lies: the order of events of one topic and run is the order of these offsets."""
BATCH_BYTES = 16 * 1024 * 1024
COMPRESSION_LEVEL = 1
Row = tuple[Record, Mapping[str, object]]
"""A record and the plain values of the event in it."""


@cache
def arrow_type(annotation: object) -> pa.DataType:
    """The Arrow type of a field's annotation; enums are strings, ``None`` is null."""
    if get_origin(annotation) is UnionType:
        annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return pa.list_(arrow_type(args[0]))
    if origin is not None and issubclass(origin, Mapping):
        return pa.map_(arrow_type(args[0]), arrow_type(args[1]))
    if hasattr(annotation, "AVRO_NAME"):
        return pa.struct([pa.field(name, arrow_type(hint)) for name, hint in _hints(annotation)])
    return SCALARS.get(annotation, pa.string())


def _hints(cls: type) -> list[tuple[str, object]]:
    hints = get_type_hints(cls)
    return [(field.name, hints[field.name]) for field in fields(cls)]


@cache
def schema_for(event_type: str, unpack: bool = True) -> pa.Schema:
    """The Arrow schema of an event type: its fields, then the place in the log."""
    packed = PACKED.get(event_type, {}) if unpack else {}
    own = [
        pa.field(name, pa.list_(pa.from_numpy_dtype(packed[name])) if name in packed else arrow_type(hint))
        for name, hint in _hints(getattr(events, event_type))
    ]
    return pa.schema([*own, *PLACE_FIELDS])


def packed_column(values: Sequence[bytes], dtype: np.dtype) -> pa.Array:
    """A list column from packed bytes, shape (rows, T of each row)."""
    sizes = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    broken = sizes % dtype.itemsize != 0
    if broken.any():
        values = [b"" if bad else value for value, bad in zip(values, broken, strict=True)]
        sizes[broken] = 0
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(sizes // dtype.itemsize, out=offsets[1:])
    items = pa.Array.from_buffers(pa.from_numpy_dtype(dtype), int(offsets[-1]), [None, pa.py_buffer(b"".join(values))])
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=pa.array(broken) if broken.any() else None)


def table_of(event_type: str, rows: Sequence[Row], unpack: bool = True) -> pa.Table:
    """A table of events of one type in the given order.

    Args:
        event_type: its name.
        rows: records with the plain values of their events.
        unpack: packed fields as lists of numbers rather than bytes.
    """
    packed = PACKED.get(event_type, {}) if unpack else {}
    schema = schema_for(event_type, unpack)
    columns = []
    for field in list(schema)[: -len(PLACE_FIELDS)]:
        values = [values[field.name] for _, values in rows]
        if field.name in packed:
            columns.append(packed_column(values, packed[field.name]))
        elif pa.types.is_map(field.type):
            columns.append(pa.array([list(value.items()) for value in values], type=field.type))
        else:
            columns.append(pa.array(values, type=field.type))
    for field, attribute in zip(PLACE_FIELDS, ("partition", "offset", "timestamp_ms"), strict=True):
        columns.append(pa.array([getattr(record, attribute) for record, _ in rows], type=field.type))
    return pa.Table.from_arrays(columns, schema=schema)


class ColumnFile:
    """Events of one type into one Parquet file or Arrow stream, a batch at a time, written in a second thread.

    Args:
        event_type: its name.
        sink: path or open file.
        thread: where batches are written.
        style: ``parquet`` or ``arrow``.
        unpack: packed fields as lists of numbers rather than bytes.

    Attributes:
        num_rows: events that were written.
        num_bytes: size of their records' values.
        num_broken: packed fields of them that did not unpack and are null.
    """

    def __init__(
        self,
        event_type: str,
        sink: Path | BinaryIO,
        thread: ThreadPoolExecutor,
        style: str = "parquet",
        unpack: bool = True,
    ) -> None:
        schema = schema_for(event_type, unpack)
        self._event_type, self._unpack, self._thread = event_type, unpack, thread
        if style == "arrow":
            self._writer = pa.ipc.new_stream(sink, schema)
        else:
            flat = [field.name for field in schema if not pa.types.is_nested(field.type)]
            self._writer = pq.ParquetWriter(
                sink,
                schema,
                compression="zstd",
                compression_level=COMPRESSION_LEVEL,
                use_dictionary=event_type not in PACKED,
                write_statistics=flat,
            )
        self._sink = sink
        self._rows: list[Row] = []
        self._waiting_bytes = 0
        self._pending: Future | None = None
        self.num_rows = self.num_bytes = self.num_broken = 0
        self._since_s = 0.0

    def add(self, record: Record, values: Mapping[str, object]) -> None:
        """Take an event in."""
        if not self._rows:
            self._since_s = time.monotonic()
        self._rows.append((record, values))
        self._waiting_bytes += len(record.value)
        if self._waiting_bytes >= BATCH_BYTES:
            self.flush()

    @property
    def waiting_s(self) -> float:
        """How long the oldest row has waited to be written, seconds; 0 without one."""
        return time.monotonic() - self._since_s if self._rows else 0.0

    def flush(self) -> None:
        """Begin to write the rows that wait; first the ones before must be written."""
        if self._rows:
            table = table_of(self._event_type, self._rows, self._unpack)
            self.num_rows += len(self._rows)
            self.num_bytes += self._waiting_bytes
            if self._unpack:
                self.num_broken += sum(table.column(name).null_count for name in PACKED.get(self._event_type, {}))
            self._rows, self._waiting_bytes = [], 0
            self._await()
            self._pending = self._thread.submit(self._write, table)

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table)
        if not isinstance(self._sink, Path):
            self._sink.flush()

    def _await(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Write what waits and end the file."""
        try:
            self.flush()
            self._await()
        finally:
            self._writer.close()
