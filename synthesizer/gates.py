"""The three deterministic gates of the method: fresh re-execution, tool availability, parameter complexity.

Each returns ``None`` or the failure with the call it is about. Source: RODS, appendix G.
"""

from __future__ import annotations

from environments.interface import Environment
from schemas.events import SynthesisFailure, Task
from synthesizer.config import SynthesisConfig
from synthesizer.execution import Trace, failure_kind, run
from synthesizer.outcome import Failure

Tolerated = frozenset[tuple[int, int, str, str]]
"""Failing calls of the seed (turn, index, function, kind): a reference may hold a deliberate negative."""


def execution(
    environment: Environment, task: Task, recorded: Trace, tolerated: Tolerated = frozenset()
) -> Failure | None:
    """Run the whole ground truth on a new state: results must equal the recorded ones and every call must succeed."""
    fresh = run(environment, task)
    if len(fresh.steps) != len(recorded.steps):
        return _execution(f"{len(fresh.steps)} calls were executed but {len(recorded.steps)} were recorded")
    for now, then in zip(fresh.steps, recorded.steps, strict=True):
        place = f"turn {now.turn}, call {now.index}, {now.call.name}"
        if now.call != then.call or now.result != then.result:
            return _execution(f"{place}: a fresh run gives {now.result[:200]!r}, recorded was {then.result[:200]!r}")
        kind = failure_kind(now.result)
        if kind and (now.turn, now.index, now.call.name, kind) not in tolerated:
            return _execution(f"{place} fails ({kind}): {now.result[:200]!r}")
    return None


def _execution(detail: str) -> Failure:
    return Failure(SynthesisFailure.GATE_EXECUTION, detail)


def availability(environment: Environment, task: Task) -> Failure | None:
    """Every call's function must be offered in its turn: withheld functions only from their restoring turn on."""
    known = environment.tools(task)
    offered = set(known) - set(task.withheld_functions)
    for index, turn in enumerate(task.turns):
        offered |= set(turn.restored_functions) & set(known)
        for call in turn.ground_truth:
            if call.name not in offered:
                reason = "withheld until a later turn" if call.name in known else "no function of this task"
                return Failure(SynthesisFailure.GATE_AVAILABILITY, f"turn {index}: {call.name} is {reason}")
    return None


def complexity(recorded: Trace, config: SynthesisConfig) -> Failure | None:
    """Strings and lists in arguments must stay short, at every depth."""
    for step in recorded.steps:
        for name, value in step.arguments.items():
            problem = _too_complex(value, config)
            if problem:
                detail = f"turn {step.turn}, call {step.index}, {step.call.name}: argument {name} holds {problem}"
                return Failure(SynthesisFailure.GATE_COMPLEXITY, detail)
    return None


def _too_complex(value: object, config: SynthesisConfig) -> str:
    if isinstance(value, str) and len(value) > config.max_string_chars:
        return f"a string of {len(value)} characters, the limit is {config.max_string_chars}"
    if isinstance(value, list) and len(value) > config.max_list_items:
        return f"a list of {len(value)} items, the limit is {config.max_list_items}"
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return next((problem for problem in (_too_complex(item, config) for item in value) if problem), "")
    return ""
