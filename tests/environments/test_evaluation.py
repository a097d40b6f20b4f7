"""The leaderboard's protocol, played live: it agrees with the official checker on what was played."""

from __future__ import annotations

import random

import pytest

from environments.evaluation import OfficialEpisode
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from environments.scoring.official import OfficialSettings, score
from schemas.events import FinishReason
from tests.environments import mutation

BFCL = environment()
TASKS = {task.task_id: task for task in load_tasks("all")}
LS = "<c>ls{}</c>"


def episode(task_id, **settings):
    task = TASKS[task_id]
    return OfficialEpisode(
        BFCL, task, parser("compact"), Reference.of(BFCL, task), settings=OfficialSettings(**settings)
    )


def say(call):
    return f"<c>{call.name}{call.arguments_json}</c>"


def test_played_transcripts_are_judged_like_written_ones():
    rng = random.Random(11)
    outcomes = set()
    for task_id, task in list(TASKS.items())[::4]:
        turns = [[[call] for step in steps for call in step][:20] for steps in mutation.mutated(task, rng)]
        run = episode(task_id)
        for steps in turns:
            for step in steps:
                run.step(say(step[0]))
            run.step("<e>")
        assert run.valid is score(BFCL, task, Reference.of(BFCL, task), turns).valid
        outcomes.add(run.valid)
    assert outcomes == {True, False}


def test_a_message_that_cannot_be_read_ends_the_turn():
    run = episode("multi_turn_base_4")
    assert run.step("?").code == 0 and run.turn == 1


def test_a_call_in_a_turn_without_ground_truth_is_executed_and_costs_nothing():
    run = episode("multi_turn_miss_func_4")
    run.step('<c>ls{"a":true}</c>')
    run.step("<e>")
    message = run.step(LS)
    assert message.results and message.code == -1
    assert run.step("<e>").code == 1


@pytest.mark.parametrize(("exact", "num_steps"), [(False, 21), (True, 20)])
def test_a_turn_that_runs_over_ends_the_conversation(exact, num_steps):
    run = episode("multi_turn_base_4", exact_step_limit=exact)
    for _ in range(num_steps):
        assert not run.done
        run.step(LS)
    assert run.done and run.finish_reason is FinishReason.TURN_LIMIT
    assert not run.valid and run.turn_verdicts == (0, 0, 0) and run.incoming == ()


@pytest.mark.parametrize("fails", [False, True])
def test_an_overrun_in_the_last_turn_is_graded_unless_it_is_said_to_fail(fails):
    run = episode("multi_turn_base_4", last_turn_overrun_fails=fails)
    for turn in TASKS["multi_turn_base_4"].turns[:2]:
        for call in turn.ground_truth:
            run.step(say(call))
        run.step("<e>")
    for call in TASKS["multi_turn_base_4"].turns[2].ground_truth:
        run.step(say(call))
    while not run.done:
        run.step(LS)
    assert run.finish_reason is FinishReason.TURN_LIMIT and run.valid is not fails


def test_a_withheld_function_runs_unless_it_is_refused():
    for refuse in (False, True):
        run = episode("multi_turn_miss_func_4", refuse_withheld=refuse)
        message = run.step('<c>sort{"file_name":"report.txt"}</c>')
        assert ("not available" in message.results[0]) is refuse
