"""The generated page of events: up to date, complete, and right about who writes and reads."""

from __future__ import annotations

import ast
import re
from functools import cache

from schemas.catalogue import CATALOGUE, TOPICS
from schemas.definitions import fingerprint_of, schema_of, shared_types
from schemas.document import TARGET, kind_of, mentions, render, users

SOURCE = """
def say(run_id):
    return make(RunStarted, run_id)

@_rule.register
def _(event: StepCompleted, pool):
    return pool

def hear(event):
    match event:
        case TaskSeeded() | TaskSynthesized():
            return other(RunFinished)
"""


@cache
def page() -> str:
    return render()


def section_of(name: str) -> str:
    """The part of the page about one event."""
    return re.search(rf"^## {name}$.*?(?=^## )", page(), re.MULTILINE | re.DOTALL).group()


def test_the_committed_page_is_what_the_generator_writes() -> None:
    assert TARGET.read_text() == page(), "run: python -m schemas.document"


def test_every_event_has_its_topic_identity_fingerprint_and_own_fields_on_the_page() -> None:
    for entry in CATALOGUE:
        text, schema = section_of(entry.name), schema_of(entry.name)
        assert f"Topic `{entry.topic}`, key `{entry.key}`" in text
        assert fingerprint_of(schema).hex() in text
        assert all(f"`{path}`" in text for path in entry.identity)
        own = {field["name"] for field in schema["fields"]} - {"event_id", "run_id", "caused_by", "occurred_at_ms"}
        assert {name for name in own if f"\n| `{name}` |" not in text} == set()
        assert "\n| `run_id` |" not in text


def test_every_topic_and_shared_type_is_on_the_page_and_every_link_has_its_heading() -> None:
    text = page()
    headings = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", text, re.MULTILINE)}
    assert {schema["name"].lower() for schema in shared_types().values()} <= headings
    assert all(f"| `{topic}` |" in text for topic in TOPICS)
    assert set(re.findall(r"\(#([^)]+)\)", text)) <= headings


def test_types_are_written_in_words() -> None:
    assert kind_of(["null", "double"]) == "double or null"
    assert kind_of({"type": "array", "items": {"type": "array", "items": "int"}}) == "array of array of int"
    assert kind_of({"type": "map", "values": "string"}) == "map of string"
    assert kind_of("rods.Zone") == "[Zone](#zone)"


def test_who_builds_an_event_writes_it_and_who_has_a_case_for_it_reads_it() -> None:
    assert set(mentions(ast.parse(SOURCE))) == {
        ("RunStarted", "written"),
        ("StepCompleted", "read"),
        ("TaskSeeded", "read"),
        ("TaskSynthesized", "read"),
    }


def test_every_event_is_built_in_exactly_one_module() -> None:
    used = users()
    assert {entry.name: used.get((entry.name, "written"), []) for entry in CATALOGUE} == {
        entry.name: used[entry.name, "written"][:1] for entry in CATALOGUE
    }
    assert (
        "streams/pool/decide.py" in used["BatchPlanned", "written"]
        and "streams/pool/pool.py" in used["BatchPlanned", "read"]
    )
