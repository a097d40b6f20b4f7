"""Parsers by name. A parser turns one assistant message into calls, an answer or a parse error; it runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from environments.parsing import compact, hermes, llama3, openai, python_calls, strict
from environments.parsing.outcome import ParsedMessage, Parser
from environments.registry import load_attribute

__all__ = ["BUILT_IN", "ENTRY_POINT_GROUP", "ParsedMessage", "Parser", "parser"]

ENTRY_POINT_GROUP = "rods.parsers"
BUILT_IN: dict[str, Callable] = {
    "compact": compact.parse,
    "strict": strict.parse,
    "hermes": hermes.parse,
    "llama3": llama3.parse,
    "openai": openai.parse,
    "python": python_calls.parse,
}


@cache
def parser(name: str) -> Parser:
    """The parser of that name: built in, installed under ``rods.parsers``, or ``module:attribute``.

    Raises:
        ValueError: no such parser.
        EnvironmentUnavailable: the named attribute cannot be loaded.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    target = name if ":" in name else installed.get(name)
    if target is None:
        known = ", ".join([*BUILT_IN, *sorted(installed)])
        raise ValueError(f"no parser named '{name}'; known: {known}; or give 'module:attribute'")
    return load_attribute(target, f"parser '{name}'")
