"""Stage five for a missing parameter: one value leaves a turn's text and comes back in a clarifying turn.

Only a required value that the turn's text says, that all its uses in the turn share, and that nothing before it shows
can go; it must not be guessable from the schema or stand in the initial state, where a tool would find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.events import Category, SynthesisFailure, Task, Turn
from synthesizer.backend import Draft
from synthesizer.execution import Step, Trace, run
from synthesizer.grounding import Position, config_values, in_schema, in_state, in_text, visible_before
from synthesizer.llm.answers import Answer, Unusable
from synthesizer.llm.prompts import as_data
from synthesizer.outcome import Failure
from synthesizer.stages.scene import Scene, text_fault
from synthesizer.values import Scalar, is_number, same

MIN_CHARS = 3


class WithholdAnswer(Answer):
    """What the withholder answers: the request without the value, and what the user says when asked for it."""

    request: str
    clarification: str


@dataclass(frozen=True, slots=True)
class Option:
    """A value that can be withheld: its turn, its name, and where the turn uses it."""

    turn: int
    name: str
    value: Scalar
    positions: tuple[Position, ...]


def options(scene: Scene, task: Task, trace: Trace) -> list[Option]:
    """Every value that can be withheld, in order."""
    found, state = [], config_values(task)
    for step in trace.steps:
        tool = scene.tools[step.call.name]
        for name in tool.parameters.get("required", ()):
            value = step.arguments.get(name)
            uses = [other for other in trace.steps if other.turn == step.turn and name in other.arguments]
            if uses[0] is not step or not _is_telling(value) or not in_text(value, task.turns[step.turn].user_text):
                continue
            shared = all(same(use.arguments[name], value) for use in uses)
            guessable = in_schema(value, name, tool) or in_state(value, state)
            if shared and not guessable and not visible_before(value, task, trace, step.turn):
                positions = tuple((use.turn + 1, use.index, name, ()) for use in uses)
                found.append(Option(step.turn, name, value, positions))
    return found


def _is_telling(value: object) -> bool:
    return is_number(value) or isinstance(value, str) and len(value) >= MIN_CHARS


async def without_a_value(scene: Scene, draft: Draft) -> Draft | Failure:
    """The draft as a miss_param task."""
    choices = options(scene, draft.task, draft.trace)
    if not choices:
        return _cannot("no value can be withheld: none is said in a text, required, and shown nowhere before")
    option = scene.rng("withhold").choice(choices)
    affected = draft.task.turns[option.turn]
    mine = [step for step in draft.trace.steps if step.turn == option.turn]
    values = {
        "narrative": as_data(draft.narrative),
        "said": as_data([turn.user_text for turn in draft.task.turns[: option.turn]]),
        "request": as_data(affected.user_text),
        "name": as_data(option.name),
        "value": as_data(option.value),
    }
    why = ""
    for _ in range(scene.config.answer_tries):
        answer = await scene.dialogue.ask("withholder", values, WithholdAnswer, num_tries=1)
        why = answer.why if isinstance(answer, Unusable) else _fault(scene, answer, option, mine)
        if not why:
            return _with_turns(scene, draft, option, answer)
    return _cannot(f"turn {option.turn}, {option.name}: {why}")


def _cannot(detail: str) -> Failure:
    return Failure(SynthesisFailure.CONVERSATION_CONSTRUCT_FAILED, detail)


def _fault(scene: Scene, answer: WithholdAnswer, option: Option, steps: Sequence[Step]) -> str:
    for text in (answer.request, answer.clarification):
        fault = text_fault(text, scene.tools, steps, scene.config)
        if fault:
            return fault
    if in_text(option.value, answer.request):
        return "the request still says the value"
    return "" if in_text(option.value, answer.clarification) else "the clarification does not say the value"


def _with_turns(scene: Scene, draft: Draft, option: Option, answer: WithholdAnswer) -> Draft:
    task, index = draft.task, option.turn
    vague = replace(task.turns[index], user_text=answer.request.strip(), ground_truth=())
    clear = Turn(user_text=answer.clarification.strip(), ground_truth=task.turns[index].ground_truth)
    turns = (*task.turns[:index], vague, clear, *task.turns[index + 1 :])
    changed = replace(task, category=Category.MISS_PARAM, turns=turns)
    note = f"{option.name} withheld until turn {index + 1}"
    trace = run(scene.environment, changed)
    return replace(draft, task=changed, trace=trace, missing=option.positions, changes=(*draft.changes, note))
