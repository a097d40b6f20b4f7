"""Arguments of one planned function, generated from the live state and checked before they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.canonical import canonical_json
from environments.execution import Refusal, admit
from environments.interface import ToolSchema
from schemas.events import Call, SynthesisFailure
from synthesizer import gates
from synthesizer.execution import Step, Trace
from synthesizer.llm.answers import Answer, Unusable
from synthesizer.llm.prompts import as_data
from synthesizer.outcome import Failure
from synthesizer.stages.scene import Scene, shown_steps

if TYPE_CHECKING:
    from synthesizer.stages.planner import Plan


class ArgumentsAnswer(Answer):
    """What the parameter generator answers."""

    arguments: dict[str, Any]


async def arguments_of(
    scene: Scene, plan: Plan, tool: ToolSchema, state: object, steps: Sequence[Step], texts: Sequence[str]
) -> dict[str, Any] | Failure:
    """Arguments that fit the schema and the limits, or ``param_gen_failed``."""
    turn = len(texts)
    values = {
        "narrative": as_data(plan.narrative),
        "function": as_data({"name": tool.name, "does": tool.description, "parameters": dict(tool.parameters)}),
        "state": as_data(scene.environment.public_state(state), 6000),
        "done": as_data(shown_steps(steps), 8000),
        "said": as_data(list(texts)),
        "turn": str(turn + 1),
        "turn_functions": as_data(list(plan.turns[turn][1])),
    }
    why = ""
    for _ in range(scene.config.answer_tries):
        answer = await scene.dialogue.ask("parameters", values, ArgumentsAnswer, num_tries=1)
        fitted = answer.why if isinstance(answer, Unusable) else fitted_arguments(scene, tool, answer.arguments)
        if not isinstance(fitted, str):
            return fitted
        why = fitted
    return Failure(SynthesisFailure.PARAM_GEN_FAILED, f"turn {turn}, {tool.name}: {why}", tool.name)


def fitted_arguments(scene: Scene, tool: ToolSchema, arguments: dict[str, Any]) -> dict[str, Any] | str:
    """The arguments in the types their schema names, or why they may not run."""
    try:
        call = Call(name=tool.name, arguments_json=canonical_json(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        return f"arguments are no JSON: {error}"
    admitted = admit(call, scene.tools)
    if isinstance(admitted, Refusal):
        return admitted.reason
    problem = gates.complexity(Trace((Step(0, 0, admitted, ""),)), scene.config)
    return problem.detail if problem else json.loads(admitted.arguments_json)
