"""From plan to admitted task over real HTTP: every category, every stage, every way in which a stage says no."""

from dataclasses import replace

import pytest

from benchmarks.playing_server import Player, blocks
from environments.registry import environment
from schemas import decode, encode
from schemas.events import Category, SynthesisFailure, TaskSynthesized
from synthesizer import gates, guards
from synthesizer.backend import Attempt, Seed
from synthesizer.book import TaskBook
from synthesizer.config import SynthesisConfig
from synthesizer.execution import run
from synthesizer.stages.scene import Scene
from synthesizer.stages.withholding import options
from tests.synthesizer.building import call, seeded, turn
from tests.synthesizer.playing import BASE, WORKSHOP, play

F = SynthesisFailure
SHOP = environment("workshop")
TURN = ["parameters", "query", "verifier"]
TWO_CALLS = ["parameters", "parameters", "query", "verifier"]


def failing(failure, words, **kwargs):
    """Play one attempt and check its end."""
    played = play(max_attempts=1, **kwargs)
    assert played.end.failure is failure, played.end.detail
    assert words in played.end.detail, played.end.detail
    return played


def test_a_plan_becomes_an_admitted_task_and_every_stage_is_noted_in_order():
    played = play()
    event = played.end
    assert isinstance(event, TaskSynthesized) and len(played.events) == 1
    assert played.player.asked == ["planner", *TURN, *TURN, *TWO_CALLS, "rewriter", "judge"]
    assert [stage.stage for stage in event.stages] == ["plan", "execute", "rewrite", "critique", "judge"]
    assert all(stage.passed for stage in event.stages) and event.num_attempts == 1
    assert event.task.turns[0].user_text.startswith("Good morning!")
    assert event.task.initial_config_json == BASE.initial_config_json and event.task.id_seed > 0
    assert guards.ground_truth_digest(event.task) != guards.ground_truth_digest(BASE)
    assert '"depth":3' in event.variant_profile_json and '"depth":3' in event.seed_profile_json
    assert decode(encode(event)) == event


@pytest.mark.parametrize("category", list(Category))
def test_each_category_is_made_by_its_protocol_and_passes_every_gate(category):
    task = play(WORKSHOP[category]).end.task
    trace = run(SHOP, task)
    assert task.category is category
    assert gates.execution(SHOP, task, trace) is None and gates.availability(SHOP, task) is None
    calls, wanted = ([len(turn.ground_truth) for turn in each.turns] for each in (task, WORKSHOP[category]))
    assert [num for num in calls if num] == [num for num in wanted if num] and len(calls) == len(wanted)
    assert task.long_context is (category is Category.LONG_CONTEXT)


def test_a_long_context_variant_is_executed_in_long_context_mode_from_the_first_call_on():
    played = play(WORKSHOP[Category.LONG_CONTEXT])
    shown = [
        blocks(prompt)[3]
        for role, prompt in zip(played.player.asked, played.player.prompts, strict=True)
        if role == "query"
    ]
    assert "fitting-0000" in shown[1][0]["result"] and "characters left out" in shown[1][0]["result"]
    assert len(run(SHOP, played.end.task).steps[1].result) > 2048


def test_a_withheld_value_is_said_by_nothing_before_its_clarification():
    task = play(WORKSHOP[Category.MISS_PARAM]).end.task
    empty = next(index for index, item in enumerate(task.turns) if not item.ground_truth)
    assert task.turns[empty + 1].user_text.startswith("The ")
    assert guards.genuine(task, run(SHOP, task))


def test_a_value_that_a_text_still_says_after_withholding_is_refused():
    same = Player(
        replaced={
            "withholder": lambda prompt: {
                "reason": "-",
                "request": blocks(prompt)[2],
                "clarification": f"{blocks(prompt)[3]}, please.",
            }
        }
    )
    failing(F.CONVERSATION_CONSTRUCT_FAILED, "still says the value", seed=WORKSHOP[Category.MISS_PARAM], player=same)
    other = Player(
        replaced={
            "withholder": lambda prompt: {
                "reason": "-",
                "request": "Please take something.",
                "clarification": "You know which.",
            }
        }
    )
    failing(F.CONVERSATION_CONSTRUCT_FAILED, "does not say", seed=WORKSHOP[Category.MISS_PARAM], player=other)


@pytest.mark.parametrize(("quantity", "names"), [(7, ["quantity"]), (11, [])])
def test_only_a_value_that_no_earlier_result_text_schema_or_state_shows_can_be_withheld(quantity, names):
    task = replace(
        BASE,
        turns=(
            turn("Tell me about the part 'spoke'.", call("part_info", part="spoke")),
            turn(f"Take {quantity} of the part 'spoke'.", call("take_part", part="spoke", quantity=quantity)),
        ),
    )
    scene = Scene(SHOP, Seed(task, "", 0, ""), Attempt(0, 1), None, SynthesisConfig(), SHOP.tools(task))
    trace = run(SHOP, task)
    assert '"quantity": 11' in trace.steps[0].result
    assert [option.name for option in options(scene, task, trace)] == names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("no json at all", "Expecting value"),
        ({"reason": "-", "arguments": [1]}, "arguments: Input should be a valid dictionary"),
        ({"reason": "-", "arguments": {"customer": "Ada"}}, "missing argument 'bicycle'"),
        ({"reason": "-", "arguments": {"customer": "Ada", "bicycle": "b", "colour": 1}}, "unknown argument 'colour'"),
        ({"reason": "-", "arguments": {"customer": 7, "bicycle": "b"}}, "must be text"),
        ({"reason": "-", "arguments": {"customer": "A" * 201, "bicycle": "b"}}, "201 characters"),
        ('{"reason":"-","arguments":{"customer":NaN,"bicycle":"b"}}', "NaN"),
        ('{"reason":"-","arguments":{"customer":"\\ud800","bicycle":"b"}}', "surrogates"),
        ('{"reason":"-","arguments":{"customer":' + "[" * 5000, ""),
        ('{"reason":"-","arguments":{"customer":"Ada","bicy', "Unterminated"),
        ("I'm sorry, but I can't help with that.", "Expecting value"),
        ("", "Expecting value"),
    ],
)
def test_arguments_that_cannot_run_end_as_param_gen_failed_after_two_answers(arguments, words):
    played = failing(F.PARAM_GEN_FAILED, words, player=Player(replaced={"parameters": arguments}))
    assert played.player.asked == ["planner", "parameters", "parameters"] and "open_job" in played.end.detail


@pytest.mark.parametrize("parts", [[], ["open_job", "fly"]])
def test_a_high_level_function_without_a_usable_decomposition_ends_as_decompose_failed(parts):
    plan = {
        "reason": "-",
        "narrative": "-",
        "turns": [
            {"api": "Jobs", "functions": ["whole_repair"]},
            {"api": "Stock", "functions": ["take_part"]},
            {"api": "Jobs", "functions": ["add_work", "job_total"]},
        ],
    }
    failing(
        F.DECOMPOSE_FAILED,
        "whole_repair",
        player=Player(replaced={"planner": plan}),
        macros={"Jobs": {"whole_repair": parts}},
    )


def test_a_high_level_function_is_offered_and_executed_as_its_parts():
    plan = {
        "reason": "-",
        "narrative": "-",
        "turns": [
            {"api": "Jobs", "functions": ["open_job"]},
            {"api": "Stock", "functions": ["take_part"]},
            {"api": "Jobs", "functions": ["bill"]},
        ],
    }
    played = play(player=Player(replaced={"planner": plan}), macros={"Jobs": {"bill": ["add_work", "job_total"]}})
    assert [item.name for item in played.end.task.turns[2].ground_truth] == ["add_work", "job_total"]
    assert '"high-level": ["bill"]' in played.player.prompts[0]


def test_a_seed_whose_functions_are_not_in_its_classes_ends_as_func_sample_failed():
    failing(F.FUNC_SAMPLE_FAILED, "fly", seed=replace(BASE, turns=(turn("Fly.", call("fly")),)), profile_mode="off")


def test_a_blocklist_that_empties_a_class_ends_as_func_sample_failed():
    only = replace(BASE, excluded_functions=("list_parts", "part_info"))
    greedy = Player(
        replaced={
            "parameters": lambda prompt: {
                "reason": "-",
                "arguments": {
                    "open_job": {"customer": "Ada", "bicycle": "mixte"},
                    "take_part": {"part": "spoke", "quantity": 99},
                }[blocks(prompt)[2]["name"]],
            }
        }
    )
    played = play(only, greedy, max_attempts=2)
    assert (
        played.end.failures == (F.VM_EXEC_FAILED, F.FUNC_SAMPLE_FAILED) and "no function of Stock" in played.end.detail
    )


def test_a_call_that_fails_ends_as_vm_exec_failed_with_its_result():
    greedy = Player(
        replaced={
            "parameters": {"reason": "-", "arguments": {"part": "spoke", "quantity": 99}},
            "planner": {"reason": "-", "narrative": "-", "turns": [{"api": "Stock", "functions": ["take_part"]}] * 3},
        }
    )
    failing(F.VM_EXEC_FAILED, "cannot take 99", player=greedy)


def test_a_state_that_cannot_be_loaded_ends_as_vm_exec_failed():
    broken = replace(
        BASE, initial_config_json='{"Stock":{"roof":1},"Jobs":{}}', turns=(turn("Take.", call("list_parts")),) * 2
    )
    failing(F.VM_EXEC_FAILED, "cannot be loaded", seed=broken, narrative_planning=False)


def test_the_same_call_twice_in_a_turn_ends_as_duplicate_func():
    same = Player(
        replaced={
            "parameters": {"reason": "-", "arguments": {"part": "spoke", "quantity": 1}},
            "planner": {
                "reason": "-",
                "narrative": "-",
                "turns": [{"api": "Stock", "functions": ["take_part"] * 2}] * 3,
            },
        }
    )
    failing(F.DUPLICATE_FUNC, "take_part twice", player=same)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"reason": "-", "query": "Call open_job for Ada."}, "names open_job"),
        ({"reason": "-", "query": "  "}, "empty"),
        ({"reason": "-", "query": "x " * 800}, "1600 characters"),
        ({"reason": "-", "query": "Ring the bell \x07"}, "control characters"),
        ({"query": "No reason."}, "reason: Field required"),
        ({"reason": "-", "query": "Fine.", "note": "more"}, "Extra inputs"),
        ({"reason": "-", "query": 5}, "valid string"),
    ],
)
def test_a_request_that_cannot_be_used_ends_as_query_gen_failed(query, words):
    failing(F.QUERY_GEN_FAILED, words, player=Player(replaced={"query": query}))


def test_a_rejected_request_ends_as_query_verify_failed():
    no = Player(replaced={"verifier": {"reason": "It asks for more.", "verdict": "reject"}})
    failing(F.QUERY_VERIFY_FAILED, "It asks for more.", player=no)


@pytest.mark.parametrize("said", ["It looks fine to me.", {"reason": "Fine."}, {"reason": "-", "verdict": "maybe"}])
def test_a_verifier_without_a_verdict_ends_as_query_verify_no_tag(said):
    failing(F.QUERY_VERIFY_NO_TAG, "no verdict", player=Player(replaced={"verifier": said}))


@pytest.mark.parametrize("queries", [["One."], ["One."] * 4, ["Use job_id J1.", "Two.", "Three."], []])
def test_a_rewrite_with_the_wrong_count_or_with_names_ends_as_conversation_construct_failed(queries):
    player = Player(replaced={"rewriter": {"reason": "-", "queries": queries}})
    played = failing(F.CONVERSATION_CONSTRUCT_FAILED, "rewrite", player=player)
    assert played.player.asked.count("rewriter") == 2


def test_a_class_without_a_query_prompt_ends_as_no_prompts_where_the_general_one_is_off():
    failing(F.NO_PROMPTS, "class Jobs", generic_query_prompt=False)


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([{"api": "Jobs", "functions": ["open_job"]}], "1 turns"),
        ([{"api": "Jobs", "functions": ["open_job"]}] * 6, "6 turns"),
        ([{"api": "Bakery", "functions": ["bake"]}] * 3, "no class of the seed"),
        ([{"api": "Jobs", "functions": ["take_part"]}] * 3, "no function of Jobs"),
        ([{"api": "Jobs", "functions": []}] * 3, "0 functions"),
        ([{"api": "Jobs", "functions": ["open_job"] * 4}] * 3, "4 functions"),
        ([{"api": "Jobs", "functions": ["open_job"]}] * 2, "the seed asks for 3"),
        ([{"api": "Jobs", "functions": ["open_job"] * 3}] * 3, "calls per turn"),
        ("many", "valid list"),
    ],
)
def test_a_plan_of_another_shape_ends_as_no_pattern_after_three_answers(turns, words):
    plan = Player(replaced={"planner": {"reason": "-", "narrative": "-", "turns": turns}})
    played = failing(F.NO_PATTERN, words, player=plan)
    assert played.player.asked == ["planner"] * 3


def test_a_planner_that_is_understood_at_the_third_answer_goes_on():
    played = play(player=Player(replaced={"planner": ["what?", '{"reason": 1}', Player().planner]}))
    assert isinstance(played.end, TaskSynthesized) and played.end.num_attempts == 1
    assert played.player.asked[:4] == ["planner"] * 3 + ["parameters"]


def test_gates_and_guards_cannot_be_overruled_by_a_judge_that_is_always_pleased():
    deaf = Player(replaced={"rewriter": {"reason": "-", "queries": ["Hello.", "Go on.", "And then?"]}})
    played = failing(F.GUARD_PROVENANCE, "is in no text so far", player=deaf)
    assert "judge" not in played.player.asked and played.events[0].failure is F.GUARD_PROVENANCE
    assert played.events[0].candidate.turns[0].user_text == "Hello."


def test_a_variant_of_another_structure_is_refused_by_its_profile_or_only_reported():
    flat = {"reason": "-", "narrative": "-", "turns": [{"api": "Stock", "functions": ["list_parts"]}] * 3}
    player = {"planner": flat, "parameters": {"reason": "-", "arguments": {}}}
    failing(F.GUARD_PROFILE, "depth", player=Player(replaced=dict(player)))
    reported = play(player=Player(replaced=dict(player)), profile_mode="report")
    assert isinstance(reported.end, TaskSynthesized) and '"depth":1' in reported.end.variant_profile_json


def test_a_variant_that_repeats_a_task_of_the_pool_is_refused():
    first = play()
    book = TaskBook()
    book.fold([seeded(BASE), *first.events])
    again = play(book=book, max_attempts=1)
    assert again.end.failure is F.GUARD_DUPLICATE and first.end.task.task_id in again.end.detail


def test_a_variant_with_a_held_out_ground_truth_is_refused():
    twin = play().end.task
    book = TaskBook([replace(twin, task_id="held-out", initial_config_json="{}")])
    book.fold([seeded(BASE)])
    played = play(book=book, max_attempts=1)
    assert played.end.failure is F.GUARD_LEAKAGE and "held-out" in played.end.detail


NO = {"reason": "-", "verdict": "reject", "fail_reason": "Turn 0 sounds odd."}
YES = {"reason": "-", "verdict": "accept", "fail_reason": ""}


def test_a_rejected_candidate_is_refined_once_and_judged_again():
    played = play(player=Player(replaced={"judge": [NO, YES]}))
    assert isinstance(played.end, TaskSynthesized)
    assert played.player.asked[-4:] == ["judge", "classifier", "refiner", "judge"]
    assert played.end.task.turns[0].user_text.startswith("Hello there,")
    assert [(stage.stage, stage.passed) for stage in played.end.stages[-2:]] == [("judge", False), ("refine", True)]


@pytest.mark.parametrize(
    ("replaced", "words", "asked"),
    [
        ({"judge": NO}, "after one refinement", ["judge", "classifier", "refiner", "judge"]),
        (
            {"judge": NO, "classifier": {"reason": "Calls.", "kind": "gt_unfixable", "turn": -1}},
            "gt_unfixable",
            ["judge", "classifier"],
        ),
        ({"judge": NO, "classifier": "hm"}, "gt_unfixable", ["judge", "classifier", "classifier"]),
        (
            {"judge": NO, "classifier": {"reason": "-", "kind": "query_fixable", "turn": 9}},
            "gt_unfixable",
            ["judge", "classifier"],
        ),
        (
            {"judge": NO, "refiner": {"reason": "-", "query": "use open_job"}},
            "unusable",
            ["judge", "classifier", "refiner"],
        ),
        ({"judge": NO, "refiner": "hm"}, "unusable", ["judge", "classifier", "refiner", "refiner"]),
    ],
)
def test_each_end_of_the_one_refinement_is_a_rejection_by_the_judge(replaced, words, asked):
    played = failing(F.JUDGE_REJECTED, words, player=Player(replaced=dict(replaced)))
    assert played.player.asked[-len(asked) :] == asked and played.player.asked.count("judge") == asked.count("judge")
    assert played.events[0].failure is F.JUDGE_REJECTED and "Turn 0" in str(played.end.stages)


def test_a_judge_that_cannot_be_read_twice_has_rejected():
    played = play(
        player=Player(replaced={"judge": "Nice!", "classifier": {"reason": "-", "kind": "gt_unfixable", "turn": -1}}),
        max_attempts=1,
    )
    assert played.end.failure is F.JUDGE_REJECTED and played.player.asked[-3:] == ["judge", "judge", "classifier"]


def test_a_refined_text_that_loses_a_value_is_refused_by_the_guard_though_the_judge_accepts_it():
    lossy = Player(replaced={"judge": [NO, YES], "refiner": {"reason": "-", "query": "Please open a job."}})
    played = failing(F.GUARD_PROVENANCE, "bicycle", player=lossy)
    assert played.player.asked[-1] == "judge"


def test_without_narrative_planning_functions_are_drawn_and_nobody_is_asked_for_a_plan():
    played = play(narrative_planning=False, profile_mode="report")
    assert "planner" not in played.player.asked and played.stage("plan")[0][0]
    assert played.player.asked[0] == "parameters"


def test_without_the_rewrite_the_draft_texts_stay():
    played = play(coherence_rewrite=False)
    assert "rewriter" not in played.player.asked and played.end.task.turns[0].user_text.startswith("Please open")
