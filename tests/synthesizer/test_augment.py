"""Turning base drafts into the other categories, and the protocol of each category."""

import random
from dataclasses import replace

import pytest

from schemas.events import Category, SynthesisFailure, Task
from synthesizer import gates, guards
from synthesizer.augment import lengthen, protocol_problem, to_category, withhold_function, withhold_value
from synthesizer.backend import Draft
from synthesizer.config import SynthesisConfig
from synthesizer.execution import run
from synthesizer.outcome import Failure
from tests.synthesizer.building import ENVIRONMENT, SEEDS, call, drafted, file_task, ticket_task, turn

CONFIG = SynthesisConfig()
BASE = ticket_task(
    turn("Open a ticket titled 'Broken chair' for me.", call("create_ticket", title="Broken chair", priority=1)),
    turn("Show it.", call("get_ticket", ticket_id=8000)),
)


def as_category(task: Task, category: Category) -> Task:
    return replace(task, category=category)


def test_a_draft_of_the_wanted_category_stays_as_it_is():
    draft = drafted(BASE)
    assert to_category(ENVIRONMENT, draft, Category.BASE, 1) is draft


def test_a_withheld_function_is_restored_right_after_the_turn_that_needs_it_first():
    for seed in range(6):
        result = withhold_function(ENVIRONMENT, drafted(BASE), random.Random(seed))
        task = result.task
        (name,) = task.withheld_functions
        index = next(i for i, item in enumerate(task.turns) if item.restored_functions)
        assert task.turns[index - 1].ground_truth == () and task.turns[index - 1].user_text
        assert task.turns[index].user_text == "" and name in [item.name for item in task.turns[index].ground_truth]
        assert len(task.turns) == len(BASE.turns) + 1
        assert gates.availability(ENVIRONMENT, task) is None
        assert gates.execution(ENVIRONMENT, task, result.trace) is None
        assert protocol_problem(as_category(BASE, Category.MISS_FUNC), result, CONFIG) is None


def test_a_value_is_taken_out_of_a_text_only_where_the_sentence_survives_it():
    result = withhold_value(ENVIRONMENT, drafted(BASE), random.Random(0))
    texts = [item.user_text for item in result.task.turns]
    assert texts == ["Open a ticket for me.", "The title should be 'Broken chair'.", "Show it."]
    assert result.task.turns[0].ground_truth == () and len(result.task.turns[1].ground_truth) == 1
    assert result.missing == ((1, 0, "title", ()),)
    assert guards.genuineness(result.task, result.trace, result.missing) is None
    assert protocol_problem(as_category(BASE, Category.MISS_PARAM), result, CONFIG) is None


@pytest.mark.parametrize(
    "text",
    [
        "Open a ticket. Its title is Broken chair.",
        "Open a ticket titled 'Broken chair' for me. Broken chair is all it says.",
        "Make 'Broken chair' a ticket.",
    ],
)
def test_a_value_that_cannot_go_safely_stays(text):
    task = ticket_task(turn(text, call("create_ticket", title="Broken chair", priority=1)))
    result = withhold_value(ENVIRONMENT, drafted(task), random.Random(0))
    assert isinstance(result, Failure) and result.failure is SynthesisFailure.CONVERSATION_CONSTRUCT_FAILED


def test_a_value_that_an_earlier_result_shows_is_not_withheld():
    task = file_task(
        turn("List the files.", call("ls", a=True)),
        turn("Show the file named 'a.txt'.", call("cat", file_name="a.txt")),
    )
    assert isinstance(withhold_value(ENVIRONMENT, drafted(task), random.Random(0)), Failure)


def test_a_long_context_variant_is_generated_and_verified_in_long_context_mode():
    task = file_task(turn("Show a.txt.", call("cat", file_name="a.txt")))
    result = lengthen(ENVIRONMENT, drafted(task))
    assert result.task.long_context and result.task.category is Category.LONG_CONTEXT
    assert len(result.trace.steps[0].result) > 2048
    assert gates.execution(ENVIRONMENT, result.task, result.trace) is None
    assert gates.execution(ENVIRONMENT, replace(result.task, long_context=False), result.trace) is not None
    assert protocol_problem(as_category(BASE, Category.LONG_CONTEXT), result, CONFIG) is None


def test_an_argument_that_quotes_a_result_follows_it_into_long_context():
    task = file_task(
        turn("Count the characters of a.txt.", call("wc", file_name="a.txt", mode="c")),
        turn(
            "Write that number into a new file n.txt.",
            call("touch", file_name="n.txt"),
            call("echo", content="10", file_name="n.txt"),
        ),
    )
    result = lengthen(ENVIRONMENT, drafted(task))
    number = result.trace.steps[-1].arguments["content"]
    assert number != "10" and f'"count": {number}' in result.trace.steps[0].result


def test_a_long_context_draft_without_bulk_is_refused():
    task = file_task(turn("Go to box.", call("cd", folder="box")), category=Category.LONG_CONTEXT, long_context=True)
    failure = protocol_problem(task, drafted(task), CONFIG)
    assert failure.failure is SynthesisFailure.CONVERSATION_CONSTRUCT_FAILED and "longest result" in failure.detail


def test_only_base_drafts_change_category():
    draft = drafted(as_category(BASE, Category.MISS_FUNC))
    assert isinstance(to_category(ENVIRONMENT, draft, Category.MISS_PARAM, 1), Failure)


@pytest.mark.parametrize("category", list(Category))
def test_every_training_seed_keeps_its_own_protocol(category):
    for seed in [task for task in SEEDS.values() if task.category is category][::6]:
        draft = Draft(seed, run(ENVIRONMENT, seed), keeps_structure=True)
        assert protocol_problem(seed, draft, CONFIG) is None


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (file_task(turn("Hi.", call("ls", a=True)), category=Category.MISS_FUNC), "no function is withheld"),
        (
            file_task(
                turn("Hi."),
                turn("Now.", call("ls", a=True), restores=["ls"]),
                category=Category.MISS_FUNC,
                withheld_functions=("ls",),
            ),
            "text of its own",
        ),
        (
            file_task(
                turn("Hi.", call("pwd")),
                turn("", call("ls", a=True), restores=["ls"]),
                category=Category.MISS_FUNC,
                withheld_functions=("ls",),
            ),
            "no request without calls",
        ),
        (
            file_task(
                turn("Hi."),
                turn("", call("pwd"), restores=["ls"]),
                category=Category.MISS_FUNC,
                withheld_functions=("ls", "cat"),
            ),
            "withheld are",
        ),
        (file_task(turn("Hi.", call("ls", a=True)), category=Category.MISS_PARAM), "clarifies"),
        (file_task(turn("Hi.", call("ls", a=True)), category=Category.LONG_CONTEXT), "bulk content"),
        (file_task(turn("", call("ls", a=True))), "has no text"),
        (file_task(turn("Hi.")), "no turn has a reference call"),
    ],
)
def test_each_broken_protocol_is_named(task, words):
    failure = protocol_problem(task, drafted(task), CONFIG)
    assert failure.failure is SynthesisFailure.CONVERSATION_CONSTRUCT_FAILED and words in failure.detail
