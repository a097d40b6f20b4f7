"""Hints: error texts become actionable; calls, states and successes stay what they are."""

from __future__ import annotations

import json
import random

import pytest

from environments.execution import make_call
from environments.interface import EXECUTION_ERROR_PREFIX
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from tests.environments import mutation

PLAIN, HINTED = environment("bfcl-v3"), environment("bfcl-v3-hints")
TASKS = load_tasks("all")


def with_class(name):
    return next(task for task in TASKS if name in task.involved_classes)


CASES = [
    ("GorillaFileSystem", "cd", {"folder": "a/b"}, "one directory at a time"),
    ("GorillaFileSystem", "cd", {"folder": "absent"}, "ls shows what there is"),
    ("GorillaFileSystem", "cd", {"folder": ".."}, "no parent directory"),
    ("GorillaFileSystem", "touch", {"file_name": "a:b"}, "must not contain"),
    ("GorillaFileSystem", "sort", {"file_name": "absent.txt"}, "no 'absent.txt'"),
    ("GorillaFileSystem", "rmdir", {"dir_name": "x/y"}, "is a path"),
    ("GorillaFileSystem", "mv", {"source": "absent", "destination": "b"}, "no 'absent'"),
    ("TravelAPI", "compute_exchange_rate", {"base_currency": "XXX", "target_currency": "EUR", "value": 1}, "must be USD"),
    ("TravelAPI", "get_flight_cost", {"travel_from": "CIA", "travel_to": "PEK", "travel_date": "2026-10-10", "travel_class": "economy"}, "from CIA to PEK"),
    ("VehicleControlAPI", "get_outside_temperature_from_weather_com", {}, "from_google"),
    ("VehicleControlAPI", "estimate_distance", {"cityA": "Rivermist", "cityB": "00000"}, "get_zipcode_based_on_city"),
    ("VehicleControlAPI", "lockDoors", {"unlock": False, "door": ["trunk"]}, "rear_left"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name", "arguments", "hint"), CASES)
def test_an_error_says_what_would_work(owner, name, arguments, hint):
    task, call = with_class(owner), make_call(name, arguments)
    plain, hinted = PLAIN.call(PLAIN.start(task), call), HINTED.call(HINTED.start(task), call)
    assert hint in hinted and hint not in plain
    assert hinted.startswith(EXECUTION_ERROR_PREFIX) == plain.startswith(EXECUTION_ERROR_PREFIX)
    if plain.startswith("{"):
        assert str(json.loads(plain)["error"]) in json.loads(hinted)["error"]


def test_a_directory_where_a_file_is_wanted_is_named():
    task = with_class("GorillaFileSystem")
    state = HINTED.start(task)
    HINTED.call(state, make_call("mkdir", {"dir_name": "d"}))
    assert "is a directory" in HINTED.call(state, make_call("cat", {"file_name": "d"}))
    assert "exists already" in HINTED.call(state, make_call("touch", {"file_name": "d"}))
    HINTED.call(state, make_call("touch", {"file_name": "f"}))
    assert "is a file" in HINTED.call(state, make_call("rmdir", {"dir_name": "f"}))


def test_hints_change_error_texts_and_nothing_else():
    rng = random.Random(3)
    num_hinted = 0
    for task in TASKS[::3]:
        plain, hinted = PLAIN.start(task), HINTED.start(task)
        for turn in mutation.mutated(task, rng):
            for call in (call for step in turn for call in step):
                first, second = PLAIN.call(plain, call), HINTED.call(hinted, call)
                if first != second:
                    num_hinted += 1
                    assert "error" in first.lower() and " Hint: " in second
            assert PLAIN.digest(plain) == HINTED.digest(hinted)
    assert num_hinted > 10


def test_hinted_tasks_say_so_and_keep_their_ground_truth():
    tasks = load_tasks("val", "bfcl-v3-hints")
    assert {(task.environment, task.environment_version) for task in tasks} == {(HINTED.name, HINTED.version)}
    assert HINTED.version != PLAIN.version
    for task, plain in zip(tasks, load_tasks("val"), strict=True):
        assert task.turns == plain.turns
        assert Reference.of(HINTED, task).digests == Reference.of(PLAIN, plain).digests
