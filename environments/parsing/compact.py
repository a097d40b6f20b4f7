"""The smallest grammar, for small policies: ``<c>NAME{json object}</c>`` is one call, ``<e>`` ends the turn."""

from __future__ import annotations

from collections.abc import Mapping

from environments.interface import ToolSchema
from environments.parsing.json_calls import NAME, checked, load_json
from environments.parsing.outcome import Malformed, as_parser
from schemas.events import Call

OPEN, CLOSE, END = "<c>", "</c>", "<e>"


@as_parser
def parse(text: str, tools: Mapping[str, ToolSchema]) -> tuple[Call, ...] | None:
    """One call or the end of the turn; nothing around it, not even blanks."""
    if text == END:
        return None
    if not text.startswith(OPEN):
        raise Malformed(f"a message is exactly '{END}' or starts with '{OPEN}'")
    if not text.endswith(CLOSE) or len(text) < len(OPEN) + len(CLOSE):
        raise Malformed(f"'{OPEN}' is not closed by '{CLOSE}' at the end", len(text))
    name = NAME.match(text, len(OPEN))
    if name is None:
        raise Malformed("no function name", len(OPEN))
    arguments = load_json(text[name.end() : -len(CLOSE)], name.end())
    if not isinstance(arguments, dict):
        raise Malformed("arguments must be a JSON object", name.end())
    return (checked(name.group(), arguments, name.end()),)
