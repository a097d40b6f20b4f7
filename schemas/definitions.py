"""The Avro schemas as written in ``avsc/``, parsed, and their fingerprints.

Shared types live in ``avsc/types``; an event refers to them by name. A fingerprint is the CRC-64-AVRO of
the parsing canonical form with every referenced type expanded in place (Avro specification, "Single-object
encoding").
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

AVSC = Path(__file__).parent / "avsc"


def expand(schema: object, types: dict[str, dict], seen: set[str]) -> object:
    """Put each named type in place of its first mention, so that a schema stands alone.

    Args:
        schema: a schema as read from JSON.
        types: shared types by full name.
        seen: full names defined so far; grows.
    """
    if isinstance(schema, str):
        if schema not in types or schema in seen:
            return schema
        return expand(types[schema], types, seen)
    if isinstance(schema, list):
        return [expand(branch, types, seen) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema["type"] in ("record", "enum"):
        seen.add(f"{schema['namespace']}.{schema['name']}")
    out = dict(schema)
    if schema["type"] == "record":
        out["fields"] = [{**f, "type": expand(f["type"], types, seen)} for f in schema["fields"]]
    elif schema["type"] == "array":
        out["items"] = expand(schema["items"], types, seen)
    elif schema["type"] == "map":
        out["values"] = expand(schema["values"], types, seen)
    return out


@cache
def shared_types() -> dict[str, dict]:
    """Shared named types by full name, in file order."""
    loaded = [json.loads(path.read_text()) for path in sorted((AVSC / "types").glob("*.avsc"))]
    return {f"{schema['namespace']}.{schema['name']}": schema for schema in loaded}


@cache
def schema_of(name: str) -> dict:
    """The stand-alone schema of one event type, as plain JSON values.

    Raises:
        FileNotFoundError: no such ``.avsc`` file.
    """
    return expand(json.loads((AVSC / f"{name}.avsc").read_text()), shared_types(), set())


def fingerprint_of(schema: dict) -> bytes:
    """The 8 fingerprint bytes in the order in which they stand on the wire."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def parsed(name: str) -> dict:
    """The parsed schema of one event type, ready for fastavro."""
    return fastavro.parse_schema(schema_of(name), named_schemas={}, _force=True)
