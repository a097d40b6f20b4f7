"""Tasks with other random ids: the same conversation, but no booking, message or card id that could be memorised.

The simulators draw ids from a generator that starts the same in every task. ``reseed`` gives a task its own start, runs the
old and the new ground truth side by side, learns which old value became which new one, and rewrites every argument and
user text that quotes one. A task whose ground truth cannot follow is reported, not guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from environments.execution import make_call, run_call, started
from environments.interface import Environment
from environments.values import leaves, read_result
from schemas.events import Call, Task, Turn

MAX_TRIES = 8
SEED_STRIDE = 1_000_003
MIN_ID_CHARS = 4
Renamed = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class NotReseedable:
    """Why a task keeps the environment's own ids."""

    task_id: str
    reason: str


def reseed(environment: Environment, task: Task, id_seed: int) -> Task | NotReseedable:
    """The task with its own random ids, ground truth and texts rewritten to match.

    Args:
        environment: must honour ``Task.id_seed``.
        task: a task with ``id_seed`` 0.
        id_seed: not 0; a few further seeds derived from it are tried where an id drawn from it breaks the story.
    """
    if id_seed == 0:
        return NotReseedable(task.task_id, "seed 0 means the environment's own ids")
    outcome: Task | NotReseedable = NotReseedable(task.task_id, "not tried")
    for attempt in range(MAX_TRIES):
        outcome = _try(environment, task, id_seed + attempt * SEED_STRIDE)
        if isinstance(outcome, Task):
            return outcome
    return outcome


def reseed_all(
    environment: Environment, tasks: Iterable[Task], id_seed: int
) -> tuple[tuple[Task, ...], tuple[NotReseedable, ...]]:
    """Every task reseeded where that is possible, else as it was; and the list of those that were not."""
    outcomes = [(task, reseed(environment, task, id_seed)) for task in tasks]
    changed = tuple(outcome if isinstance(outcome, Task) else task for task, outcome in outcomes)
    return changed, tuple(outcome for _, outcome in outcomes if isinstance(outcome, NotReseedable))


def _try(environment: Environment, task: Task, id_seed: int) -> Task | NotReseedable:
    renamed = _learn(environment, task, replace(task, id_seed=id_seed))
    if isinstance(renamed, NotReseedable):
        return renamed
    clash = next((old for old in renamed if _names_id(old) and str(old) in task.initial_config_json), None)
    if clash is not None:
        return NotReseedable(task.task_id, f"id {clash} is also in the initial configuration")
    changed = replace(task, id_seed=id_seed, turns=tuple(_rename_turn(turn, renamed) for turn in task.turns))
    return _verified(environment, task, changed, renamed)


def _learn(environment: Environment, old: Task, new: Task) -> Renamed | NotReseedable:
    """Which value of the old run is which value of the new run."""
    renamed: Renamed = {}
    old_state, new_state = started(environment, old), started(environment, new)
    for turn in old.turns:
        for call in turn.ground_truth:
            before = read_result(run_call(environment, old_state, call))
            after = read_result(run_call(environment, new_state, _rename_call(call, renamed)))
            if not _pair(before, after, renamed):
                return NotReseedable(old.task_id, f"{call.name} answers differently with other ids")
    return renamed


def _pair(before: Any, after: Any, renamed: Renamed) -> bool:
    """Walk two results in parallel and note the values that differ; False when their shapes differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        same_size = len(before) == len(after)
        keys = all(_pair(old, new, renamed) for old, new in zip(before, after, strict=False))
        return same_size and keys and all(map(_pairs_into(renamed), before.values(), after.values()))
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_pairs_into(renamed), before, after))
    if type(before) is not type(after):
        return isinstance(before, (int, float)) and isinstance(after, (int, float))
    if before != after:
        if isinstance(before, bool):
            return False
        renamed[before] = after
    return True


def _pairs_into(renamed: Renamed):
    return lambda before, after: _pair(before, after, renamed)


def _names_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and len(str(value)) >= MIN_ID_CHARS


def _rename_turn(turn: Turn, renamed: Renamed) -> Turn:
    calls = tuple(_rename_call(call, renamed) for call in turn.ground_truth)
    return replace(turn, user_text=_rename_text(turn.user_text, renamed), ground_truth=calls)


def _rename_call(call: Call, renamed: Renamed) -> Call:
    return make_call(call.name, _rename(json.loads(call.arguments_json), renamed))


def _rename(value: Any, renamed: Renamed) -> Any:
    if isinstance(value, Mapping):
        return {key: _rename(item, renamed) for key, item in value.items()}
    if isinstance(value, list):
        return [_rename(item, renamed) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return renamed[value] if value in renamed else _rename_text(value, renamed)
    return renamed.get(value, value)


def _rename_text(text: str, renamed: Renamed) -> str:
    """Ids quoted inside a text, whole words only, replaced in one pass so that a new id is never replaced again."""
    known = {str(old): str(new) for old, new in renamed.items() if _names_id(old)}
    if not known:
        return text
    pattern = "|".join(re.escape(old) for old in sorted(known, key=len, reverse=True))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: known[match.group()], text)


def _verified(environment: Environment, old: Task, new: Task, renamed: Renamed) -> Task | NotReseedable:
    """The new task, if every call in it gives the old answer with the ids exchanged."""
    old_state, new_state = started(environment, old), started(environment, new)
    for old_turn, new_turn in zip(old.turns, new.turns, strict=True):
        for old_call, new_call in zip(old_turn.ground_truth, new_turn.ground_truth, strict=True):
            before = read_result(run_call(environment, old_state, old_call))
            after = read_result(run_call(environment, new_state, new_call))
            expected = [_rename(value, renamed) for _, value in leaves(before)]
            if not _same_values(expected, [value for _, value in leaves(after)]):
                return NotReseedable(old.task_id, f"{old_call.name} answers differently with other ids")
    return new


def _same_values(expected: list[Any], found: list[Any]) -> bool:
    """Equal leaf by leaf; floats may differ, because random readings are no ids."""
    if len(expected) != len(found):
        return False
    return all(
        left == right or (isinstance(left, float) and isinstance(right, float))
        for left, right in zip(expected, found, strict=True)
    )
