"""Where the value of an argument comes from: user text so far, an earlier result, the schema, the state. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from environments.interface import ToolSchema
from schemas.events import Task
from synthesizer.dates import ISO, mentions_date
from synthesizer.execution import Step, Trace
from synthesizer.values import (
    Path,
    Scalar,
    has_number,
    has_word,
    is_number,
    leaves,
    numbers_in,
    parsed,
    result_leaves,
    same,
)

Position = tuple[int, int, str, Path]
"""One argument leaf: turn, call index, parameter name, path inside the argument."""
_SEPARATORS = re.compile(r"[\s_\-/]+")


def in_text(value: Scalar, text: str) -> bool:
    """Whether a text says this value: a number by value, a date in any wording, a word without its @ or #."""
    if is_number(value):
        return has_number(float(value), text)
    if not isinstance(value, str):
        return False
    if ISO.fullmatch(value) and mentions_date(value, text):
        return True
    bare = value.lstrip("@#")
    if has_word(bare, text, ignore_case=True):
        return True
    plain = _folded(bare)
    return len(plain) >= 6 and " " in plain and plain in _folded(text)


def _folded(text: str) -> str:
    return _SEPARATORS.sub(" ", text.casefold().replace("\\n", " ")).strip()


def in_result(value: Scalar, result: str) -> bool:
    """Whether a result holds this value: as a leaf, inside a text leaf, or rounded."""
    if is_number(value):
        if any(is_number(leaf) and _rounds_to(leaf, value) for _, leaf in result_leaves(result)):
            return True
        return any(isinstance(leaf, str) and has_number(float(value), leaf) for _, leaf in result_leaves(result))
    if not isinstance(value, str) or not value:
        return False
    bare = value.lstrip("@#")
    if bare.casefold() in result.casefold():
        return True
    texts = [leaf for _, leaf in result_leaves(result) if isinstance(leaf, str)]
    if any(_folded(bare) in _folded(text) for text in texts if len(bare) >= 3):
        return True
    return bare.replace(".", "", 1).isdigit() and any(
        is_number(leaf) and _rounds_to(leaf, float(bare)) for _, leaf in result_leaves(result)
    )


def _rounds_to(leaf: float, value: float) -> bool:
    return same(leaf, value) or any(same(round(leaf, digits), value) for digits in (0, 1, 2))


def in_schema(value: Scalar, parameter: str, schema: ToolSchema | None) -> bool:
    """Whether the schema of the parameter lists or describes this value."""
    if schema is None:
        return False
    spec = schema.parameters.get("properties", {}).get(parameter, {})
    text = json.dumps(spec, ensure_ascii=False)
    if is_number(value):
        return has_number(float(value), text)
    return isinstance(value, str) and len(value) > 1 and has_word(value, text, ignore_case=True)


def in_state(value: Scalar, config_values: Iterable[Scalar]) -> bool:
    """Whether the initial state holds exactly this text; a number in the state proves nothing, there are too many."""
    return isinstance(value, str) and any(same(value, other) for other in config_values)


def config_values(task: Task) -> tuple[Scalar, ...]:
    """Keys and leaves of the initial state."""
    config = json.loads(task.initial_config_json)
    return (*_keys(config), *(leaf for _, leaf in leaves(config)))


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in (key, *_keys(item))]
    if isinstance(value, list):
        return [found for item in value for found in _keys(item)]
    return []


def texts_until(task: Task, turn: int) -> str:
    """All user texts up to and with a turn."""
    return "\n".join(item.user_text for item in task.turns[: turn + 1])


def ungrounded(task: Task, trace: Trace, tools: Mapping[str, ToolSchema]) -> dict[Position, Scalar]:
    """Argument leaves that no text so far, earlier result, schema or state explains."""
    state = config_values(task)
    found: dict[Position, Scalar] = {}
    for place, step in enumerate(trace.steps):
        text = texts_until(task, step.turn)
        earlier = trace.steps[:place]
        for name, argument in step.arguments.items():
            for path, value in leaves(argument):
                if not _explained(value, name, text, earlier, tools.get(step.call.name), state):
                    found[(step.turn, step.index, name, path)] = value
    return found


def _explained(
    value: Scalar, name: str, text: str, earlier: tuple[Step, ...], schema: ToolSchema | None, state: tuple[Scalar, ...]
) -> bool:
    if value is None or isinstance(value, bool) or value == "":
        return True
    if in_text(value, text) or in_schema(value, name, schema) or in_state(value, state):
        return True
    if any(in_result(value, step.result) for step in earlier):
        return True
    return isinstance(value, str) and _is_filled_in(value, text, earlier)


def _is_filled_in(value: str, text: str, earlier: tuple[Step, ...]) -> bool:
    """A sentence whose numbers all come from text or results: a template the user gave, filled in."""
    numbers = numbers_in(value)
    if not numbers:
        return False
    return all(in_text(number, text) or any(in_result(number, step.result) for step in earlier) for number in numbers)


def visible_before(value: Scalar, task: Task, trace: Trace, turn: int) -> bool:
    """Whether texts or results before a turn already show a value."""
    if in_text(value, texts_until(task, turn - 1)):
        return True
    return any(_shows(value, step.result) for step in trace.steps if step.turn < turn)


def _shows(value: Scalar, result: str) -> bool:
    if is_number(value) or not isinstance(value, str):
        return any(same(value, leaf) for _, leaf in result_leaves(result))
    data = parsed(result)
    texts = [str(leaf) for _, leaf in leaves(data)]
    return any(has_word(value.lstrip("@#"), text, ignore_case=True) for text in texts)
