"""Tagged blocks in a message: every tag found, paired in order, never nested; linear in the message length."""

from __future__ import annotations

import re
from dataclasses import dataclass

from environments.parsing.outcome import Malformed


@dataclass(frozen=True, slots=True)
class Block:
    """The body of one ``<tag>...</tag>`` and where the body starts in the message."""

    tag: str
    body: str
    position: int


def split_blocks(text: str, tags: tuple[str, ...], offset: int = 0) -> tuple[tuple[Block, ...], str]:
    """All blocks of the given tags in order, and the text outside them.

    Args:
        text: the message or its tail.
        tags: tag names without brackets.
        offset: where ``text`` starts in the message.

    Raises:
        Malformed: a tag that is opened inside a block, closed without being open, or never closed.
    """
    pattern = re.compile("<(/?)(" + "|".join(map(re.escape, tags)) + ")>")
    blocks: list[Block] = []
    outside: list[str] = []
    opened: re.Match | None = None
    last = 0
    for match in pattern.finditer(text):
        closing, tag = match.group(1) == "/", match.group(2)
        if opened is None and not closing:
            outside.append(text[last : match.start()])
            opened = match
        elif opened is not None and closing and tag == opened.group(2):
            blocks.append(Block(tag, text[opened.end() : match.start()], offset + opened.end()))
            opened, last = None, match.end()
        else:
            raise Malformed(f"unexpected '{match.group()}'", offset + match.start())
    if opened is not None:
        raise Malformed(f"'{opened.group()}' is never closed", offset + opened.start())
    outside.append(text[last:])
    return tuple(blocks), "".join(outside)
