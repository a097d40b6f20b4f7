"""What a seed says: its texts, arguments and state, laid out for the collectors. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from schemas.events import Task
from synthesizer.execution import Trace
from synthesizer.grounding import in_text, texts_until
from synthesizer.values import Path, Scalar, has_word, leaves


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument leaf and whether the user's texts up to its turn say it."""

    turn: int
    index: int
    function: str
    name: str
    path: Path
    value: Scalar
    is_said: bool


class SeedView:
    """A seed task with its trace.

    Attributes:
        task: The seed.
        trace: Its executed calls.
        config: Initial state as data.
        texts: User text of each turn.
        text: All user texts, one a line.
    """

    def __init__(self, task: Task, trace: Trace) -> None:
        self.task = task
        self.trace = trace
        self.config: dict = json.loads(task.initial_config_json)
        self.texts = tuple(turn.user_text for turn in task.turns)
        self.text = "\n".join(self.texts)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Every argument leaf, in call order."""
        found = []
        for step in self.trace.steps:
            text = texts_until(self.task, step.turn)
            for name, argument in step.arguments.items():
                for path, value in leaves(argument):
                    said = in_text(value, text)
                    found.append(Argument(step.turn, step.index, step.call.name, name, path, value, said))
        return tuple(found)

    @cached_property
    def state_leaves(self) -> tuple[tuple[Path, Scalar], ...]:
        """Every leaf of the initial state with its path."""
        return tuple(leaves(self.config))

    @cached_property
    def state_text(self) -> str:
        """Keys and text leaves of the initial state, one a line."""
        return "\n".join([*_keys(self.config), *(str(value) for _, value in self.state_leaves)])

    @cached_property
    def argument_text(self) -> str:
        """All argument leaves, one a line."""
        return "\n".join(str(argument.value) for argument in self.arguments)

    def functions(self) -> frozenset[str]:
        """Functions that the reference calls."""
        return frozenset(step.call.name for step in self.trace.steps)

    def says(self, word: str) -> bool:
        """Whether any user text holds this word, exactly."""
        return has_word(word, self.text)

    def knows(self, word: str) -> bool:
        """Whether texts, state or arguments hold this word in any case."""
        return any(has_word(word, text, ignore_case=True) for text in (self.text, self.state_text, self.argument_text))


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in (str(key), *_keys(item))]
    if isinstance(value, list):
        return [found for item in value for found in _keys(item)]
    return []
