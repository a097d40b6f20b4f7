"""Llama-3.1 JSON calls: ``{"name": ..., "parameters": {...}}``, several divided by ``;``, or a list of them.

Reasoning and everything up to the python tag in front, and the end tokens behind, are dropped. A message that has no tag and
does not begin as such a call or list is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from environments.interface import ToolSchema
from environments.parsing.blocks import end_of_reasoning
from environments.parsing.json_calls import begins_call, call_of, load_json_sequence
from environments.parsing.outcome import Malformed, as_parser, check_count
from schemas.events import Call

PYTHON_TAG = "<|python_tag|>"
END_TOKENS = ("<|eot_id|>", "<|eom_id|>")


@as_parser
def parse(text: str, tools: Mapping[str, ToolSchema]) -> tuple[Call, ...] | None:
    """Calls in order, or None for prose."""
    start, tag = end_of_reasoning(text), ""
    body = text[start:].rstrip()
    for token in END_TOKENS:
        body = body.removesuffix(token)
    if not begins_call(body, "parameters|arguments", "name|type|function"):
        prose, tag, body = body.partition(PYTHON_TAG)
        if not tag:
            return None
        start += len(prose) + len(tag)
    values = load_json_sequence(body, start, ";")
    if len(values) == 1 and isinstance(values[0], list):
        values = tuple(values[0])
    check_count(values)
    if not values and tag:
        raise Malformed("nothing follows the python tag", start)
    return tuple(_call(value, start) for value in values)


def _call(value: object, position: int) -> Call:
    """``arguments`` is accepted for ``parameters``, as common servers do, never both; a type may say that it is a function."""
    if isinstance(value, Mapping) and value.get("type") == "function":
        value = {name: each for name, each in value.items() if name != "type"}
    key = "arguments" if isinstance(value, Mapping) and "arguments" in value else "parameters"
    return call_of(value, position, key)
