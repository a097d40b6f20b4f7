"""Runs a changed task and lets its arguments follow: what quoted an earlier result quotes the new result.

An argument leaf is, in this order: named by the user (then it changes as the text changes), a leaf of an earlier
result, computed from one by a known rule (rounding, doubling, a product), a sentence that quotes results, or hidden.
A number that none of these explains while numbers changed around it ends the attempt: it may have been computed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from environments.execution import started
from environments.interface import Environment
from schemas.events import Call, SynthesisFailure, Task
from synthesizer.execution import Step, Trace, executed, failure_kind
from synthesizer.grounding import in_text, texts_until
from synthesizer.outcome import Failure
from synthesizer.values import (
    Path,
    Scalar,
    has_number,
    is_number,
    mapped,
    number_like,
    numbers_in,
    rendered,
    replaced,
    result_leaves,
    same,
)

CONSTANT_PARAMETERS = frozenset({"priority", "pedalPosition", "precision", "base", "lines"})
"""Numbers that a request implies in words ("highest", "fully"), never a computed amount."""
TANK_CAPACITY = 50.0
"""Gallons; the built-in vehicle's."""
SMALL = 10


class Change(Protocol):
    """How values that the user names differ between the old and the new task."""

    moves_numbers: bool
    hidden_numbers: tuple[tuple[str, float, float], ...]

    def names(self, value: Scalar, text: str) -> bool:
        """Whether the old text says this old value."""

    def value(self, value: Scalar) -> Scalar:
        """The new value."""

    def text(self, text: str, extra: Mapping[str, str]) -> str:
        """The new text, with ``extra`` words replaced in the same pass."""


class Unchanged:
    """Nothing that the user names changes."""

    moves_numbers = False
    hidden_numbers: tuple[tuple[str, float, float], ...] = ()

    def names(self, value: Scalar, text: str) -> bool:
        """Whether the text says the value."""
        return in_text(value, text)

    def value(self, value: Scalar) -> Scalar:
        """The same value."""
        return value

    def text(self, text: str, extra: Mapping[str, str]) -> str:
        """The text with quoted results replaced."""
        return replaced(text, extra)


@dataclass(frozen=True, slots=True)
class _Source:
    """One leaf of an earlier result in the old and in the new run; ``found`` is false if the new run lacks it."""

    key: str
    old: Scalar
    new: Scalar
    found: bool


class _Stuck(Exception):
    """An argument cannot be followed; the text names it."""


def rerun(
    environment: Environment, old: Task, old_trace: Trace, new: Task, change: Change | None = None
) -> tuple[Task, Trace] | Failure:
    """Execute the old reference calls in the new task's world with followed arguments.

    Args:
        environment: simulators of both tasks.
        old: the task whose structure is kept.
        old_trace: its executed calls.
        new: new state, texts and modes, with as many turns; its ground truth is replaced.
        change: how named values change; nothing changes if not given.

    Returns:
        The new task with its ground truth and trace, or why it cannot be had.
    """
    change = change or Unchanged()
    tools = environment.tools(new)
    state = started(environment, new)
    sources: list[_Source] = []
    steps: list[Step] = []
    for step in old_trace.steps:
        place = f"turn {step.turn}, call {step.index}, {step.call.name}"
        try:
            call = _followed(step, texts_until(old, step.turn), sources, change)
        except _Stuck as error:
            return Failure(SynthesisFailure.PARAM_GEN_FAILED, f"{place}: {error}")
        result = executed(environment, state, call, tools)
        problem = _kind_changed(step.result, result)
        if problem:
            return Failure(SynthesisFailure.VM_EXEC_FAILED, f"{place}: {problem}: {result[:200]}")
        sources += _aligned(step.result, result)
        steps.append(Step(step.turn, step.index, call, result))
    turns = tuple(
        replace(turn, ground_truth=tuple(step.call for step in steps if step.turn == index))
        for index, turn in enumerate(new.turns)
    )
    return replace(new, turns=turns), Trace(tuple(steps))


def _kind_changed(old: str, new: str) -> str:
    """In words, if the new result fails where the old did not, or answers a yes/no differently."""
    before, after = failure_kind(old), failure_kind(new)
    if before != after:
        return f"result is {after or 'a success'}, the seed's is {before or 'a success'}"
    flags = dict(result_leaves(new))
    for path, value in result_leaves(old):
        if isinstance(value, bool) and flags.get(path, value) is not value:
            return f"{'.'.join(map(str, path))} is {flags[path]}, the seed's is {value}"
    return ""


def _aligned(old: str, new: str) -> list[_Source]:
    """Leaves of the old result with their counterparts: by path, or by order where ids in keys changed."""
    before, after = result_leaves(old), result_leaves(new)
    now = dict(after)
    in_order = after if len(before) == len(after) else ()
    found = []
    for place, (path, value) in enumerate(before):
        if isinstance(value, bool) or value is None or value == "":
            continue
        key = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
        if path in now:
            found.append(_Source(key, value, now[path], True))
        elif in_order:
            found.append(_Source(key, value, in_order[place][1], True))
        else:
            found.append(_Source(key, value, None, False))
    return found


def _followed(step: Step, text: str, sources: Sequence[_Source], change: Change) -> Call:
    arguments = {
        name: mapped(argument, lambda path, value, name=name: _leaf(value, name, path, text, sources, change))
        for name, argument in step.arguments.items()
    }
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Call(name=step.call.name, arguments_json=canonical)


def _leaf(value: Scalar, name: str, path: Path, text: str, sources: Sequence[_Source], change: Change) -> Scalar:
    if value is None or isinstance(value, bool) or value == "":
        return value
    name = str(path[-1]) if path and isinstance(path[-1], str) else name
    if change.names(value, text):
        return change.value(value)
    source = _quoted(value, name, path, sources)
    if source is not None:
        if not source.found:
            raise _Stuck(f"{name} = {value!r} quotes a result that the new run does not give")
        return number_like(value, source.new) if is_number(value) and is_number(source.new) else source.new
    if is_number(value):
        return _number(value, name, text, sources, change)
    return _sentence(value, name, text, sources, change)


def _quoted(value: Scalar, name: str, path: Path, sources: Sequence[_Source]) -> _Source | None:
    """The latest result leaf equal to the value; small numbers only under a related key, or as list items."""
    equal = [source for source in reversed(sources) if same(source.old, value)]
    related = [source for source in equal if _related(source.key, name)]
    if related:
        return related[0]
    if is_number(value) and float(value).is_integer() and abs(value) < SMALL and not path:
        return None
    return equal[0] if equal else None


def _related(key: str, name: str) -> bool:
    key, name = key.lower(), name.lower()
    return bool(key) and (key in name or name in key)


def _number(value: float, name: str, text: str, sources: Sequence[_Source], change: Change) -> float:
    numeric = [
        source for source in reversed(sources) if is_number(source.old) and is_number(source.new) and source.found
    ]
    pairs = [(source.old, source.new) for source in numeric]
    computed = _computed(value, pairs, _RULES, text, change)
    if computed is None:
        quantities = [(old, new) for key, old, new in change.hidden_numbers if _share_a_word(key, name)]
        computed = _computed(value, quantities, (_same, _double, _to_full), text, change)
    if computed is not None:
        return computed
    changed = change.value(value)
    if name in CONSTANT_PARAMETERS or name.endswith("id") or not same(changed, value):
        return changed
    moved = any(not same(source.old, source.new) and not source.key.endswith("id") for source in numeric)
    if not (moved or change.moves_numbers) or _still_said(value, sources):
        return value
    raise _Stuck(f"{name} = {value} is computed in a way that cannot be followed")


Rule = Callable[[float], float]


def _computed(
    value: float, pairs: Sequence[tuple[float, float]], rules: Sequence[Rule], text: str, change: Change
) -> float | None:
    """The new value if a rule makes the old value from an old quantity; a text number may take part."""
    said = sorted(number for number in numbers_in(text) if 2 <= number <= 1000 and number.is_integer())
    for old, new in pairs:
        if any(same(rule(old), value) for rule in rules):
            rule = next(rule for rule in rules if same(rule(old), value))
            return value if same(old, new) else number_like(value, round(rule(new), 2))
        for number in said:
            now = float(change.value(number))
            if same(round(old * number, 2), value):
                return number_like(value, round(new * now, 2))
            if same(number - old, value):
                return number_like(value, round(now - new, 2))
    return None


def _share_a_word(field: str, name: str) -> bool:
    """Whether two names in mixed case share their first word, as fuelLevel and fuelAmount do."""
    first, second = (re.match(r"[a-z]+", word) for word in (field, name))
    return bool(first and second) and first.group() == second.group()


def _still_said(value: float, sources: Sequence[_Source]) -> bool:
    """Whether a text leaf says the number in both runs."""
    return any(
        isinstance(s.old, str) and isinstance(s.new, str) and has_number(value, s.old) and has_number(value, s.new)
        for s in sources
    )


def _same(number: float) -> float:
    return number


def _double(number: float) -> float:
    return 2 * number


def _to_full(number: float) -> float:
    return TANK_CAPACITY - number


_RULES: tuple[Callable[[float], float], ...] = (
    lambda number: round(number, 2),
    lambda number: round(number, 1),
    lambda number: float(round(number)),
    lambda number: float(math.floor(number)),
    lambda number: float(math.ceil(number)),
    _double,
    _to_full,
)


def _sentence(value: str, name: str, text: str, sources: Sequence[_Source], change: Change) -> str:
    try:
        number = float(value)
    except ValueError:
        return _composed(value, sources, change)
    for source in reversed(sources):
        if is_number(source.old) and source.found and is_number(source.new) and same(round(source.old, 2), number):
            return rendered(value, source.new)
    if any(is_number(s.old) and s.found and not same(s.old, s.new) and not s.key.endswith("id") for s in sources):
        changed = change.value(value)
        if changed == value:
            raise _Stuck(f"{name} = {value!r} is computed in a way that cannot be followed")
    return change.value(value)


def _composed(value: str, sources: Sequence[_Source], change: Change) -> str:
    """A text with every quoted result exchanged for the new one."""
    extra: dict[str, str] = {}
    for source in sources:
        for before, after in _surfaces(source):
            if before in value and before != after:
                if not source.found:
                    raise _Stuck(f"{value[:60]!r} quotes {before!r}, which the new run does not give")
                extra[before] = after
    return change.text(value, extra)


def _surfaces(source: _Source) -> list[tuple[str, str]]:
    """How a result leaf may be written inside a sentence, old and new."""
    if isinstance(source.old, str):
        return [(source.old, str(source.new))] if len(source.old) >= 3 else []
    if not is_number(source.old) or abs(source.old) < SMALL and float(source.old).is_integer():
        return []
    new = source.new if is_number(source.new) else source.old
    tokens = [str(source.old), f"{source.old:.1f}", f"{source.old:.2f}"]
    if float(source.old).is_integer():
        tokens.append(str(int(source.old)))
    return [(token, rendered(token, new)) for token in dict.fromkeys(tokens)]
