"""The bfcl profile against the official checker: the same verdict and the same fault, and every difference by name."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

from environments.execution import make_call
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from environments.scoring.official import Fault, OfficialSettings, score
from schemas.events import Category
from tests.environments import mutation, oracle

BFCL = environment()
TASKS = {task.task_id: task for task in load_tasks("all")}
NUM_ROUNDS = 7


def ours(task_id, turns, settings=None):
    task = TASKS[task_id]
    return score(BFCL, task, Reference.of(BFCL, task), turns, settings or OfficialSettings())


def official(task_id, turns):
    texts = [[[oracle.as_text(call) for call in step] for step in turn] for turn in turns]
    return oracle.verdict(TASKS[task_id].category.value, task_id, texts)


def truth(task_id):
    return [[turn.ground_truth] if turn.ground_truth else [] for turn in TASKS[task_id].turns]


@pytest.mark.parametrize("category", [category.value for category in Category])
def test_both_accept_every_ground_truth(category):
    for task_id, task in TASKS.items():
        if task.category == category:
            answers = oracle.records(category)[1][task_id]
            assert oracle.verdict(category, task_id, [[turn] if turn else [] for turn in answers]) == (True, "")
            assert ours(task_id, truth(task_id)).valid


def test_both_judge_thousands_of_altered_transcripts_alike():
    rng = random.Random(20260323)
    judged = {True: 0, False: 0}
    for _ in range(NUM_ROUNDS):
        for task_id, task in TASKS.items():
            turns = mutation.mutated(task, rng)
            mine = ours(task_id, turns)
            assert (mine.valid, mine.fault.value if mine.fault else "") == official(task_id, turns), (task_id, turns)
            judged[mine.valid] += 1
    assert sum(judged.values()) >= 5_000
    assert min(judged.values()) >= 1_000


def test_exception_shared_default_list_a_mention_does_not_reach_the_next_tweet():
    task_id = next(
        task.task_id
        for task in TASKS.values()
        if "TwitterAPI" in task.involved_classes and '"authenticated":true' in task.initial_config_json
    )
    state = BFCL.start(TASKS[task_id])
    first = json.loads(BFCL.call(state, make_call("post_tweet", {"content": "one"})))
    BFCL.call(state, make_call("mention", {"tweet_id": first["id"], "mentioned_usernames": ["@stranger"]}))
    second = json.loads(BFCL.call(state, make_call("post_tweet", {"content": "two"})))
    assert second["mentions"] == []
    other = json.loads(BFCL.call(BFCL.start(TASKS[task_id]), make_call("post_tweet", {"content": "three"})))
    assert other["mentions"] == []


def test_exception_shared_cards_a_booking_does_not_charge_another_rollouts_card():
    task = next(task for task in TASKS.values() if task.long_context and "TravelAPI" in task.involved_classes)
    state = BFCL.start(task)
    cards = json.loads(BFCL.call(state, make_call("get_all_credit_cards", {})))["credit_card_list"]
    own = json.loads(task.initial_config_json)["TravelAPI"].get("credit_card_list", {})
    filler = next(card_id for card_id in cards if card_id not in own)
    travel = state.instances[task.involved_classes.index("TravelAPI")]
    booking = {
        "access_token": travel.access_token,
        "card_id": filler,
        "travel_date": "2026-12-01",
        "travel_from": "SFO",
        "travel_to": "LAX",
        "travel_class": "economy",
    }
    travel.budget_limit, travel.token_expires_in = None, 5
    assert json.loads(BFCL.call(state, make_call("book_flight", booking)))["booking_status"] is True
    fresh = json.loads(BFCL.call(BFCL.start(task), make_call("get_all_credit_cards", {})))["credit_card_list"]
    assert fresh[filler] == cards[filler]


def test_exception_rewritten_text_a_message_that_names_a_function_is_stored_verbatim():
    task = next(task for task in TASKS.values() if "MessageAPI" in task.involved_classes)
    text = "Use send_message() to reply (asap)"
    state = BFCL.start(task)
    BFCL.call(state, make_call("message_login", {"user_id": "USR001"}))
    BFCL.call(state, make_call("send_message", {"receiver_id": "USR002", "message": text}))
    assert text in BFCL.call(state, make_call("view_messages_sent", {}))
    messages = state.instances[task.involved_classes.index("MessageAPI")].inbox
    assert messages[-1] == {"USR002": text}


def test_exception_evaluated_text_a_nested_call_runs_in_the_package_and_is_an_error_here():
    texts = [[["cd(folder=list(('temp',))[0])"]]]
    assert parser("python")(texts[0][0][0], BFCL.tools(TASKS["multi_turn_base_0"])).outcome == "parse_error"
    run = multi_turn_utils.execute_multi_turn_func_call
    entry = oracle.records("base")[0]["multi_turn_base_0"]
    before = set(vars(multi_turn_utils))
    results, _ = run(texts[0][0], entry["initial_config"], entry["involved_classes"], "nested", entry["id"])
    for leftover in set(vars(multi_turn_utils)) - before:
        delattr(multi_turn_utils, leftover)
    assert "temp" in results[0] and "Error" not in results[0]


def test_exception_stale_state_a_second_pass_is_judged_like_the_first():
    for task_id in list(TASKS)[:200:10]:
        wrong = [[] for _ in TASKS[task_id].turns]
        ours(task_id, wrong)
        assert ours(task_id, truth(task_id)).valid


def test_exception_bounded_arguments_an_unbounded_precision_is_an_error_text():
    task = next(task for task in TASKS.values() if "MathAPI" in task.involved_classes)
    result = BFCL.call(BFCL.start(task), make_call("square_root", {"number": 2, "precision": 10**9}))
    assert result.startswith("Error during execution: precision must be at most")


def test_exception_fixed_today_an_age_does_not_depend_on_the_day_it_is_asked():
    task = next(task for task in TASKS.values() if "TravelAPI" in task.involved_classes)
    state = BFCL.start(task)
    travel = state.instances[task.involved_classes.index("TravelAPI")]
    travel.user_first_name, travel.user_last_name = "Ada", "Byron"

    def check(birth):
        arguments = {"first_name": "Ada", "last_name": "Byron", "date_of_birth": birth, "passport_number": "US1"}
        return json.loads(BFCL.call(state, make_call("verify_traveler_information", arguments)))

    assert check("2008-03-23")["verification_status"] is True
    assert check("2008-03-24")["verification_failure"] == "Traveler must be at least 18 years old."
    assert "Invalid date" in check("yesterday")["verification_failure"]


def test_exception_ordered_names_error_texts_do_not_follow_the_hash_seed():
    task = next(task for task in TASKS.values() if "TicketAPI" in task.involved_classes)
    state = BFCL.start(task)
    tickets = state.instances[task.involved_classes.index("TicketAPI")]
    tickets.ticket_queue.append({"id": 990, "status": "Open"})
    updates = dict.fromkeys(("zeta", "alpha", "mid", "status"), 1)
    result = BFCL.call(state, make_call("edit_ticket", {"ticket_id": 990, "updates": updates}))
    assert json.loads(result)["error"] == "Invalid fields for update: alpha, mid, zeta"


def test_exception_endless_tree_a_directory_copied_into_itself_is_an_outcome():
    state = BFCL.start(TASKS["multi_turn_base_0"])
    for name in ("cp", "cp", "cp"):
        BFCL.call(state, make_call("mkdir", {"dir_name": "loop"}))
        BFCL.call(state, make_call(name, {"source": "loop", "destination": "loop"}))
    assert "more than" in BFCL.call(state, make_call("find", {"path": "."}))
    assert BFCL.digest(state) == BFCL.digest(state)
    reference = Reference.of(BFCL, TASKS["multi_turn_base_0"])
    assert BFCL.matches(state, reference.marks[0]) is False


def miss_func_with_sort():
    task_id = "multi_turn_miss_func_4"
    turns = truth(task_id)
    turns[1], turns[2] = [TASKS[task_id].turns[2].ground_truth], turns[2]
    return task_id, turns


def test_setting_refuse_withheld_departs_from_the_leaderboard():
    task_id, turns = miss_func_with_sort()
    assert official(task_id, turns) == (True, "")
    assert ours(task_id, turns).valid
    assert ours(task_id, turns, OfficialSettings(refuse_withheld=True)).valid, "the later, allowed call still counts"
    only_early = [turns[0], turns[1], [[make_call("ls", {})]], turns[3]]
    assert ours(task_id, only_early).valid
    refused = ours(task_id, only_early, OfficialSettings(refuse_withheld=True))
    assert (refused.turn, refused.fault) == (2, Fault.RESPONSE)


def test_setting_require_abstention_fails_a_call_in_a_turn_without_ground_truth():
    task_id, turns = miss_func_with_sort()
    judged = ours(task_id, turns, OfficialSettings(require_abstention=True))
    assert (judged.valid, judged.turn, judged.fault) == (False, 1, Fault.VAIN_CALL)


def test_setting_check_schemas_refuses_what_python_would_let_through():
    task_id = "multi_turn_base_4"
    turns = truth(task_id)
    turns[0] = [[make_call("ls", {"a": 1})]]
    assert official(task_id, turns) == (True, "")
    assert ours(task_id, turns).valid
    assert ours(task_id, turns, OfficialSettings(check_schemas=True)).fault is Fault.RESPONSE


def test_setting_numbers_by_value_lets_sixty_five_be_sixty_five():
    task = next(
        task
        for task in TASKS.values()
        if any(call.name == "setCruiseControl" for turn in task.turns for call in turn.ground_truth)
    )
    turns = truth(task.task_id)
    for steps in turns:
        for index, step in enumerate(steps):
            steps[index] = tuple(map(as_other_numbers, step))
    assert ours(task.task_id, turns).valid is official(task.task_id, turns)[0] is True


def as_other_numbers(call):
    if call.name != "setCruiseControl":
        return call
    arguments = json.loads(call.arguments_json)
    swapped = {k: int(v) if isinstance(v, float) else float(v) if type(v) is int else v for k, v in arguments.items()}
    return make_call(call.name, swapped)


def test_a_rollout_that_stopped_early_is_invalid():
    judged = ours("multi_turn_base_4", truth("multi_turn_base_4")[:2])
    assert (judged.valid, judged.fault) == (False, Fault.FORCED_STOP)


def test_a_transcript_that_never_ends_is_an_outcome(monkeypatch):
    from environments.scoring import official as module

    class Endless(type(BFCL)):
        def call(self, state, call):
            while True:
                pass

    monkeypatch.setattr(module.WATCHDOG, "limit_s", 0.1)
    task = replace(TASKS["multi_turn_base_4"])
    assert score(Endless(), task, Reference.of(BFCL, task), truth(task.task_id)).fault is Fault.OVERRUN
