"""The three deterministic gates."""

from dataclasses import replace

import pytest

from schemas.events import SynthesisFailure
from synthesizer import gates
from synthesizer.config import SynthesisConfig
from synthesizer.execution import Trace, failure_kind, failures_of, run, trace_of
from tests.synthesizer.building import ENVIRONMENT, SEEDS, call, file_task, ticket_task, turn

CONFIG = SynthesisConfig()


def test_every_training_seed_passes_execution_and_availability_with_its_own_negatives():
    for seed in list(SEEDS.values())[::7]:
        trace = trace_of(ENVIRONMENT, seed)
        assert gates.execution(ENVIRONMENT, seed, trace, failures_of(trace)) is None
        assert gates.availability(ENVIRONMENT, seed) is None


def test_a_recorded_result_that_a_fresh_run_does_not_give_is_refused():
    task = file_task(turn("Show a.txt.", call("cat", file_name="a.txt")))
    trace = run(ENVIRONMENT, task)
    forged = Trace((replace(trace.steps[0], result='{"file_content": "forged"}'),))
    failure = gates.execution(ENVIRONMENT, task, forged)
    assert failure.failure is SynthesisFailure.GATE_EXECUTION and "turn 0, call 0, cat" in failure.detail


def test_a_result_with_an_error_is_refused_though_nothing_was_raised():
    task = file_task(turn("Show b.txt.", call("cat", file_name="b.txt")))
    failure = gates.execution(ENVIRONMENT, task, run(ENVIRONMENT, task))
    assert failure.failure is SynthesisFailure.GATE_EXECUTION and "(error)" in failure.detail


def test_a_raised_exception_and_an_unknown_function_are_refused():
    for bad in (call("cat", wrong="a.txt"), call("format_disk")):
        task = file_task(turn("Do it.", bad))
        assert "(raised)" in gates.execution(ENVIRONMENT, task, run(ENVIRONMENT, task)).detail


def test_a_false_success_flag_is_refused_unless_the_seed_has_it_in_that_place():
    seed = next(task for task in SEEDS.values() if failures_of(trace_of(ENVIRONMENT, task)))
    trace = trace_of(ENVIRONMENT, seed)
    assert gates.execution(ENVIRONMENT, seed, trace).failure is SynthesisFailure.GATE_EXECUTION
    assert gates.execution(ENVIRONMENT, seed, trace, failures_of(trace)) is None


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ("Error during execution: no", "raised"),
        ('{"error": "no"}', "error"),
        ("[{'error': 'no'}]", "error"),
        ('["Error: User not authenticated."]', "error"),
        ('{"booking_status": false}', "false booking_status"),
        ('{"zipcode": "00000"}', "placeholder zipcode"),
        ('{"healthy_tire_pressure": false}', ""),
        ("None", ""),
    ],
)
def test_each_form_of_failure_is_told_from_success(result, kind):
    assert failure_kind(result) == kind


def test_a_withheld_function_needed_by_an_earlier_turn_is_refused():
    task = file_task(
        turn("Show a.txt.", call("cat", file_name="a.txt")),
        turn("Again."),
        turn("", call("cat", file_name="a.txt"), restores=["cat"]),
        withheld_functions=("cat",),
    )
    failure = gates.availability(ENVIRONMENT, task)
    assert failure.failure is SynthesisFailure.GATE_AVAILABILITY and "turn 0: cat is withheld" in failure.detail


def test_a_withheld_function_may_be_used_from_its_restoring_turn_on():
    task = file_task(
        turn("Show a.txt."),
        turn("", call("cat", file_name="a.txt"), restores=["cat"]),
        turn("Again.", call("cat", file_name="a.txt")),
        withheld_functions=("cat",),
    )
    assert gates.availability(ENVIRONMENT, task) is None


def test_a_function_of_another_class_or_an_excluded_one_is_refused():
    foreign = file_task(turn("Close it.", call("close_ticket", ticket_id=1)))
    excluded = file_task(turn("Show a.txt.", call("cat", file_name="a.txt")), excluded_functions=("cat",))
    for task in (foreign, excluded):
        assert gates.availability(ENVIRONMENT, task).failure is SynthesisFailure.GATE_AVAILABILITY


@pytest.mark.parametrize(
    ("updates", "refused"),
    [
        ({"description": "x" * 200}, False),
        ({"description": "x" * 201}, True),
        ({"parts": ["a"] * 5}, False),
        ({"parts": ["a"] * 6}, True),
        ({"parts": [["b"] * 6]}, True),
    ],
)
def test_long_strings_and_lists_are_refused_at_every_depth(updates, refused):
    task = ticket_task(turn("Edit it.", call("edit_ticket", ticket_id=7001, updates=updates)))
    failure = gates.complexity(run(ENVIRONMENT, task), CONFIG)
    assert (failure is not None) == refused
    if refused:
        assert failure.failure is SynthesisFailure.GATE_COMPLEXITY and "edit_ticket: argument updates" in failure.detail
