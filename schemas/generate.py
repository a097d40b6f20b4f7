"""Writes ``events.py`` from the ``.avsc`` files: ``python -m schemas.generate``.

The schemas are the only source; a test compares the file with what this module would write.
"""

from __future__ import annotations

import json
from pathlib import Path

from schemas.catalogue import CATALOGUE
from schemas.definitions import AVSC, shared_types

PRIMITIVES = {
    "string": "str",
    "int": "int",
    "long": "int",
    "double": "float",
    "float": "float",
    "boolean": "bool",
    "bytes": "bytes",
    "null": "None",
}
HEADER = '''"""Typed, frozen event classes. Written by ``python -m schemas.generate``; do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar'''


def annotation(schema: object) -> str:
    """The Python annotation of a field type."""
    if isinstance(schema, str):
        return PRIMITIVES.get(schema, schema.rpartition(".")[2])
    if isinstance(schema, list):
        return " | ".join(sorted((annotation(branch) for branch in schema), key=lambda a: a == "None"))
    if schema["type"] == "array":
        return f"tuple[{annotation(schema['items'])}, ...]"
    if schema["type"] == "map":
        return f"Mapping[str, {annotation(schema['values'])}]"
    return annotation(schema["type"])


def default(field: dict) -> str:
    """The Python text of a default, or nothing."""
    if "default" not in field:
        return ""
    value = field["default"]
    if value == []:
        return " = ()"
    if value == {}:
        return " = field(default_factory=lambda: MappingProxyType({}))"
    return f" = {json.dumps(value)}" if isinstance(value, str) else f" = {value!r}"


def record_source(schema: dict) -> str:
    """The class of one record type. Fields with defaults move behind the others; all are keyword-only."""
    lines = ["@dataclass(frozen=True, slots=True, kw_only=True)", f"class {schema['name']}:"]
    lines += [f'    """{schema["doc"]}', "", "    Attributes:"]
    lines += [f"        {field['name']}: {field['doc']}" for field in schema["fields"]]
    lines += ['    """', "", f'    AVRO_NAME: ClassVar[str] = "{schema["namespace"]}.{schema["name"]}"']
    lines += [f"    {f['name']}: {annotation(f['type'])}{default(f)}" for f in schema["fields"]]
    return "\n".join(lines)


def enum_source(schema: dict) -> str:
    """The class of one enum type."""
    lines = [f"class {schema['name']}(StrEnum):", f'    """{schema["doc"]}"""', ""]
    lines += [f'    {symbol.upper()} = "{symbol}"' for symbol in schema["symbols"]]
    return "\n".join(lines)


def render() -> str:
    """The whole text of ``events.py``."""
    types = list(shared_types().values())
    events = [json.loads((AVSC / f"{entry.name}.avsc").read_text()) for entry in CATALOGUE]
    parts = [HEADER]
    parts += [enum_source(s) for s in types if s["type"] == "enum"]
    parts += [record_source(s) for s in types + events if s["type"] == "record"]
    names = [event["name"] for event in events]
    union = "\n    | ".join(names)
    classes = "".join(f"    {name},\n" for name in names)
    parts.append(f"Event = (\n    {union}\n)\nEVENTS: tuple[type, ...] = (\n{classes})\n")
    return "\n\n\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("events.py").write_text(render())
