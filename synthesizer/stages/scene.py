"""What every stage of one attempt works with, and how it shows a conversation to a model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.interface import Environment, ToolSchema
from schemas.events import Task
from synthesizer.backend import Attempt, Seed
from synthesizer.config import SynthesisConfig
from synthesizer.execution import Step
from synthesizer.llm.dialogue import Dialogue
from synthesizer.llm.prompts import as_data
from synthesizer.values import leaves

MAX_SHOWN_RESULT_CHARS = 1500
_NAME = re.compile(r"[A-Za-z_]\w*")
_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffd]")


@dataclass(frozen=True, slots=True)
class Scene:
    """One attempt at one seed.

    Attributes:
        environment: Simulators of the seed.
        seed: The seed.
        attempt: The attempt.
        dialogue: The model in its roles.
        config: Settings.
        tools: Functions of the seed's classes.
    """

    environment: Environment
    seed: Seed
    attempt: Attempt
    dialogue: Dialogue
    config: SynthesisConfig
    tools: Mapping[str, ToolSchema]

    def rng(self, purpose: str) -> random.Random:
        """A generator for one purpose of this attempt."""
        return random.Random(f"{self.attempt.seed}:{purpose}")


def shown_steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Executed calls as a prompt shows them."""
    return [
        {"function": step.call.name, "arguments": step.arguments, "result": shortened(step.result)} for step in steps
    ]


def shortened(result: str) -> str:
    """A result with its middle left out where it is long."""
    if len(result) <= MAX_SHOWN_RESULT_CHARS:
        return result
    half = MAX_SHOWN_RESULT_CHARS // 2
    return f"{result[:half]} …{len(result) - 2 * half} characters left out… {result[-half:]}"


def shown_conversation(task: Task, steps: Sequence[Step]) -> str:
    """A whole conversation as data for a prompt."""
    turns = [
        {
            "turn": index,
            "user": turn.user_text,
            **({"functions_restored": list(turn.restored_functions)} if turn.restored_functions else {}),
            "calls": shown_steps(step for step in steps if step.turn == index),
        }
        for index, turn in enumerate(task.turns)
    ]
    return as_data(turns, 20_000)


def text_fault(text: str, tools: Mapping[str, ToolSchema], steps: Iterable[Step], config: SynthesisConfig) -> str:
    """What is wrong with a user text: empty, too long, odd characters, or a name of the program in it.

    Names are those of functions and parameters that no person would write (with an underscore or an inner capital),
    unless they are a value of the calls.

    Returns:
        The fault in words, or an empty text.
    """
    if not text.strip():
        return "the text is empty"
    if len(text) > config.max_query_chars:
        return f"the text has {len(text)} characters, the limit is {config.max_query_chars}"
    if _ODD.search(text):
        return "the text holds control characters"
    values = {str(value) for step in steps for _, value in leaves(step.arguments)}
    said = {word for word in _NAME.findall(text) if not any(word in value for value in values)}
    leaked = sorted(said & _program_names(tools))
    return f"the text names {', '.join(leaked)}" if leaked else ""


def _program_names(tools: Mapping[str, ToolSchema]) -> set[str]:
    names = set(tools)
    for tool in tools.values():
        names.update(tool.parameters.get("properties", {}))
    return {name for name in names if "_" in name.strip("_") or re.search(r"[a-z][A-Z]", name)}
