"""Writes ``docs/events.md``: ``python -m schemas.document``.

Fields and meanings come from the schemas, topic, key and identity from the catalogue, writers and readers from the
source of the rooms: who builds an event with ``make``, who has a case for it. A test compares the file with what this
module would write.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from schemas.catalogue import BY_NAME, CATALOGUE, SPREAD_TOPICS, TOPICS, Entry
from schemas.definitions import fingerprint_of, schema_of, shared_types

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "events.md"
ROOMS = ("streams", "analysis", "environments", "trainer", "synthesizer", "commands")
HEADER = """# Events

Written by `python -m schemas.document`; do not edit.

A record's value is an Avro single-object encoding: the bytes `C3 01`, the 8-byte fingerprint of the writer's schema,
and the Avro body (`schemas/codec.py`). Every schema that was ever published lies in `schemas/history/` and can be read.

The id of an event is the first 32 hex digits of a SHA-256 over run, event type and the identity fields
(`schemas/identity.py`), so the same fact has the same id however often it is written. The key of a record decides its
partition; topic names get the configured prefix.

"Written by" names the modules that build the event, "read by" those with a case for it. The archiver copies every
topic, whatever is on it, and `analysis/summary.py` counts every event by its type.
"""


def kind_of(schema: object) -> str:
    """A field's type in words; a shared type links to its section."""
    if isinstance(schema, str):
        name = schema.rpartition(".")[2]
        return f"[{name}](#{name.lower()})" if schema in shared_types() else name
    if isinstance(schema, list):
        return " or ".join(kind_of(branch) for branch in sorted(schema, key=lambda branch: branch == "null"))
    if schema["type"] == "array":
        return f"array of {kind_of(schema['items'])}"
    if schema["type"] == "map":
        return f"map of {kind_of(schema['values'])}"
    return kind_of(f"{schema['namespace']}.{schema['name']}" if "name" in schema else schema["type"])


def default_of(field: dict) -> str:
    """A field's default as a reader writes it; empty for none."""
    value = field.get("default")
    return f" Default: `{value!r}`." if value not in (None, "") else ""


def field_table(fields: Iterable[dict]) -> list[str]:
    """Rows of name, type and meaning."""
    rows = ["| field | type | meaning |", "|---|---|---|"]
    return rows + [f"| `{f['name']}` | {kind_of(f['type'])} | {f['doc']}{default_of(f)} |" for f in fields]


def shared_fields() -> list[dict]:
    """Fields that every event has, alike in all of them."""
    first, *others = [schema_of(entry.name)["fields"] for entry in CATALOGUE]
    return [field for field in first if all(field in fields for fields in others)]


def mentions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(event type, ``written`` or ``read``) for each event that a module builds or has a case for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "make" and node.args:
            yield ast.unparse(node.args[0]), "written"
        elif isinstance(node, ast.MatchClass):
            yield ast.unparse(node.cls), "read"
        elif isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "_rule.register" for d in node.decorator_list):
            yield ast.unparse(node.args.args[0].annotation), "read"


def users() -> dict[tuple[str, str], list[str]]:
    """Modules by (event type, ``written`` or ``read``), sorted."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for name, how in sorted(set(mentions(ast.parse(path.read_text())))):
            if name in BY_NAME:
                found.setdefault((name, how), []).append(path.relative_to(ROOT).as_posix())
    return found


def modules_text(modules: list[str]) -> str:
    """Module names in one line."""
    return ", ".join(f"`{module}`" for module in modules) or "no module"


def event_section(entry: Entry, used: dict[tuple[str, str], list[str]]) -> list[str]:
    """One event: where it lies, what identifies it, who uses it, its own fields."""
    schema = schema_of(entry.name)
    shared = {field["name"] for field in shared_fields()}
    identity = ", ".join(f"`{path}`" for path in entry.identity) or "nothing but the run"
    alias = f" `{entry.alias}` repeats the id." if entry.alias else ""
    return [
        f"## {entry.name}",
        "",
        schema["doc"],
        "",
        f"- Topic `{entry.topic}`, key `{entry.key}`.",
        f"- Identity: {identity}.{alias}",
        f"- Fingerprint: `{fingerprint_of(schema).hex()}`.",
        f"- Written by: {modules_text(used.get((entry.name, 'written'), []))}.",
        f"- Read by: {modules_text(used.get((entry.name, 'read'), []))}.",
        "",
        *field_table(field for field in schema["fields"] if field["name"] not in shared),
        "",
    ]


def type_section(schema: dict) -> list[str]:
    """One shared record or enum."""
    if schema["type"] == "enum":
        return [f"### {schema['name']}", "", schema["doc"], "", ", ".join(f"`{s}`" for s in schema["symbols"]), ""]
    return [f"### {schema['name']}", "", schema["doc"], "", *field_table(schema["fields"]), ""]


def topic_rows() -> list[str]:
    """Every topic with how its records are spread and what lies on it."""
    rows = ["| topic | partitions | events |", "|---|---|---|"]
    for topic in TOPICS:
        names = ", ".join(f"[{e.name}](#{e.name.lower()})" for e in CATALOGUE if e.topic == topic)
        rows.append(
            f"| `{topic}` | {'records spread over all' if topic in SPREAD_TOPICS else 'one run in one'} | {names} |"
        )
    return rows


def render() -> str:
    """The whole text of ``docs/events.md``."""
    used = users()
    lines = [
        HEADER,
        "## Topics",
        "",
        *topic_rows(),
        "",
        "## Fields of every event",
        "",
        *field_table(shared_fields()),
        "",
    ]
    for entry in CATALOGUE:
        lines += event_section(entry, used)
    lines += ["## Shared types", ""]
    for schema in shared_types().values():
        lines += type_section(schema)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
