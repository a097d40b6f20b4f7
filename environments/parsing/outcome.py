"""What a parser returns, and how it refuses: always with a reason and a position, never with a guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import wraps

from environments.interface import ToolSchema
from schemas.events import Call, MessageOutcome

MAX_MESSAGE_CHARS = 200_000
MAX_CALLS = 64


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """One assistant message, understood.

    Attributes:
        outcome: Calls, an answer, or a parse error.
        calls: Calls in order; empty unless the outcome is calls.
        detail: Reason and position of a parse error, else empty.
        text: The message exactly as given.
    """

    outcome: MessageOutcome
    calls: tuple[Call, ...]
    detail: str
    text: str


Parser = Callable[[str, Mapping[str, ToolSchema]], ParsedMessage]
Reader = Callable[[str, Mapping[str, ToolSchema]], "tuple[Call, ...] | None"]


class Malformed(ValueError):
    """A message breaks the grammar; position is a 0-based character offset into the message."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


def check_count(items: Sized) -> None:
    """Refuse a message with more than MAX_CALLS calls before any of them is read.

    Raises:
        Malformed: too many.
    """
    if len(items) > MAX_CALLS:
        raise Malformed(f"more than {MAX_CALLS} calls in one message")


def as_parser(read: Reader) -> Parser:
    """Make a parser of a reader that returns calls, or None for an answer, or raises Malformed."""

    @wraps(read)
    def parse(text: str, tools: Mapping[str, ToolSchema]) -> ParsedMessage:
        try:
            if len(text) > MAX_MESSAGE_CHARS:
                raise Malformed(f"message is longer than {MAX_MESSAGE_CHARS} characters", MAX_MESSAGE_CHARS)
            calls = read(text, tools)
        except Malformed as error:
            return ParsedMessage(
                MessageOutcome.PARSE_ERROR, (), f"{error.reason} (at character {error.position})", text
            )
        if calls is None:
            return ParsedMessage(MessageOutcome.ANSWER, (), "", text)
        return ParsedMessage(MessageOutcome.CALLS, calls, "", text)

    return parse
