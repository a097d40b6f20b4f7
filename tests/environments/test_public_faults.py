"""Faults that users have reported about multi-turn tool benchmarks, and what happens here instead."""

from __future__ import annotations

import json

from environments.audit import Kind, audit_task
from environments.execution import execute, make_call
from environments.interface import EXECUTION_ERROR_PREFIX
from environments.registry import environment, load_tasks
from environments.scoring import Reference, contains_all
from environments.scoring.turns import by_value

BFCL = environment()
TASKS = {task.task_id: task for task in load_tasks("all")}


def run(state, task, name, **arguments):
    return execute(BFCL, state, make_call(name, arguments), BFCL.tools(task))


def files_task():
    return next(
        task for task in TASKS.values() if "GorillaFileSystem" in task.involved_classes and not task.excluded_functions
    )


def test_a_ground_truth_text_that_no_tool_produces_is_flagged():
    findings = audit_task(BFCL, TASKS["multi_turn_base_4"])
    flagged = [finding for finding in findings if finding.kind is Kind.UNDERIVABLE_TEXT]
    assert [(finding.turn, finding.function) for finding in flagged] == [(2, "post_tweet")]
    assert "Initial report content More unsorted data Unsorted data" in flagged[0].detail


def test_a_path_given_to_cd_is_refused_with_its_reason_and_moves_nothing():
    task = files_task()
    state = BFCL.start(task)
    before = run(state, task, "pwd")
    assert "Unsupported path" in run(state, task, "cd", folder="a/b")
    assert run(state, task, "pwd") == before


def test_editing_a_copied_directory_edits_the_original_as_in_the_official_simulator():
    """The package's cp shares the files of a directory with its copy; both profiles keep that (docs/environments.md)."""
    task = files_task()
    state = BFCL.start(task)
    for name, arguments in (
        ("mkdir", {"dir_name": "d"}),
        ("cd", {"folder": "d"}),
        ("touch", {"file_name": "f.txt"}),
        ("cd", {"folder": ".."}),
        ("cp", {"source": "d", "destination": "e"}),
        ("cd", {"folder": "e"}),
        ("echo", {"content": "edited", "file_name": "f.txt"}),
        ("touch", {"file_name": "only_in_copy.txt"}),
        ("cd", {"folder": ".."}),
        ("cd", {"folder": "d"}),
    ):
        run(state, task, name, **arguments)
    assert json.loads(run(state, task, "cat", file_name="f.txt"))["file_content"] == "edited"
    assert "only_in_copy.txt" not in run(state, task, "ls")


def test_a_copied_file_is_independent_of_its_original():
    task = files_task()
    state = BFCL.start(task)
    run(state, task, "touch", file_name="one.txt")
    run(state, task, "cp", source="one.txt", destination="two.txt")
    run(state, task, "echo", content="edited", file_name="two.txt")
    assert json.loads(run(state, task, "cat", file_name="one.txt"))["file_content"] == ""


def test_sixty_five_and_sixty_five_point_zero_are_one_argument_and_one_result():
    task = next(task for task in TASKS.values() if "VehicleControlAPI" in task.involved_classes)
    results = []
    for level in (10, 10.0):
        state = BFCL.start(task)
        results.append(run(state, task, "fillFuelTank", fuelAmount=level))
        results.append(run(state, task, "display_log", messages=["x"]))
    assert contains_all(results[:2], results[2:], numbers_by_value=True)
    assert by_value('{"a": 65.0, "b": true}') == by_value('{"a": 65, "b": true}')
    assert by_value('{"a": 1}') != by_value('{"a": true}')


def test_a_whole_float_is_an_integer_but_a_text_is_no_number():
    task = next(task for task in TASKS.values() if "VehicleControlAPI" in task.involved_classes)
    state = BFCL.start(task)
    assert not run(state, task, "adjustClimateControl", temperature=20, fanSpeed=60.0).startswith(
        EXECUTION_ERROR_PREFIX
    )
    assert state.instances[task.involved_classes.index("VehicleControlAPI")].fanSpeed == 60
    for wrong in ("60", 60.5, True, None, [60]):
        result = run(state, task, "adjustClimateControl", temperature=20, fanSpeed=wrong)
        if wrong is None:
            continue
        assert result.startswith(EXECUTION_ERROR_PREFIX) and "fanSpeed" in result


def test_a_ticket_whose_id_is_text_can_be_closed_where_the_data_has_one():
    task = TASKS["multi_turn_base_173"]
    assert BFCL.tools(task)["close_ticket"].parameters["properties"]["ticket_id"]["type"] == ["integer", "string"]
    other = next(each for each in TASKS.values() if "TicketAPI" in each.involved_classes and each is not task)
    assert BFCL.tools(other)["close_ticket"].parameters["properties"]["ticket_id"]["type"] == "integer"


def test_excluded_functions_are_neither_offered_nor_executed():
    task = next(task for task in TASKS.values() if task.excluded_functions)
    name = task.excluded_functions[0]
    assert name not in BFCL.tools(task)
    assert "not available" in execute(BFCL, BFCL.start(task), make_call(name, {}), BFCL.tools(task))


def test_the_ground_truth_of_every_task_belongs_to_its_classes_and_runs():
    for task in TASKS.values():
        assert {call.name for turn in task.turns for call in turn.ground_truth} <= set(BFCL.tools(task))
        assert Reference.of(BFCL, task).failures == ()
