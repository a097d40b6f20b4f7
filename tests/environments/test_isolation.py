"""Two rollouts in one process never see each other, and nothing they do outlives them."""

from __future__ import annotations

import decimal
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpmath
import pytest

from environments.bfcl.catalogue import CHANGERS, MODULES
from environments.episode import Episode
from environments.execution import make_call
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from tests.environments.mutation import pool

ROOT = Path(__file__).parent.parent.parent
BFCL = environment()
TASKS = load_tasks("all")


def with_class(name, long_context=False):
    return next(task for task in TASKS if name in task.involved_classes and task.long_context is long_context)


def play(task):
    run = Episode(BFCL, task, parser("compact"), Reference.of(BFCL, task), max_attempts=64)
    for turn in task.turns:
        for call in turn.ground_truth:
            run.step(f"<c>{call.name}{call.arguments_json}</c>")
        if not run.done:
            run.step("<e>")
    return [message.results for message in run.messages], run.turn_verdicts


def test_rollouts_in_threads_read_what_a_rollout_alone_reads():
    tasks = [task for task in TASKS if set(task.involved_classes) & {"MathAPI", "TravelAPI", "VehicleControlAPI"}][::4]
    alone = [play(task) for task in tasks]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(play, tasks * 3))
    assert together == alone * 3


def test_one_rollouts_changes_are_not_in_another():
    for task in TASKS[::7]:
        first, second = BFCL.start(task), BFCL.start(task)
        before = BFCL.digest(second)
        for turn in task.turns:
            for call in turn.ground_truth:
                BFCL.call(first, call)
        assert BFCL.digest(second) == before == BFCL.digest(BFCL.start(task))


def test_precision_stays_inside_the_call():
    state = BFCL.start(with_class("MathAPI"))
    mpmath.mp.dps, decimal.getcontext().prec = 15, 28
    BFCL.call(state, make_call("logarithm", {"value": 8, "base": 2, "precision": 77}))
    BFCL.call(state, make_call("square_root", {"number": 2, "precision": 7}))
    assert mpmath.mp.dps == 15 and decimal.getcontext().prec == 28


def test_precise_results_are_the_packages_own():
    state = BFCL.start(with_class("MathAPI"))
    assert BFCL.call(state, make_call("logarithm", {"value": 100, "base": 10, "precision": 5})) == (
        "{'result': mpf('2.0')}"
    )
    assert "1.4142" in BFCL.call(state, make_call("square_root", {"number": 2, "precision": 6}))


def test_the_long_weather_report_is_a_private_copy():
    task = with_class("VehicleControlAPI", long_context=True)
    call = make_call("get_outside_temperature_from_google", {})
    first = BFCL.call(BFCL.start(task), call)
    state = BFCL.start(task)
    assert BFCL.call(state, call) == first
    assert BFCL.call(state, call) != first


@pytest.mark.parametrize("task", TASKS[::41], ids=lambda task: task.task_id)
def test_a_restored_snapshot_goes_on_exactly_like_the_original(task):
    state = BFCL.start(task)
    for call in task.turns[0].ground_truth:
        BFCL.call(state, call)
    kept = BFCL.snapshot(state)
    rest = [call for turn in task.turns[1:] for call in turn.ground_truth]
    wanted = [BFCL.call(state, call) for call in rest], BFCL.digest(state)
    for _ in range(2):
        again = BFCL.restore(kept)
        assert ([BFCL.call(again, call) for call in rest], BFCL.digest(again)) == wanted


@pytest.mark.parametrize("owner", MODULES)
def test_functions_that_are_said_to_read_never_change_the_public_state(owner):
    rng = random.Random(5)
    samples = {"string": "a", "integer": 3, "number": 2.5, "boolean": True, "array": ["x"], "object": {"title": "t"}}
    for task in [task for task in TASKS if owner in task.involved_classes][:24]:
        state, tools = BFCL.start(task), BFCL.tools(task)
        for turn in task.turns:
            for call in turn.ground_truth:
                BFCL.call(state, call)
            digest = BFCL.digest(state)
            for name, tool in tools.items():
                if tool.owner == owner and name not in CHANGERS[owner]:
                    properties = tool.parameters["properties"].items()
                    kinds = {key: each["type"] for key, each in properties}
                    values = {k: samples[kind if isinstance(kind, str) else kind[0]] for k, kind in kinds.items()}
                    likely = [call for call in pool(owner) if call.name == name]
                    for call in (make_call(name, values), *rng.sample(likely, min(3, len(likely)))):
                        BFCL.call(state, call)
                        assert BFCL.digest(state) == digest, call


def test_quick_comparison_agrees_with_digests():
    rng = random.Random(9)
    for task in TASKS[::9]:
        reference, state = Reference.of(BFCL, task), BFCL.start(task)
        for index, turn in enumerate(task.turns):
            for call in turn.ground_truth:
                if rng.random() < 0.8:
                    BFCL.call(state, call)
            assert BFCL.matches(state, reference.marks[index]) == (BFCL.digest(state) == reference.digests[index])


def test_results_and_digests_are_the_same_in_every_process_and_time_zone():
    code = (
        "import hashlib\nfrom environments.registry import environment, load_tasks\n"
        "from environments.scoring import Reference\nworld = environment()\n"
        "references = [Reference.of(world, task) for task in load_tasks('val')]\n"
        "print(hashlib.sha256(repr([(each.results, each.digests) for each in references]).encode()).hexdigest())"
    )
    seen = set()
    for seed, zone in (("1", "UTC"), ("77", "Asia/Kolkata")):
        settings = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=settings
        )
        seen.add(done.stdout)
    assert len(seen) == 1


def test_digests_know_numbers_by_value_and_keys_by_type():
    from environments.canonical import digest_of, plain

    assert digest_of(plain({"a": 65})) == digest_of(plain({"a": 65.0}))
    assert digest_of(plain({"a": True})) != digest_of(plain({"a": 1}))
    assert digest_of(plain({1: "x"})) != digest_of(plain({"1": "x"}))
    assert digest_of(plain({"b": {3, 1, 2}})) == digest_of(plain({"b": {2, 3, 1}}))
    assert json.dumps(plain({"x": (1.5, None)})) == '{"x": [1.5, null]}'
