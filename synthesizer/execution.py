"""Runs the reference calls of a task in a fresh simulator and says which results count as failures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from environments.execution import run_call, started
from environments.interface import EXECUTION_ERROR_PREFIX, Environment
from schemas.events import Call, Task
from synthesizer.values import parsed

FLAG = re.compile(r"(status|success|authenticated|verified|candrive)$", re.IGNORECASE)
PLACEHOLDERS = frozenset({"Stock not found", "00000", "Unknown"})
"""Answers of the built-in simulators that look like success and mean "not found"."""


@dataclass(frozen=True, slots=True)
class Step:
    """One executed reference call: turn and index are its place, result its result string."""

    turn: int
    index: int
    call: Call
    result: str

    @property
    def arguments(self) -> dict:
        """Arguments by name."""
        return json.loads(self.call.arguments_json)


@dataclass(frozen=True, slots=True)
class Trace:
    """Every reference call of a task with its result, in order."""

    steps: tuple[Step, ...]

    def before(self, turn: int, index: int) -> tuple[Step, ...]:
        """Steps that end before call ``index`` of ``turn`` starts."""
        return tuple(step for step in self.steps if (step.turn, step.index) < (turn, index))


def run(environment: Environment, task: Task) -> Trace:
    """Execute all reference calls on a fresh state; unknown functions give an error result, as in a rollout."""
    known = environment.tools(task)
    state = started(environment, task)
    steps = []
    for turn_index, turn in enumerate(task.turns):
        for index, call in enumerate(turn.ground_truth):
            steps.append(Step(turn_index, index, call, executed(environment, state, call, known)))
    return Trace(tuple(steps))


@lru_cache(maxsize=2048)
def trace_of(environment: Environment, task: Task) -> Trace:
    """``run``, remembered: an environment is deterministic, so a task has one trace."""
    return run(environment, task)


def executed(environment: Environment, state: object, call: Call, known: object) -> str:
    """Result of one call on a state; a function that is not in ``known`` is refused like a failing call."""
    if call.name not in known:
        return f"{EXECUTION_ERROR_PREFIX} no function named {call.name}"
    return run_call(environment, state, call)


def failure_kind(result: str) -> str:
    """Why a result is a failure: ``raised``, ``error``, ``false KEY``, ``placeholder KEY``; empty if it is none."""
    if result.startswith(EXECUTION_ERROR_PREFIX):
        return "raised"
    data = parsed(result)
    if isinstance(data, list) and data and (_is_error(data[0]) or str(data[0]).startswith("Error:")):
        return "error"
    if not isinstance(data, dict):
        return ""
    if _is_error(data):
        return "error"
    for key, value in data.items():
        if value is False and FLAG.search(str(key)):
            return f"false {key}"
        if isinstance(value, str) and value in PLACEHOLDERS:
            return f"placeholder {key}"
    return ""


def _is_error(value: object) -> bool:
    return isinstance(value, dict) and "error" in value


def failures_of(trace: Trace) -> frozenset[tuple[int, int, str, str]]:
    """Failing reference calls as (turn, index, function, kind): what a variant of this task may also show there."""
    kinds = ((step, failure_kind(step.result)) for step in trace.steps)
    return frozenset((step.turn, step.index, step.call.name, kind) for step, kind in kinds if kind)
