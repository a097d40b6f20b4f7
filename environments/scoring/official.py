"""The ``bfcl`` profile: a transcript judged as the BFCL leaderboard judges it (checker of bfcl-eval 2026.3.23).

Every step of every turn is executed, then the turn is compared with the ground truth's state and results. The first wrong
turn makes the task invalid. Turns with an empty ground truth always pass: their calls are executed and may only spoil a
later turn. Each setting that departs from the leaderboard is off by default and has a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from environments.deadline import WATCHDOG
from environments.execution import Refusal, admit, started
from environments.interface import EXECUTION_ERROR_PREFIX, Environment, State, ToolSchema
from environments.scoring.reference import Reference
from environments.scoring.turns import contains_all, same_state
from schemas.events import Call, Task

Steps = Sequence[Sequence[Call]]
Caller = Callable[[State, Call], str]


class Fault(StrEnum):
    """Why a transcript is invalid."""

    EMPTY_TURN = "empty_turn_model_response"
    STATE = "instance_state_mismatch"
    RESPONSE = "execution_response_mismatch"
    FORCED_STOP = "force_terminated"
    VAIN_CALL = "call_in_a_turn_without_ground_truth"
    OVERRUN = "time_limit"


@dataclass(frozen=True, slots=True)
class OfficialSettings:
    """Named departures from the leaderboard's rules; the defaults are the leaderboard.

    Attributes:
        max_steps: Steps a turn may have; the leaderboard compares after executing and so runs one more.
        exact_step_limit: Run exactly max_steps.
        last_turn_overrun_fails: Fail a rollout that runs over in its last turn, which the leaderboard grades normally.
        refuse_withheld: Refuse functions that are not on offer; the leaderboard executes them.
        check_schemas: Refuse calls that break their schema; the leaderboard leaves it to Python.
        require_abstention: Fail a call in a turn with empty ground truth; the leaderboard's check for it is never run.
        numbers_by_value: Let results with 65 and 65.0 be equal; the leaderboard compares texts.
    """

    max_steps: int = 20
    exact_step_limit: bool = False
    last_turn_overrun_fails: bool = False
    refuse_withheld: bool = False
    check_schemas: bool = False
    require_abstention: bool = False
    numbers_by_value: bool = False


LEADERBOARD = OfficialSettings()


@dataclass(frozen=True, slots=True)
class OfficialVerdict:
    """valid, or the first faulty turn and its fault."""

    valid: bool
    turn: int = -1
    fault: Fault | None = None


def score(
    environment: Environment,
    task: Task,
    reference: Reference,
    turns: Sequence[Steps],
    settings: OfficialSettings = LEADERBOARD,
) -> OfficialVerdict:
    """Judge one transcript.

    Args:
        environment: where the calls run.
        task: the task.
        reference: ``Reference.of(environment, task)``.
        turns: per turn, per step, the calls; fewer turns than the task has means that the rollout was stopped.
        settings: departures from the leaderboard.
    """
    if len(turns) != len(task.turns):
        return OfficialVerdict(False, len(turns), Fault.FORCED_STOP)
    late = OfficialVerdict(False, 0, Fault.OVERRUN)
    return WATCHDOG.run(lambda: _judge(environment, task, reference, turns, settings), late)


def _judge(
    environment: Environment, task: Task, reference: Reference, turns: Sequence[Steps], settings: OfficialSettings
) -> OfficialVerdict:
    state = started(environment, task)
    per_turn = callers(environment, task, settings)
    obtained: list[str] = []
    for index, (steps, turn, call_tool) in enumerate(zip(turns, task.turns, per_turn, strict=True)):
        for step in steps:
            for call in step:
                obtained.append(call_tool(state, call))
        if turn.ground_truth:
            by_value = settings.numbers_by_value
            fault = turn_fault(environment, state, reference, index, is_empty(steps), obtained, by_value)
        else:
            fault = Fault.VAIN_CALL if settings.require_abstention and not is_empty(steps) else None
        if fault is not None:
            return OfficialVerdict(False, index, fault)
    return OfficialVerdict(True)


def callers(environment: Environment, task: Task, settings: OfficialSettings) -> Sequence[Caller]:
    """Per turn, how a call is executed under the settings."""
    if not (settings.refuse_withheld or settings.check_schemas):
        return (environment.call,) * len(task.turns)
    tools = environment.tools(task)
    offered = (_offered(task, tools, turn) if settings.refuse_withheld else tools for turn in range(len(task.turns)))
    return [_caller(environment, each, settings.check_schemas) for each in offered]


def _caller(environment: Environment, offered: Mapping[str, ToolSchema], check_schemas: bool) -> Caller:
    def call_tool(state: State, call: Call) -> str:
        if not check_schemas and call.name in offered:
            return environment.call(state, call)
        admitted = admit(call, offered)
        if isinstance(admitted, Refusal):
            return f"{EXECUTION_ERROR_PREFIX} {admitted.reason}"
        return environment.call(state, admitted)

    return call_tool


def _offered(task: Task, tools: Mapping[str, ToolSchema], turn: int) -> Mapping[str, ToolSchema]:
    withheld = set(task.withheld_functions)
    for earlier in task.turns[: turn + 1]:
        withheld.difference_update(earlier.restored_functions)
    return {name: tool for name, tool in tools.items() if name not in withheld}


def is_empty(steps: Steps) -> bool:
    """No step, or one step without calls."""
    return not steps or (len(steps) == 1 and not steps[0])


def turn_fault(
    environment: Environment,
    state: State,
    reference: Reference,
    turn: int,
    called_nothing: bool,
    obtained: Sequence[str],
    numbers_by_value: bool,
) -> Fault | None:
    """What is wrong with a turn whose ground truth is not empty; None when it is right."""
    if called_nothing:
        return Fault.EMPTY_TURN
    if not same_state(environment, state, reference, turn):
        return Fault.STATE
    if not contains_all(reference.results[turn], obtained, numbers_by_value):
        return Fault.RESPONSE
    return None
