"""The blocks of an archive segment, also of a damaged one. Pure functions of bytes.

A block is: number of records, length, compressed records with a checksum of them, the file's sync marker. Where the structure is broken the
walk goes on behind the next marker. A file that a crash cut short ends before its last block's length says; bytes that
are long enough and still no block are damage.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import fastavro
from backports import zstd
from fastavro.schema import SchemaParseException, to_parsing_canonical_form
from fastavro.write import Writer

CODEC = "zstandard"
SYNC_MARKER_BYTES = 16
LONGEST_HEADER_BYTES = 4096
MAX_VARINT_BYTES = 10
RECORD_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "ArchivedRecord",
        "namespace": "rods.archive",
        "fields": [
            {"name": "offset", "type": "long"},
            {"name": "timestamp_ms", "type": "long"},
            {"name": "key", "type": ["null", "bytes"]},
            {"name": "value", "type": ["null", "bytes"]},
            {
                "name": "headers",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Header",
                        "fields": [{"name": "name", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}],
                    },
                },
            },
        ],
    }
)
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
BROKEN = (
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    MemoryError,
    OverflowError,
    AttributeError,
    SchemaParseException,
    zstd.ZstdError,
)
"""What reading half a block or a damaged one raises."""


def fresh_header() -> bytes:
    """The header of a new segment; its sync marker is drawn at random."""
    file = io.BytesIO()
    Writer(file, RECORD_SCHEMA, codec=CODEC)
    return file.getvalue()


HEADER_BYTES = len(fresh_header())
"""Length of a segment's header; a shorter file holds no record."""


@dataclass(frozen=True, slots=True)
class Span:
    """A block, or bytes that should be one.

    Attributes:
        start, end: byte range in the segment, end excluded.
        first_offset, last_offset: of its records; -1 where it cannot be read.
        is_torn: half a block at the end of the file: it ends before the block's length says, and no marker follows.
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
    """Sync marker and length of the header, or ``None`` if it is not that of a segment."""
    stream = io.BytesIO(data[:LONGEST_HEADER_BYTES])
    try:
        header = fastavro.schemaless_reader(stream, HEADER_SCHEMA, None)
        schema = to_parsing_canonical_form(json.loads(header["meta"]["avro.schema"]))
        is_ours = schema == to_parsing_canonical_form(RECORD_SCHEMA) and header["meta"]["avro.codec"] == CODEC.encode()
    except BROKEN:
        return None
    return (header["sync"], stream.tell()) if header["magic"] == b"Obj\x01" and is_ours else None


def spans_of(data: bytes, start: int) -> list[Span]:
    """Every block from a byte position to the end.

    Args:
        data: the whole segment.
        start: position of a block; 0 for the first one behind the header.
    """
    header = header_of(data)
    if header is None:
        return [Span(start, len(data), is_torn=len(data) < HEADER_BYTES)]
    sync, body = header
    return spans_behind(data, sync, max(start, body))


def spans_behind(data: bytes, sync: bytes, position: int) -> list[Span]:
    """Every block from a byte position to the end, given the file's sync marker."""
    spans = []
    while position < len(data):
        span = _block_at(data, position, sync)
        spans.append(span)
        position = span.end
    return spans


def _block_at(data: bytes, position: int, sync: bytes) -> Span:
    """The block at a position; where there is none, the bytes up to the next marker."""
    count, at = varint(data, position)
    size, payload = varint(data, at)
    end = payload + size + len(sync)
    offsets = _offsets(data[payload : payload + size], count) if count >= 0 and size >= 0 and end <= len(data) else None
    has_marker = data[end - len(sync) : end] == sync
    if offsets or (has_marker and count >= 0 and size >= 0):
        return Span(position, end, *offsets) if offsets and has_marker else Span(position, end)
    marker = data.find(sync, position)
    if marker >= 0:
        return Span(position, marker + len(sync))
    is_short = end > len(data) if count >= 0 and size >= 0 else len(data) - position < 2 * MAX_VARINT_BYTES
    return Span(position, len(data), is_torn=is_short)


def block_of(payload: bytes, count: int, sync: bytes) -> bytes:
    """A block as it lies in a segment: a flipped bit anywhere in it cannot be read as something else.

    Args:
        payload: encoded records.
        count: how many.
        sync: the file's marker.
    """
    packed = zstd.compress(payload, options={zstd.CompressionParameter.checksum_flag: 1})
    return as_varint(count) + as_varint(len(packed)) + packed + sync


def as_varint(value: int) -> bytes:
    """A natural number as an Avro long.

    >>> as_varint(1), varint(as_varint(300), 0)
    (b'\\x02', (300, 2))
    """
    rest, out = value << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


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
