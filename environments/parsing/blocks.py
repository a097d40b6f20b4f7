"""Tagged blocks and reasoning in a message: tags paired in order, never nested; linear in the message length."""

from __future__ import annotations

import re
from dataclasses import dataclass

from environments.parsing.outcome import Malformed


@dataclass(frozen=True, slots=True)
class TaggedBlock:
    """The body of one ``<tag>...</tag>`` and where the body starts in the message."""

    tag: str
    body: str
    position: int


THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
"""A JSON string; one that is never closed reaches to the end, so that no quote in it is tried again."""


def end_of_reasoning(text: str) -> int:
    """Offset of the first character behind the reasoning that a message begins with; 0 without any.

    Raises:
        Malformed: the reasoning is opened and never closed.
    """
    if not text.lstrip().startswith(THINK_OPEN):
        return 0
    closed = text.find(THINK_CLOSE)
    if closed < 0:
        raise Malformed(f"'{THINK_OPEN}' is never closed", text.find(THINK_OPEN))
    return closed + len(THINK_CLOSE)


def closing_of(text: str, closing: str, at: int = 0) -> int:
    """Where a closing tag stands outside the JSON strings of a text, from ``at`` on; -1 if nowhere."""
    pattern = re.compile(f"{STRING}|{re.escape(closing)}", re.DOTALL)
    return next((found.start() for found in pattern.finditer(text, at) if found.group() == closing), -1)


def split_blocks(
    text: str, tags: tuple[str, ...], offset: int = 0, json_tags: tuple[str, ...] = ("tool_call",)
) -> tuple[tuple[TaggedBlock, ...], str]:
    """All blocks of the given tags in order, and the text outside them.

    Args:
        text: the message or its tail.
        tags: tag names without brackets.
        offset: where ``text`` starts in the message.
        json_tags: tags whose bodies are JSON; what looks like a tag inside a JSON string there is none.

    Raises:
        Malformed: a tag that is opened inside a block, closed without being open, or never closed.
    """
    names = "|".join(map(re.escape, tags))
    any_tag = re.compile(f"<(/?)({names})>")
    tag_or_string = re.compile(f"<(/?)({names})>|{STRING}", re.DOTALL)
    blocks: list[TaggedBlock] = []
    outside: list[str] = []
    last = 0
    while opened := any_tag.search(text, last):
        if opened.group(1):
            raise Malformed(f"unexpected '{opened.group()}'", offset + opened.start())
        outside.append(text[last : opened.start()])
        is_json = opened.group(2) in json_tags
        inside = tag_or_string if is_json else any_tag
        end = next((found for found in inside.finditer(text, opened.end()) if found.group(2)), None)
        if end is None:
            where = " outside JSON strings" if is_json else ""
            raise Malformed(f"'{opened.group()}' is never closed{where}", offset + opened.start())
        if not end.group(1) or end.group(2) != opened.group(2):
            raise Malformed(f"unexpected '{end.group()}'", offset + end.start())
        blocks.append(TaggedBlock(opened.group(2), text[opened.end() : end.start()], offset + opened.end()))
        last = end.end()
    outside.append(text[last:])
    return tuple(blocks), "".join(outside)
