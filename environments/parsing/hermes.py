"""Native Qwen3 / Hermes tool calls: prose with any number of ``<tool_call>{"name", "arguments"}</tool_call>`` blocks.

Reasoning up to ``</think>`` is set aside before anything is read, whether or not the prompt already opened it. A message
without a block is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from environments.interface import ToolSchema
from environments.parsing.blocks import split_blocks
from environments.parsing.json_calls import call_of, load_json
from environments.parsing.outcome import Malformed, as_parser, check_count
from schemas.events import Call

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@as_parser
def parse(text: str, tools: Mapping[str, ToolSchema]) -> tuple[Call, ...] | None:
    """Calls of all tool_call blocks in order, or None without any."""
    start = end_of_reasoning(text)
    blocks, _ = split_blocks(text[start:], ("tool_call",), start)
    if not blocks:
        return None
    check_count(blocks)
    return tuple(call_of(load_json(block.body, block.position), block.position) for block in blocks)


def end_of_reasoning(text: str) -> int:
    """Offset of the first character after the reasoning; 0 without any.

    Raises:
        Malformed: the reasoning is opened and never closed.
    """
    closed = text.find(THINK_CLOSE)
    if closed >= 0:
        return closed + len(THINK_CLOSE)
    if text.lstrip().startswith(THINK_OPEN):
        raise Malformed(f"'{THINK_OPEN}' is never closed", text.find(THINK_OPEN))
    return 0
