"""Python-call syntax, ``[ls(a=True), cd('docs')]``: read as a syntax tree and never evaluated.

Before the parser sees a text it is scanned token by token: only names, plain string and number literals, brackets, ``,``
``=`` ``:`` and a minus before a number pass, within bounds on length, depth and digits. What remains cannot hold an
attribute, an operator, an f-string, a lambda or a nested call.

Prose has parentheses too. A text is meant as calls if it begins with an offered function or with ``NAME(`` and a quoted or
named argument, or if it is nothing but a call, or stands in brackets and is more than words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from environments.interface import ToolSchema
from environments.parsing.blocks import end_of_reasoning
from environments.parsing.json_calls import MAX_NUMBER_CHARS, NAME, checked
from environments.parsing.outcome import Malformed, as_parser, check_count
from schemas.events import Call

MAX_PYTHON_CHARS = 8_192
MAX_DEPTH = 12
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]+)
    |(?P<string>'(?!'')(?:[^'\\\n]|\\.)*+'|"(?!"")(?:[^"\\\n]|\\.)*+")
    |(?P<number>-?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[()\[\]{},:=])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_BEGINNING = re.compile(r"""\[?\s*(?P<name>[\w.]{1,80})(?P<blank>\s*)\(\s*(?P<argument>['"]|\w+\s*=)?""")
_SPACED = re.compile(r"[\w.]+\s+\(")
_BARE_LITERALS = frozenset({"True", "False", "None"})


@as_parser
def parse(text: str, tools: Mapping[str, ToolSchema]) -> tuple[Call, ...] | None:
    """Calls of a message that is one call or a list of calls behind its reasoning; None when it is not meant as such."""
    start = end_of_reasoning(text)
    body = text[start:].strip()
    start = text.find(body, start)
    try:
        tree = _tree(body, start)
    except Malformed:
        if _begins_calls(body, tools):
            raise
        return None
    is_call = isinstance(tree, ast.Call) and _SPACED.match(body) is None
    return _calls(tree, tools, start) if is_call or _begins_calls(body, tools) else None


def _begins_calls(body: str, tools: Mapping[str, ToolSchema]) -> bool:
    if body.startswith("[") and body.endswith("]"):
        return re.search(r"\S\(", body) is not None or re.match(r"\[\s*[A-Za-z]", body) is None
    begun = _BEGINNING.match(body)
    return begun is not None and (begun["name"] in tools or bool(begun["argument"] and not begun["blank"]))


def read_calls(text: str, tools: Mapping[str, ToolSchema], position: int = 0) -> tuple[Call, ...]:
    """All calls in a text, positional arguments named by the tool's parameter order.

    Args:
        text: one call or a bracketed list of calls.
        tools: needed only for positional arguments.
        position: offset of the text in its message.

    Raises:
        Malformed: anything else.
    """
    return _calls(_tree(text, position), tools, position)


def _tree(text: str, position: int) -> ast.expr:
    scan(text, position)
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        offset = (getattr(error, "offset", None) or 1) - 1
        raise Malformed(f"not a call: {getattr(error, 'msg', error)}", position + offset) from error


def _calls(tree: ast.expr, tools: Mapping[str, ToolSchema], position: int) -> tuple[Call, ...]:
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    check_count(nodes)
    return tuple(_call(node, tools, position) for node in nodes)


def scan(text: str, position: int = 0) -> None:
    """Refuse every text that is not made of plain calls and literals, in one linear pass.

    Raises:
        Malformed: the first token that is out of place or out of bounds.
    """
    if len(text) > MAX_PYTHON_CHARS:
        raise Malformed(f"call text is longer than {MAX_PYTHON_CHARS} characters", position + MAX_PYTHON_CHARS)
    at = depth = 0
    previous = ""
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Malformed(f"unexpected {text[at]!r}", position + at)
        kind, token = match.lastgroup, match.group()
        if kind != "blank":
            if kind != "mark" and previous not in ("", "mark"):
                raise Malformed(f"unexpected {token[:40]!r}", position + at)
            if kind == "number" and len(token) > MAX_NUMBER_CHARS:
                raise Malformed(f"number has more than {MAX_NUMBER_CHARS} characters", position + at)
            depth += (token in "([{") - (token in ")]}") if kind == "mark" else 0
            if depth > MAX_DEPTH:
                raise Malformed(f"nested deeper than {MAX_DEPTH} levels", position + at)
            previous = kind
        at = match.end()


def _call(node: ast.expr, tools: Mapping[str, ToolSchema], position: int) -> Call:
    at = position + node.col_offset
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise Malformed("expected a call by name", at)
    name = node.func.id
    if not NAME.fullmatch(name):
        raise Malformed("no usable function name", at)
    arguments: dict[str, object] = {}
    if node.args:
        names = _parameter_names(name, tools, len(node.args), at)
        arguments.update(zip(names, (_literal(item, position) for item in node.args), strict=False))
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise Malformed(f"argument '{keyword.arg}' cannot be used here", position + keyword.col_offset)
        arguments[keyword.arg] = _literal(keyword.value, position)
    return checked(name, arguments, at)


def _parameter_names(name: str, tools: Mapping[str, ToolSchema], count: int, at: int) -> tuple[str, ...]:
    tool = tools.get(name)
    if tool is None:
        raise Malformed(f"positional arguments of unknown function '{name}'", at)
    names = tuple(tool.parameters.get("properties", {}))
    if count > len(names):
        raise Malformed(f"'{name}' takes at most {len(names)} arguments, {count} given", at)
    return names


def _literal(node: ast.expr, position: int) -> object:
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool, type(None))):
        return _finite(node.value, position + node.col_offset)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -_finite(node.operand.value, position + node.col_offset)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item, position) for item in node.elts]
    if isinstance(node, ast.Dict):
        return _mapping(node, position)
    if isinstance(node, ast.Name) and node.id in _BARE_LITERALS:
        return {"True": True, "False": False, "None": None}[node.id]
    raise Malformed("arguments must be plain values", position + node.col_offset)


def _mapping(node: ast.Dict, position: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or key.value in found:
            raise Malformed("mapping keys must be distinct texts", position + node.col_offset)
        found[key.value] = _literal(value, position)
    return found


def _finite(value: object, at: int) -> object:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise Malformed("number is too large", at)
    return value
