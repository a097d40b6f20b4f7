"""From a model's text to a checked answer. Pure; nothing in the text is ever evaluated.

An answer is a pydantic model whose fields are its sections, in order. In the JSON formats the text is one object; in
the tagged format each section stands in its own tag, texts as they are and everything else as JSON. Reasoning is cut off up
to the ``</think>`` behind which the answer begins. Whatever does not fit exactly is unusable, with the reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from environments.parsing.blocks import closing_of
from synthesizer.config import AnswerFormat

THINK_END = "</think>"
FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)


class Answer(BaseModel):
    """The sections one role answers with: a reason first, then what was asked for. Strict types, nothing else."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    reason: str


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True)
class Unusable:
    """An answer that cannot be read, and why."""

    why: str


def read(text: str, shape: type[A], form: AnswerFormat, max_chars: int) -> A | Unusable:
    """The answer in a text.

    Args:
        text: what the model said.
        shape: the sections it was asked for.
        form: how it was asked to write them.
        max_chars: longer texts are refused unread.
    """
    if len(text) > max_chars:
        return Unusable(f"more than {max_chars} characters")
    body, beginnings = text, ("{", "```", f"<{next(iter(shape.model_fields))}>")
    while not body.lstrip().startswith(beginnings) and THINK_END in body:
        body = body.partition(THINK_END)[2]
    if body.lstrip().startswith("<think>"):
        return Unusable("the reasoning never ended")
    try:
        values = _tagged(body, shape) if form is AnswerFormat.TAGGED else loads(_unfenced(body))
        json.dumps(values, ensure_ascii=False).encode()
        return shape.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        return Unusable(f"{'.'.join(map(str, first['loc'])) or 'answer'}: {first['msg']}")
    except (ValueError, RecursionError) as error:
        return Unusable(f"{error}"[:300] or type(error).__name__)


def loads(text: str) -> Any:
    """JSON without NaN and infinities.

    Raises:
        ValueError: the text is no such JSON.
    """
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _unfenced(text: str) -> str:
    match = FENCE.fullmatch(text)
    return match.group(1) if match else text


def _tagged(text: str, shape: type[Answer]) -> dict[str, Any]:
    values, rest = {}, text
    for name, section in shape.model_fields.items():
        opening, closing = f"<{name}>", f"</{name}>"
        before, found, rest = rest.partition(opening)
        if not found or before.strip():
            raise ValueError(f"section <{name}> is missing" if not found else f"text before <{name}>")
        end = rest.find(closing) if section.annotation is str else closing_of(rest, closing)
        if end < 0:
            raise ValueError(f"section <{name}> does not end")
        inside, rest = rest[:end], rest[end + len(closing) :]
        values[name] = inside.strip() if section.annotation is str else _part(inside, name, section.annotation)
    if rest.strip():
        raise ValueError("text behind the last section")
    return values


def _part(text: str, name: str, annotation: object) -> Any:
    bare = text.strip()
    if hasattr(annotation, "__args__") and bare in annotation.__args__:
        return bare
    try:
        return loads(_unfenced(bare))
    except ValueError as error:
        raise ValueError(f"section <{name}>: {error}") from error


@cache
def schema_of(shape: type[Answer]) -> dict[str, Any]:
    """The JSON schema of an answer; not to be changed."""
    return shape.model_json_schema()


@cache
def instruction(shape: type[Answer], form: AnswerFormat) -> str:
    """What a prompt says about the form of its answer."""
    shown = json.dumps(schema_of(shape), ensure_ascii=False)
    if form is not AnswerFormat.TAGGED:
        return f"Answer with one JSON object and nothing else. Its JSON schema:\n{shown}"
    tags = "\n".join(f"<{name}>…</{name}>" for name in shape.model_fields)
    return (
        f"Answer with exactly these sections in this order and nothing else:\n{tags}\n"
        f"Write plain text in text sections and JSON in all others. The sections as a JSON schema:\n{shown}"
    )
