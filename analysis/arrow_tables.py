"""Events as Arrow tables, column by column: one schema an event type, taken from the event classes.

Packed arrays become lists of numbers by joining their bytes into one buffer; no Python number is made. A packed field
whose bytes are no whole number of items becomes null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

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


def num_broken(table: pa.Table, event_type: str) -> int:
    """Packed fields of a table that did not unpack."""
    return sum(table.column(name).null_count for name in PACKED.get(event_type, {}))
