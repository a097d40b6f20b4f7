"""Native Qwen3 / Hermes tool calls: prose with any number of ``<tool_call>{"name", "arguments"}</tool_call>`` blocks.

Reasoning that the message opens is set aside up to ``</think>``. A message that closes what it did not open, as where the
prompt opened it, is read behind the tag; calls in front of such a tag make the message malformed, so that none is dropped.
A message without a block is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from environments.interface import ToolSchema
from environments.parsing.blocks import THINK_CLOSE, end_of_reasoning, split_blocks
from environments.parsing.json_calls import call_of, load_json
from environments.parsing.outcome import Malformed, as_parser, check_count
from schemas.events import Call


@as_parser
def parse(text: str, tools: Mapping[str, ToolSchema]) -> tuple[Call, ...] | None:
    """Calls of all tool_call blocks in order, or None without any."""
    start = end_of_reasoning(text) or _end_of_unopened(text)
    blocks, _ = split_blocks(text[start:], ("tool_call",), start)
    if not blocks:
        return None
    check_count(blocks)
    return tuple(call_of(load_json(block.body, block.position), block.position) for block in blocks)


def _end_of_unopened(text: str) -> int:
    """Offset behind a closing tag of reasoning that the message did not open; 0 without any.

    Raises:
        Malformed: a call stands before it.
    """
    closed = text.find(THINK_CLOSE)
    if not 0 <= text.find("<tool_call>") < closed:
        return closed + len(THINK_CLOSE) if closed >= 0 else 0
    _, outside = split_blocks(text, ("tool_call",))
    if THINK_CLOSE in outside:
        raise Malformed(f"'{THINK_CLOSE}' behind a call closes nothing", closed)
    return 0
