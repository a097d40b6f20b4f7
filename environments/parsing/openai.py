"""OpenAI messages: ``{"role": "assistant", "content": ..., "tool_calls": [...]}`` as JSON, or just the list of calls.

Each call is ``{"id", "type": "function", "function": {"name", "arguments"}}`` with the arguments as JSON text. A message
without tool calls, and any text that does not begin as such a message or list, is an answer. Reasoning in front is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from environments.interface import ToolSchema
from environments.parsing.blocks import end_of_reasoning
from environments.parsing.json_calls import begins_call, call_of, load_json
from environments.parsing.outcome import Malformed, as_parser, check_count
from schemas.events import Call


@as_parser
def parse(text: str, tools: Mapping[str, ToolSchema]) -> tuple[Call, ...] | None:
    """Calls in order, or None for an answer."""
    start = end_of_reasoning(text)
    body = text[start:]
    if not begins_call(body, "function|tool_calls", "role|content|refusal|id|type"):
        return None
    message = load_json(body, start)
    calls = message if isinstance(message, list) else _tool_calls(message)
    if not calls:
        return None
    check_count(calls)
    return tuple(_call(value) for value in calls)


def _tool_calls(message: Mapping) -> list:
    role = message.get("role", "assistant")
    if role != "assistant":
        raise Malformed("the message is not the assistant's")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Malformed("tool_calls must be a list")
    if not calls and "content" not in message:
        raise Malformed("the message has neither content nor tool_calls")
    return calls


def _call(value: object) -> Call:
    if not isinstance(value, Mapping) or not isinstance(value.get("function"), Mapping):
        raise Malformed("a tool call needs a function object")
    if value.get("type", "function") != "function":
        raise Malformed("only tool calls of type function are known")
    function = dict(value["function"])
    if isinstance(function.get("arguments"), str):
        function["arguments"] = load_json(function["arguments"].strip() or "{}")
    return call_of(function, 0)
