"""The turn protocol: codes, limits, turns without calls, withheld functions, rewards."""

from __future__ import annotations

import json

import pytest

from environments.episode import CALLED_IN_VAIN_TEXT, Episode
from environments.interface import EXECUTION_ERROR_PREFIX
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference, binary_reward, format_reward, observed_reward, progress_reward
from schemas.events import FinishReason, MessageOutcome

BFCL = environment()
TASKS = {task.task_id: task for task in load_tasks("all")}


def episode(task_id: str, **settings) -> Episode:
    task = TASKS[task_id]
    return Episode(BFCL, task, parser("compact"), Reference.of(BFCL, task), **settings)


def written(call) -> str:
    return f"<c>{call.name}{call.arguments_json}</c>"


def say(name: str, **arguments) -> str:
    return f"<c>{name}{json.dumps(arguments)}</c>"


def play(run: Episode, silent_turns: tuple[int, ...] = ()) -> None:
    for index, turn in enumerate(run._task.turns):
        if index not in silent_turns:
            for call in turn.ground_truth:
                run.step(written(call))
        if not run.done and run.turn == index:
            run.step("<e>")


def test_a_ground_truth_that_uses_a_withheld_function_cannot_be_played_to_the_end():
    run = episode("multi_turn_miss_func_49", max_attempts=40)
    play(run)
    assert "tail" in TASKS["multi_turn_miss_func_49"].withheld_functions
    assert run.turn_verdicts == (1, 0, 1, 1, 1)


@pytest.mark.parametrize("task_id", sorted(TASKS.keys() - {"multi_turn_miss_func_49"}))
def test_playing_the_ground_truth_earns_every_turn(task_id):
    run = episode(task_id, max_attempts=40)
    play(run)
    assert run.done and run.finish_reason is FinishReason.FINISHED
    assert run.reward == run.binary_reward == 1.0
    assert run.turn_verdicts == (1,) * len(TASKS[task_id].turns)


def test_the_first_message_shown_is_the_first_user_text():
    run = episode("multi_turn_base_4")
    assert [(each.kind, each.text) for each in run.incoming] == [
        ("user", TASKS["multi_turn_base_4"].turns[0].user_text)
    ]


def test_a_result_is_shown_after_a_call_and_the_turn_stays_open():
    run = episode("multi_turn_base_4")
    message = run.step(say("ls", a=True))
    assert message.code == -1 and run.turn == 0
    assert [each.kind for each in run.incoming] == ["tool"]
    assert run.incoming[0].text == message.results[0]


def test_a_failed_call_is_minus_two_and_an_unreadable_message_minus_three():
    run = episode("multi_turn_base_4")
    assert run.step(say("ls", b=1)).code == -2
    assert run.step(say("no_such_function")).code == -2
    message = run.step("hello")
    assert message.code == -3 and message.outcome is MessageOutcome.PARSE_ERROR and "character 0" in message.detail
    assert run.step("<e>").code == 0


def test_a_tool_that_answers_with_an_error_text_still_counts_as_called():
    run = episode("multi_turn_base_4")
    message = run.step(say("cd", folder="nowhere"))
    assert message.code == -1 and "error" in message.results[0]


def test_six_unreadable_messages_close_the_turn_as_wrong():
    run = episode("multi_turn_base_4")
    for _ in range(6):
        run.step("?")
    assert run.codes == (-3, -3, -3, -3, -3, 0)
    assert run.turn == 1


def test_the_sixth_call_closes_the_turn_and_is_still_scored():
    run = episode("multi_turn_base_4")
    for _ in range(6):
        run.step(say("ls", a=True))
    assert run.codes == (-1, -1, -1, -1, -1, 1)


def test_five_calls_and_an_answer_fit_into_a_turn():
    run = episode("multi_turn_base_4")
    for _ in range(5):
        run.step(say("ls", a=True))
    assert run.step("<e>").code == 1


def test_unreadable_messages_and_calls_share_one_limit():
    run = episode("multi_turn_base_4")
    for text in ("?", say("ls", a=True), "?", "?", "?", say("pwd")):
        message = run.step(text)
    assert message.code == 1 and run.turn == 1


def test_a_silent_turn_still_executes_the_ground_truth():
    run = episode("multi_turn_base_4")
    play(run, silent_turns=(0,))
    assert run.turn_verdicts == (0, 1, 1)
    changing = next(
        task
        for task in load_tasks("all")
        if len(set(Reference.of(BFCL, task).digests)) == len(task.turns) > 2 and task.category == "base"
    )
    run = episode(changing.task_id, max_attempts=40)
    play(run, silent_turns=(0,))
    assert run.turn_verdicts[0] == 0 and 0 in run.turn_verdicts[1:], "the reference moved on without the policy"


def test_calling_in_a_turn_without_ground_truth_is_wrong_and_not_executed():
    run = episode("multi_turn_miss_param_4")
    task = TASKS["multi_turn_miss_param_4"]
    for call in task.turns[0].ground_truth:
        run.step(written(call))
    run.step("<e>")
    while task.turns[run.turn].ground_truth:
        for call in task.turns[run.turn].ground_truth:
            run.step(written(call))
        run.step("<e>")
    turn = run.turn
    before = BFCL.digest(run._state)
    message = run.step(say("post_tweet", content="x"))
    assert message.code == 0 and message.calls == () and message.results == ()
    assert BFCL.digest(run._state) == before
    assert run.turn == turn + 1
    assert run.incoming[0].text.startswith(CALLED_IN_VAIN_TEXT)


def test_unreadable_messages_in_a_turn_without_ground_truth_leave_it_open_until_the_limit():
    run = episode("multi_turn_miss_param_4")
    play_until_empty(run)
    turn = run.turn
    for _ in range(5):
        assert run.step("?").code == -3 and run.turn == turn
    assert run.step("?").code == 0 and run.turn == turn + 1


def play_until_empty(run: Episode) -> None:
    while run._task.turns[run.turn].ground_truth:
        for call in run._task.turns[run.turn].ground_truth:
            run.step(written(call))
        run.step("<e>")


def test_a_withheld_function_is_refused_until_it_is_restored():
    run = episode("multi_turn_miss_func_4")
    assert "sort" not in run.offered
    message = run.step(say("sort", file_name="report.txt"))
    assert message.code == -2 and message.results[0].startswith(EXECUTION_ERROR_PREFIX)
    run.step(say("ls", a=True))
    run.step("<e>")
    assert run.step("<e>").code == 1
    assert [each.kind for each in run.incoming] == ["tools_added"]
    assert run.incoming[0].functions == ("sort", "echo")
    assert "sort" in run.offered
    assert run.step(say("sort", file_name="report.txt")).code == -1


def test_a_cut_rollout_scores_the_open_and_all_later_turns_as_wrong():
    run = episode("multi_turn_base_4")
    run.step(say("ls", a=True))
    run.step("<e>")
    run.step(say("sort", file_name="report.txt"))
    run.cut(FinishReason.TOKEN_LIMIT)
    assert run.done and run.finish_reason is FinishReason.TOKEN_LIMIT
    assert run.turn_verdicts == (1, 0, 0)
    assert run.reward == pytest.approx(1 / 3)
    assert run.incoming == ()
    with pytest.raises(RuntimeError, match="has ended"):
        run.step("<e>")


def test_an_answer_without_any_call_is_wrong_where_calls_were_due():
    run = episode("multi_turn_base_4")
    assert run.step("<e>").code == 0


@pytest.mark.parametrize(
    ("codes", "num_turns", "formatted", "observed", "fixed"),
    [
        ((-1, 1, -3, -1, 1), 4, 1.80, 1.00, 0.50),
        ((-3, -1, -1, 1), 1, 1.75, 1.00, 1.00),
        ((-2, -2, 0), 1, 1.00, 0.0, 0.0),
        ((1, 0), 2, 0.0, 0.50, 0.50),
        ((-1, -2, 1, -3, -1, 0), 2, 1.50, 0.50, 0.50),
        ((-3, -3, -3, -3, -3, 0), 1, 0.0, 0.0, 0.0),
        ((), 3, 0.0, 0.0, 0.0),
    ],
)
def test_the_published_reward_vectors_hold(codes, num_turns, formatted, observed, fixed):
    verdicts = [code for code in codes if code >= 0]
    assert format_reward(codes) == pytest.approx(formatted)
    assert observed_reward(codes) == pytest.approx(observed)
    assert progress_reward(verdicts, num_turns) == pytest.approx(fixed)


def test_the_binary_reward_wants_every_turn():
    assert binary_reward((1, 1), 2) == 1.0
    assert binary_reward((1, 0), 2) == binary_reward((1,), 2) == 0.0
