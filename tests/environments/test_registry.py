"""Environments by name, the second environment of our own, and plain classes as an environment."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from environments import registry
from environments.bfcl import source
from environments.episode import Episode
from environments.execution import CannotStart, execute, make_call, started
from environments.interface import Environment, EnvironmentUnavailable
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from environments.toolbox import Toolbox, tool_of
from schemas.events import Category, Task

ROOT = Path(__file__).parent.parent.parent


class Lamp:
    """A lamp with a dimmer."""

    def __init__(self, level: int = 0) -> None:
        self.level = level
        self._presses = 0

    def dim(self, level: int, mood: Literal["calm", "bright"] = "calm", names: list[str] | None = None) -> dict:
        """Set the lamp.

        The level is a percentage.

        Args:
            level: 0 to 100.
            mood (str): Colour of the light.
        Returns:
            The new level.
        """
        if not 0 <= level <= 100:
            raise ValueError("level must be 0 to 100")
        self._presses += 1
        self.level = level
        return {"level": level, "mood": mood}

    def _hidden(self) -> None:
        """Not a tool."""


LAMP = Toolbox("lamp", "1", {"Lamp": Lamp})


def lamp_task(**config) -> Task:
    return Task(
        task_id="lamp_0", environment="lamp", environment_version="1", category=Category.BASE, involved_classes=("Lamp",),
        initial_config_json=json.dumps({"Lamp": config}), turns=(),
    )  # fmt: skip


def test_a_schema_comes_from_signature_and_docstring():
    tools = LAMP.tools(lamp_task())
    assert list(tools) == ["dim"]
    assert tools["dim"].description == "Set the lamp. The level is a percentage."
    assert tools["dim"].parameters == {
        "type": "object",
        "properties": {
            "level": {"type": "integer", "description": "0 to 100."},
            "mood": {
                "type": "string",
                "enum": ["calm", "bright"],
                "description": "Colour of the light.",
                "default": "calm",
            },
            "names": {"type": "array", "items": {"type": "string"}, "default": None},
        },
        "required": ["level"],
    }


def test_a_tool_without_annotations_is_refused_by_name():
    def dim(self, level):
        """Set it."""

    with pytest.raises(TypeError, match="Lamp.dim: parameter 'level' needs a type annotation"):
        tool_of(dim, "Lamp")


def test_plain_classes_act_fail_and_are_restored():
    state = LAMP.start(lamp_task(level=5))
    kept, before = LAMP.snapshot(state), LAMP.digest(state)
    assert LAMP.call(state, make_call("dim", {"level": 40})) == '{"level": 40, "mood": "calm"}'
    assert LAMP.digest(state) != before and LAMP.public_state(state) == {"Lamp": {"level": 40}}
    assert LAMP.call(state, make_call("dim", {"level": 400})) == "Error during execution: level must be 0 to 100"
    assert LAMP.digest(LAMP.restore(kept)) == before
    refused = execute(LAMP, state, make_call("dim", {"level": 4, "mood": "loud"}), LAMP.tools(lamp_task()))
    assert "must be one of calm, bright" in refused
    assert "not available" in execute(LAMP, state, make_call("_hidden", {}), LAMP.tools(lamp_task()))


def test_an_environment_can_be_named_by_module_and_attribute():
    assert environment("tests.environments.test_registry:LAMP") is LAMP
    assert isinstance(LAMP, Environment)


def test_an_installed_package_can_bring_an_environment(monkeypatch):
    point = EntryPoint("lamp-of-a-plug-in", "tests.environments.test_registry:LAMP", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.ENTRY_POINT_GROUP else [])
    assert environment("lamp-of-a-plug-in") is LAMP


def test_a_missing_or_incomplete_environment_is_named():
    with pytest.raises(EnvironmentUnavailable, match="no environment named 'moon'; known: bfcl-v3"):
        environment("moon")
    with pytest.raises(EnvironmentUnavailable, match="does not implement"):
        environment("tests.environments.test_registry:ROOT")
    with pytest.raises(EnvironmentUnavailable, match="environment 'lamp' has no tasks"):
        load_tasks("all", "tests.environments.test_registry:LAMP")


def test_the_workshop_has_all_four_categories_and_every_ground_truth_earns_its_turns():
    workshop = environment("workshop")
    tasks = load_tasks("all", "workshop")
    assert {task.category for task in tasks} == set(Category)
    assert [len(load_tasks(split, "workshop")) for split in ("train", "val", "test", "all")] == [16, 4, 12, 32]
    for task in tasks:
        run = Episode(workshop, task, parser("compact"), Reference.of(workshop, task))
        for turn in task.turns:
            for call in turn.ground_truth:
                run.step(f"<c>{call.name}{call.arguments_json}</c>")
            run.step("<e>")
        assert run.done and run.reward == 1.0, task.task_id


def test_the_workshops_long_tasks_are_long():
    tasks = {task.category: task for task in load_tasks("train", "workshop")}
    workshop = environment("workshop")
    parts = make_call("list_parts", {})
    long, short = (
        workshop.call(workshop.start(tasks[category]), parts) for category in (Category.LONG_CONTEXT, Category.BASE)
    )
    assert len(long) > 2_048 > len(short)


def test_a_missing_package_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['bfcl_eval'] = None\n"
        "from environments.interface import EnvironmentUnavailable\n"
        "from environments.registry import load_tasks\n"
        "try:\n    load_tasks('train')\nexcept EnvironmentUnavailable as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pip install --no-deps bfcl-eval==2026.3.23" in done.stdout and "RODS_BFCL_PATH" in done.stdout


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "wheel"])
def test_the_package_can_be_read_from_a_folder_or_a_wheel_named_by_the_variable(tmp_path, packed):
    installed = Path(source.data_root()).parent
    place = tmp_path / "bfcl.whl" if packed else tmp_path
    if packed:
        with zipfile.ZipFile(place, "w") as archive:
            for file in installed.rglob("*"):
                if "multi_turn" in str(file) and file.suffix in (".py", ".json") or file.name == "__init__.py":
                    archive.write(file, f"bfcl_eval/{file.relative_to(installed)}")
    else:
        (place / "bfcl_eval").symlink_to(installed)
    code = (
        "import environments.bfcl.source as source\nfrom environments.registry import environment, load_tasks\n"
        "from environments.scoring import Reference\n"
        "print(source.data_root())\nprint(Reference.of(environment(), load_tasks('val')[0]).failures)"
    )
    settings = {**os.environ, "RODS_BFCL_PATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, env=settings
    )
    lines = [line.rstrip("/") for line in done.stdout.splitlines()]
    assert lines == [f"{place}/bfcl_eval/data", "()"], done.stderr


def test_other_data_than_the_pinned_version_are_refused(monkeypatch):
    monkeypatch.setattr(source, "DATA_DIGEST", "0" * 64)
    with pytest.raises(EnvironmentUnavailable, match="not those of version 2026.3.23"):
        source.data_root.__wrapped__()


class Refused(Exception):
    """A class of a tool's own."""


class Point(BaseModel):
    x: float
    y: float = 0.0


class Desk:
    """Tools that go wrong in every way."""

    def __init__(self, marks: list[str] | None = None) -> None:
        self.marks = marks or []

    def refuse(self, reason: str) -> str:
        """Raise a class of its own."""
        self.marks.append(reason)
        raise Refused(reason)

    def query(self) -> str:
        """Raise what a library raises."""
        self.marks.append("query")
        raise sqlite3.OperationalError("no such table: desk")

    def give(self, kind: str) -> object:
        """Return what is no JSON data.

        Args:
            kind: What to return; one of the words
                that the test knows.
        """
        self.marks.append(kind)
        return {"set": {1}, "bytes": b"x", "object": object(), "surrogate": "caf\udce9.txt", "list": ["caf\udce9"]}[
            kind
        ]

    def place(
        self,
        slot: Literal[1, 2],
        box: dict[str, float],
        points: list[Point],
        label: str | None,
        size: Literal["s", "l"] | None = None,
    ) -> str:
        """Place things."""
        self.marks.append(f"{slot}{box}{points}{label}{size}")
        return "placed"


DESK = Toolbox("desk", "1", {"Desk": Desk})


def desk(name: str, **arguments: object) -> tuple[str, list[str]]:
    task = replace(
        lamp_task(), task_id="desk_0", environment="desk", involved_classes=("Desk",), initial_config_json="{}"
    )
    state = DESK.start(task)
    return execute(DESK, state, make_call(name, arguments), DESK.tools(task)), state["Desk"].marks


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("refuse", {"reason": "too late"}, "too late"),
        ("refuse", {"reason": ""}, "Refused"),
        ("query", {}, "no such table: desk"),
        ("give", {"kind": "set"}, "no JSON data"),
        ("give", {"kind": "bytes"}, "no JSON data"),
        ("give", {"kind": "object"}, "no JSON data"),
        ("give", {"kind": "surrogate"}, "no Unicode text"),
        ("give", {"kind": "list"}, "no Unicode text"),
    ],
)
def test_whatever_a_tool_does_is_an_error_text_and_the_state_is_as_before(name, arguments, said):
    result, marks = desk(name, **arguments)
    assert result.startswith("Error during execution: ") and said in result
    assert marks == [] and result.encode()


PLACED = {"slot": 2, "box": {"x": 1.5}, "points": [{"x": 1}], "label": None}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"size": "l", "label": "a"}, ""),
        ({"size": None}, ""),
        ({"slot": "2"}, "slot"),
        ({"slot": 3}, "slot"),
        ({"slot": True}, "slot"),
        ({"box": {"x": "abc"}}, "box.x"),
        ({"points": [{"x": 1}, {"y": 1}]}, "points.1.x"),
        ({"points": [{"x": 1, "z": 1}]}, ""),
        ({"label": 1}, "label"),
        ({"size": "m"}, "size"),
        ({"more": 1}, "more"),
    ],
)
def test_arguments_are_validated_to_the_last_level(change, fault):
    result, marks = desk("place", **PLACED | change)
    assert (result == "placed") == (not fault) == bool(marks)
    assert fault in result


def test_a_description_of_two_lines_is_whole():
    tools = DESK.tools(replace(lamp_task(), involved_classes=("Desk",)))
    described = tools["give"].parameters["properties"]["kind"]["description"]
    assert described == "What to return; one of the words that the test knows."
    assert tools["place"].parameters["required"] == ["slot", "box", "points", "label"]


def test_methods_that_nobody_could_call_are_refused_when_the_environment_is_made():
    class Several:
        def many(self, *names: str) -> str:
            """Take many."""

    class Late:
        async def wait(self) -> str:
            """Come later."""

    class Odd:
        def take(self, what: threading.Lock) -> str:
            """Take a lock."""

    for cls, complaint in (
        (Several, "Several.many: parameter 'names'"),
        (Late, "Late.wait is async"),
        (Odd, "Odd.take"),
    ):
        with pytest.raises(TypeError, match=complaint):
            Toolbox("bad", "1", {cls.__name__: cls})


def test_a_state_that_cannot_be_copied_and_a_constructor_that_raises_are_refused_at_the_start():
    class Locked:
        def __init__(self) -> None:
            self._lock = threading.Lock()

    class Broken:
        def __init__(self) -> None:
            raise Refused("not today")

    for cls, complaint in ((Locked, "cannot pickle"), (Broken, "Refused: not today")):
        task = replace(lamp_task(), involved_classes=(cls.__name__,), initial_config_json="{}")
        with pytest.raises(CannotStart, match=complaint):
            started(Toolbox("bad", "1", {cls.__name__: cls}), task)
