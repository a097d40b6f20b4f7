"""Guards beyond the method's gates: duplicates, held-out leakage, argument provenance, genuineness of a missing value.

Each returns ``None`` or the failure in words. Source: the independent ToolWeave reconstruction of RODS.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from environments.interface import ToolSchema
from schemas.events import SynthesisFailure, Task
from synthesizer.execution import Trace
from synthesizer.grounding import Position, in_text, ungrounded, visible_before
from synthesizer.outcome import Failure
from synthesizer.values import Scalar, leaves

_WORD = re.compile(r"\w+")


def ground_truth_digest(task: Task) -> str:
    """SHA-256 over the reference calls turn by turn, as 64 hex digits."""
    return _digest([[[call.name, call.arguments_json] for call in turn.ground_truth] for turn in task.turns])


def config_digest(task: Task) -> str:
    """SHA-256 over the initial state; key order does not count."""
    return _digest(json.loads(task.initial_config_json))


def fingerprint(task: Task) -> str:
    """SHA-256 over category, initial state and ground truth, as 64 hex digits."""
    return _digest([task.category.value, config_digest(task), ground_truth_digest(task)])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def duplicate(task: Task, known: Mapping[str, str]) -> Failure | None:
    """Refuse a task whose fingerprint is known.

    Args:
        task: the variant.
        known: task id by fingerprint.
    """
    twin = known.get(fingerprint(task))
    if twin is None:
        return None
    return Failure(SynthesisFailure.GUARD_DUPLICATE, f"same category, state and ground truth as {twin}")


def near_duplicate(task: Task, family: Iterable[Task], limit_frac: float) -> Failure | None:
    """Refuse a task that is almost a task of its own family.

    Args:
        task: the variant.
        family: tasks with the same human ancestor.
        limit_frac: similarity from which on it is refused; 1 switches the guard off.
    """
    if limit_frac >= 1:
        return None
    for other in family:
        share = similarity(task, other)
        if share >= limit_frac:
            return Failure(
                SynthesisFailure.GUARD_DUPLICATE, f"{share:.3f} similar to {other.task_id}, limit {limit_frac}"
            )
    return None


def similarity(left: Task, right: Task) -> float:
    """Jaccard similarity of the sets of reference calls and text words of two tasks, 0 to 1."""
    first, second = _features(left), _features(right)
    return len(first & second) / max(1, len(first | second))


@lru_cache(maxsize=4096)
def _features(task: Task) -> frozenset[str]:
    found = set()
    for index, turn in enumerate(task.turns):
        found.update(f"{index}:{word.casefold()}" for word in _WORD.findall(turn.user_text))
        found.update(f"{index}:{call.name}{call.arguments_json}" for call in turn.ground_truth)
    return frozenset(found)


def leakage(task: Task, held_out_configs: Mapping[str, str], held_out_truths: Mapping[str, str]) -> Failure | None:
    """Refuse a task whose ground truth or initial state is that of a held-out task.

    Args:
        task: the variant.
        held_out_configs: held-out task id by config digest.
        held_out_truths: held-out task id by ground truth digest.
    """
    twin = held_out_truths.get(ground_truth_digest(task))
    if twin is not None:
        return Failure(SynthesisFailure.GUARD_LEAKAGE, f"same ground truth as held-out task {twin}")
    twin = held_out_configs.get(config_digest(task))
    if twin is not None:
        return Failure(SynthesisFailure.GUARD_LEAKAGE, f"same initial state as held-out task {twin}")
    return None


def provenance(
    task: Task, trace: Trace, tools: Mapping[str, ToolSchema], tolerated: frozenset[Position] = frozenset()
) -> Failure | None:
    """Every argument value must come from user text so far, an earlier result, the schema or the state.

    Args:
        task: the variant.
        trace: its executed calls.
        tools: schemas by function.
        tolerated: positions whose value the seed does not explain either.
    """
    for position, value in ungrounded(task, trace, tools).items():
        if position not in tolerated:
            turn, index, name, _ = position
            detail = (
                f"turn {turn}, call {index}: {name} = {value!r} is in no text so far, earlier result, schema or state"
            )
            return Failure(SynthesisFailure.GUARD_PROVENANCE, detail)
    return None


def missing_values(task: Task) -> dict[Position, Scalar]:
    """Argument leaves that a clarifying turn gives and the turn before it, which has no calls, does not."""
    found: dict[Position, Scalar] = {}
    for index in range(1, len(task.turns)):
        turn, before = task.turns[index], task.turns[index - 1]
        if before.ground_truth or not turn.user_text or not before.user_text:
            continue
        for place, call in enumerate(turn.ground_truth):
            for name, argument in json.loads(call.arguments_json).items():
                for path, value in leaves(argument):
                    if in_text(value, turn.user_text) and not in_text(value, before.user_text):
                        found[(index, place, name, path)] = value
    return found


def genuine(task: Task, trace: Trace) -> dict[Position, Scalar]:
    """Missing values that no earlier text or result shows: the agent really cannot act before it is told."""
    return {
        position: value
        for position, value in missing_values(task).items()
        if not visible_before(value, task, trace, position[0])
    }


def genuineness(task: Task, trace: Trace, required: Iterable[Position] = ()) -> Failure | None:
    """A missing value must be absent from everything before its clarifying turn.

    Args:
        task: a miss_param variant.
        trace: its executed calls.
        required: positions that must be genuinely missing (those of the seed, or the one that was removed);
            without any, at least one position must be.
    """
    required = tuple(required)
    values = {
        (step.turn, step.index, name, path): value
        for step in trace.steps
        for name, argument in step.arguments.items()
        for path, value in leaves(argument)
    }
    for position in required:
        turn, index, name, _ = position
        if position not in values:
            return Failure(SynthesisFailure.GUARD_GENUINENESS, f"turn {turn}, call {index} has no {name}")
        if visible_before(values[position], task, trace, turn):
            detail = f"turn {turn}, call {index}: the missing {name} is visible in an earlier text or result"
            return Failure(SynthesisFailure.GUARD_GENUINENESS, detail)
    if not required and not genuine(task, trace):
        return Failure(SynthesisFailure.GUARD_GENUINENESS, "no value of a clarifying turn is really missing before it")
    return None
