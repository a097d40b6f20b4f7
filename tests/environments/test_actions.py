"""Action classes: what was done in a turn, beside whether it scored."""

from __future__ import annotations

import pytest

from environments.actions import Action, classify_answer, summarize
from environments.episode import Episode
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from schemas.events import FinishReason

BFCL = environment()
TASKS = {task.task_id: task for task in load_tasks("all")}


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Which folder should the file go to?", Action.ASKED),
        ("Please provide the name of the recipient.", Action.ASKED),
        ("I need your access token to go on.", Action.ASKED),
        ("I cannot sort files because no such function is available.", Action.DECLINED),
        ("I don't have a tool for that.", Action.DECLINED),
        ("I\u2019m unable to do this with my functions.", Action.DECLINED),
        ("The file now holds ten lines.", Action.ANSWERED),
        ("<think>which one?</think><answer>It is done.</answer>", Action.ANSWERED),
        ("", Action.ANSWERED),
    ],
)
def test_an_answer_has_a_class_by_its_words(text, action):
    assert classify_answer(text) is action


def episode(task_id):
    task = TASKS[task_id]
    return Episode(BFCL, task, parser("hermes"), Reference.of(BFCL, task), max_attempts=20)


def call(each):
    return f'<tool_call>{{"name":"{each.name}","arguments":{each.arguments_json}}}</tool_call>'


def play(task_id, answers):
    run = episode(task_id)
    for turn in TASKS[task_id].turns:
        for each in turn.ground_truth:
            run.step(call(each))
        run.step("Done." if turn.ground_truth else answers)
    return run


def test_asking_is_right_where_a_value_is_missing_and_declining_where_a_function_is():
    for task_id, right, wrong in (
        ("multi_turn_miss_param_4", "Whom should I mention?", "I cannot do that, no tool is available."),
        ("multi_turn_miss_func_4", "I cannot sort: no function is available.", "Which file?"),
    ):
        assert summarize(play(task_id, right).turn_actions).num_no_call_class_right == 1
        failed = play(task_id, wrong)
        assert failed.reward == 1.0
        summary = summarize(failed.turn_actions)
        assert (summary.num_no_call_class_right, summary.num_right_verdict_wrong_class) == (0, 1)


def test_a_full_score_with_the_wrong_class_is_visible():
    run = play("multi_turn_miss_param_4", "All done!")
    assert run.binary_reward == 1.0
    summary = summarize(run.turn_actions)
    assert summary.num_by_action == {"acted": 3, "asked": 0, "declined": 0, "answered": 1, "malformed": 0}
    assert summary.num_right_verdict_wrong_class == 1


def test_a_grammar_without_words_shows_no_class():
    task = TASKS["multi_turn_miss_param_4"]
    run = Episode(BFCL, task, parser("compact"), Reference.of(BFCL, task))
    for turn in task.turns:
        for each in turn.ground_truth:
            run.step(f"<c>{each.name}{each.arguments_json}</c>")
        run.step("<e>")
    summary = summarize(run.turn_actions)
    assert (summary.num_no_call_silent, summary.num_right_verdict_wrong_class) == (1, 0)


def test_a_turn_of_unreadable_messages_is_malformed_and_a_cut_turn_is_recorded():
    run = episode("multi_turn_base_4")
    run.step("<tool_call>oops</tool_call>")
    run.cut(FinishReason.TOKEN_LIMIT)
    assert [(each.action, each.verdict) for each in run.turn_actions] == [(Action.MALFORMED, 0)]


def test_calling_where_nothing_should_be_called_is_acting_and_wrong():
    run = episode("multi_turn_miss_param_4")
    for turn in TASKS["multi_turn_miss_param_4"].turns:
        if not turn.ground_truth:
            run.step('<tool_call>{"name":"ls","arguments":{}}</tool_call>')
            break
        for each in turn.ground_truth:
            run.step(call(each))
        run.step("Done.")
    last = run.turn_actions[-1]
    assert (last.action, last.verdict, last.class_right) == (Action.ACTED, 0, False)
