"""Native Qwen3 / Hermes tool calls: prose with any number of ``<tool_call>{"name", "arguments"}</tool_call>`` blocks.

Reasoning that the message opens is set aside up to ``</think>``. A message that closes what it did not open, as where the
prompt opened it, is read behind the tag; calls in front of such a tag make the message malformed, so that none is dropped.
A message without a block is an answer.
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
        Malformed: the reasoning is opened and never closed, or closed behind a call without being open.
    """
    closed = text.find(THINK_CLOSE)
    if text.lstrip().startswith(THINK_OPEN):
        if closed < 0:
            raise Malformed(f"'{THINK_OPEN}' is never closed", text.find(THINK_OPEN))
        return closed + len(THINK_CLOSE)
    if closed < 0:
        return 0
    if 0 <= text.find("<tool_call>") < closed:
        _, outside = split_blocks(text, ("tool_call",))
        if THINK_CLOSE in outside:
            raise Malformed(f"'{THINK_CLOSE}' behind a call closes nothing", closed)
        return 0
    return closed + len(THINK_CLOSE)
