"""EnvTuning's grammar: exactly one think block, exactly one tool_call or answer block, nothing outside them.

The tool_call body is one JSON call or a list of calls. Tags that are mentioned inside the reasoning count and break the
message, as in the public code. Unlike there, a call without usable arguments is refused instead of run with none.
"""

from __future__ import annotations

from collections.abc import Mapping

from environments.interface import ToolSchema
from environments.parsing.blocks import TaggedBlock, split_blocks
from environments.parsing.json_calls import call_of, load_json
from environments.parsing.outcome import Malformed, as_parser, check_count
from schemas.events import Call

TAGS = ("think", "tool_call", "answer")


@as_parser
def parse(text: str, tools: Mapping[str, ToolSchema]) -> tuple[Call, ...] | None:
    """Calls of the tool_call block, or None for an answer block."""
    blocks, outside = split_blocks(text, TAGS)
    if outside.strip():
        raise Malformed("text outside the blocks", text.find(outside.strip()[:20]))
    found = {tag: [block for block in blocks if block.tag == tag] for tag in TAGS}
    for tag in TAGS:
        if len(found[tag]) > 1:
            raise Malformed(f"more than one {tag} block", found[tag][1].position)
    if not found["think"]:
        raise Malformed("no think block")
    if found["tool_call"] and found["answer"]:
        raise Malformed("both a tool_call and an answer block", found["answer"][0].position)
    if not found["tool_call"] and not found["answer"]:
        raise Malformed("neither a tool_call nor an answer block", len(text))
    return None if found["answer"] else _calls(found["tool_call"][0])


def _calls(block: TaggedBlock) -> tuple[Call, ...]:
    value = load_json(block.body, block.position)
    values = value if isinstance(value, list) else [value]
    check_count(values)
    return tuple(call_of(item, block.position) for item in values)
