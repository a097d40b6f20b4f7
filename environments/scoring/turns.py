"""The two checks of one turn: is the state right, and were the reference results obtained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from environments.interface import Environment, State
from environments.scoring.reference import Reference


def same_state(environment: Environment, state: State, reference: Reference, turn: int) -> bool:
    """State check s_t: the public state equals the ground truth's after the same turn."""
    if reference.is_quick:
        return environment.matches(state, reference.marks[turn])
    return environment.digest(state) == reference.digests[turn]


def contains_all(expected: Sequence[str], obtained: Sequence[str], numbers_by_value: bool = False) -> bool:
    """Execution check e_t: the expected results are a multiset inside everything obtained so far, in any order.

    Args:
        expected: result texts of this turn's ground truth.
        obtained: a list; result texts of the policy in all turns so far; nothing is consumed across turns.
        numbers_by_value: let ``{"x": 65}`` and ``{"x": 65.0}`` be the same result.
    """
    for result in expected:
        if result not in obtained or obtained.count(result) < expected.count(result):
            return numbers_by_value and not Counter(map(by_value, expected)) - Counter(map(by_value, obtained))
    return True


def by_value(result: str) -> str:
    """A JSON result with its whole floats written as integers; any other text as it is."""
    if not result.startswith(("{", "[")):
        return result
    try:
        return json.dumps(json.loads(result, parse_float=_number))
    except (ValueError, RecursionError):
        return result


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
