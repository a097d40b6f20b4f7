"""The blocks of an archive segment, also of a damaged one. Pure functions of bytes.

A block is: number of records, length, compressed records, the file's sync marker. Where the structure is broken the
walk goes on behind the next marker.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import fastavro
from backports import zstd

from streams.archive import RECORD_SCHEMA, SYNC_MARKER_BYTES, TORN

MOST_HEADER_BYTES = 16 * 1024
MAX_VARINT_BYTES = 10
HEADER_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "namespace": "rods.archive.file",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": SYNC_MARKER_BYTES}},
        ],
    }
)
BROKEN = (*TORN, KeyError, TypeError, MemoryError, OverflowError, UnicodeDecodeError)
"""What reading damaged bytes raises."""


@dataclass(frozen=True, slots=True)
class Span:
    """A block, or bytes that should be one.

    Attributes:
        start, end: byte range in the segment, end excluded.
        first_offset, last_offset: of its records; -1 where it cannot be read.
        is_torn: no marker follows: half a block at the end of the file.
    """

    start: int
    end: int
    first_offset: int = -1
    last_offset: int = -1
    is_torn: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether its records could be read."""
        return self.first_offset >= 0


def header_of(data: bytes) -> tuple[bytes, int] | None:
    """Sync marker and length of the header, or ``None`` if it is broken."""
    stream = io.BytesIO(data)
    try:
        header = fastavro.schemaless_reader(stream, HEADER_SCHEMA, None)
    except BROKEN:
        return None
    return (header["sync"], stream.tell()) if header["magic"] == b"Obj\x01" else None


def spans_of(data: bytes, start: int) -> list[Span]:
    """Every block from a byte position to the end.

    Args:
        data: the whole segment.
        start: position of a block; 0 for the first one behind the header.
    """
    header = header_of(data)
    if header is None:
        return [Span(start, len(data), is_torn=b"Obj\x01".startswith(data[:4]) and len(data) < MOST_HEADER_BYTES)]
    sync, body = header
    spans, position = [], max(start, body)
    while position < len(data):
        span = _block_at(data, position, sync)
        spans.append(span)
        position = span.end
    return spans


def _block_at(data: bytes, position: int, sync: bytes) -> Span:
    """The block at a position; where there is none, the bytes up to the next marker."""
    marker = data.find(sync, position)
    broken = Span(position, marker + len(sync)) if marker >= 0 else Span(position, len(data), is_torn=True)
    count, at = varint(data, position)
    size, payload = varint(data, at)
    end = payload + size + len(sync)
    if count < 0 or size < 0 or data[payload + size : end] != sync:
        return broken
    offsets = _offsets(data[payload : payload + size], count)
    return Span(position, end, *offsets) if offsets else Span(position, end)


def varint(data: bytes, position: int) -> tuple[int, int]:
    """An Avro long and the position behind it; (-1, position) where there is none."""
    value = shift = 0
    for at in range(position, min(position + MAX_VARINT_BYTES, len(data))):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        if not data[at] & 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
    return -1, position


def _offsets(payload: bytes, count: int) -> tuple[int, int] | None:
    """First and last offset of a compressed block whose records follow each other, else ``None``."""
    try:
        stream = io.BytesIO(zstd.decompress(payload))
        offsets = [fastavro.schemaless_reader(stream, RECORD_SCHEMA, None)["offset"] for _ in range(count)]
    except BROKEN:
        return None
    if not offsets or stream.read(1) or offsets != list(range(offsets[0], offsets[0] + count)) or offsets[0] < 0:
        return None
    return offsets[0], offsets[-1]
