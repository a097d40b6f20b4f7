"""Events to bytes and back: one Avro body, two framings.

Single-object encoding is ``C3 01``, the 8-byte fingerprint of the writer's schema, and the body. Any schema ever
published in ``history/`` can be read; the current one is written. With a schema registry (``schemas.registry``) the
Confluent framing is written, and both are read.
"""

from __future__ import annotations

import io
import json
import types
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import fastavro

from schemas import events
from schemas.catalogue import BY_NAME
from schemas.definitions import fingerprint_of, parsed, schema_of
from schemas.events import Event
from schemas.registry import FRAME, active

MAGIC = b"\xc3\x01"
HEADER_BYTES = 10
HISTORY = Path(__file__).parent / "history"


class Undecodable(ValueError):
    """Bytes that are not a readable event; the text says why and what to do."""


class UnknownSchema(Undecodable):
    """A well-formed record whose schema this version does not know."""


class InvalidEvent(ValueError):
    """An event whose values do not fit its schema."""


@cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def as_record(value: object) -> object:
    """Plain Avro values (dicts, lists, scalars) of an event or shared record."""
    if hasattr(value, "AVRO_NAME"):
        return {name: as_record(getattr(value, name)) for name in _field_names(type(value))}
    if isinstance(value, tuple):
        return [as_record(item) for item in value]
    if isinstance(value, types.MappingProxyType):
        return dict(value)
    return value


@cache
def _reader(annotation: object) -> Callable[[object], object] | None:
    """How to turn an Avro value into a typed one; None where nothing is to be done."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        inner = _reader(args[0])
        return tuple if inner is None else lambda items: tuple([inner(item) for item in items])
    if origin is types.UnionType:
        inner = next((_reader(arg) for arg in args if arg is not types.NoneType), None)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return annotation
    if hasattr(annotation, "AVRO_NAME"):
        return lambda record: from_record(annotation, record)
    return None


@cache
def _plan(cls: type) -> tuple[tuple[str, Callable[[object], object]], ...]:
    hints = get_type_hints(cls)
    readers = ((name, _reader(hints[name])) for name in _field_names(cls))
    return tuple((name, reader) for name, reader in readers if reader is not None)


def from_record(cls: type, record: dict) -> object:
    """The typed value of a decoded Avro record; the dict is consumed.

    Raises:
        ValueError: an enum symbol or field is unknown.
    """
    for name, reader in _plan(cls):
        record[name] = reader(record[name])
    return cls(**record)


@cache
def _header(name: str) -> bytes:
    return MAGIC + fingerprint_of(schema_of(name))


@cache
def _writers() -> dict[bytes, tuple[str, dict]]:
    """Every readable writer schema by fingerprint: (event type, parsed schema)."""
    known = {}
    for path in sorted(HISTORY.glob("*/*.avsc")):
        schema = json.loads(path.read_text())
        known[fingerprint_of(schema)] = (schema["name"], fastavro.parse_schema(schema, named_schemas={}, _force=True))
    for name in BY_NAME:
        known[fingerprint_of(schema_of(name))] = (name, parsed(name))
    return known


def encode(event: Event) -> bytes:
    """The bytes of an event.

    Raises:
        InvalidEvent: a value does not fit the schema; the text names event type and id.
    """
    name = type(event).__name__
    out = io.BytesIO()
    registry = active()
    out.write(registry.header(name) if registry else _header(name))
    try:
        fastavro.schemaless_writer(out, parsed(name), as_record(event))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidEvent(f"{name} {event.event_id}: {error}") from error
    return out.getvalue()


def encode_like(event: Event, recorded: bytes) -> bytes:
    """The bytes of an event in the framing and schema version of other bytes of its type: what can be compared with them.

    Raises:
        Undecodable: the other bytes have no known header.
        InvalidEvent: a value does not fit that schema.
    """
    name, writer, start = _framed(recorded)
    out = io.BytesIO()
    out.write(recorded[:start])
    try:
        fastavro.schemaless_writer(out, writer, as_record(event))
    except (TypeError, ValueError, AttributeError, OverflowError, KeyError) as error:
        raise InvalidEvent(f"{name} {event.event_id}: {error}") from error
    return out.getvalue()


def _framed(data: bytes) -> tuple[str, dict, int]:
    """(event type, writer's schema, where the body begins) of a record in either framing."""
    if data[:1] == b"\0" and len(data) >= FRAME.size and (registry := active()) is not None:
        writer = registry.writer(data)
        if writer is None:
            number = FRAME.unpack_from(data)[1]
            raise UnknownSchema(f"registry {registry.settings.url} has no event schema of id {number}")
        return writer.name, writer.schema, FRAME.size
    if data[:2] != MAGIC or len(data) < HEADER_BYTES:
        raise Undecodable(f"no header of a known framing in {len(data)} bytes starting with {data[:4].hex()!r}")
    known = _writers().get(data[2:HEADER_BYTES])
    if known is None:
        raise UnknownSchema(
            f"schema fingerprint {data[2:HEADER_BYTES].hex()} is not in schemas/history; upgrade the reader"
        )
    return *known, HEADER_BYTES


def decode(data: bytes) -> Event:
    """The event in some bytes, in either framing.

    Raises:
        UnknownSchema: written with a schema that neither ``history/`` nor the registry holds; upgrade this reader.
        Undecodable: anything else that is wrong with the bytes.
        schemas.registry.RegistryUnavailable: the bytes need a registry that does not answer.
    """
    name, writer, start = _framed(data)
    body = io.BytesIO(data)
    body.seek(start)
    try:
        record = fastavro.schemaless_reader(body, writer, None if writer is parsed(name) else parsed(name))
        event = from_record(getattr(events, name), record)
    except (
        EOFError,
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        UnicodeDecodeError,
        OverflowError,
        MemoryError,
        fastavro.read.SchemaResolutionError,
    ) as error:
        raise Undecodable(f"{name}: body does not fit its schema: {error!r}") from error
    if body.tell() != len(data):
        raise Undecodable(f"{name}: {len(data) - body.tell()} bytes left over behind the body")
    return event


def portable(data: bytes) -> bytes:
    """A record in single-object encoding, which needs no registry to be read; unknown bytes as they are."""
    if data[:1] != b"\0" or len(data) < FRAME.size or (registry := active()) is None:
        return data
    writer = registry.writer(data)
    return data if writer is None else MAGIC + writer.fingerprint + data[FRAME.size :]
