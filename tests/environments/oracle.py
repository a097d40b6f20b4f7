"""The official checker as an oracle: one verdict per transcript, with everything it leaves behind removed again."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import cache

from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import long_context, posting_api, travel_booking
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from environments.bfcl.source import json_lines
from schemas.events import Call

MODEL = "oracle"
FAULTS = {
    "multi_turn:empty_turn_model_response": "empty_turn_model_response",
    "multi_turn:instance_state_mismatch": "instance_state_mismatch",
    "multi_turn:execution_response_mismatch": "execution_response_mismatch",
}


@cache
def records(category: str) -> tuple[Mapping[str, dict], Mapping[str, list]]:
    """Questions and answers of a category by task id, as the package has them."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    questions = {record["id"]: record for record in json_lines(name)}
    return questions, {record["id"]: record["ground_truth"] for record in json_lines("possible_answer", name)}


def as_text(call: Call) -> str:
    """A call in the form the official executor evaluates."""
    arguments = json.loads(call.arguments_json)
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def verdict(category: str, task_id: str, turns: Sequence[Sequence[Sequence[str]]]) -> tuple[bool, str]:
    """The official verdict and fault of one transcript; a crash of the checker counts as invalid, fault ``crash``."""
    questions, answers = records(category)
    before = set(vars(multi_turn_utils))
    defaults = posting_api.TwitterAPI.post_tweet.__defaults__
    posting_api.TwitterAPI.post_tweet.__defaults__ = ([], [])
    cards, bookings = copy.deepcopy(travel_booking.CREDIT_CARD_EXTENSION), travel_booking.BOOKING_RECORD_EXTENSION
    try:
        outcome = multi_turn_checker(
            [[list(step) for step in turn] for turn in turns], answers[task_id], questions[task_id], category, MODEL
        )
    except (RecursionError, AttributeError, TypeError) as error:
        return False, f"crash: {type(error).__name__}"
    finally:
        posting_api.TwitterAPI.post_tweet.__defaults__ = defaults
        for card_id, card in cards.items():
            long_context.CREDIT_CARD_EXTENSION[card_id].clear()
            long_context.CREDIT_CARD_EXTENSION[card_id].update(card)
        assert travel_booking.BOOKING_RECORD_EXTENSION is bookings
        for leftover in set(vars(multi_turn_utils)) - before:
            delattr(multi_turn_utils, leftover)
    return outcome["valid"], FAULTS.get(outcome.get("error_type", ""), "")
