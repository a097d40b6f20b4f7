"""Stage one: a story and the functions of each turn, in the structure of the seed. Narrative first.

A plan that names an unknown class or function, or that has another shape than the seed, is no plan; after the settings'
number of answers the attempt ends as ``no_pattern``. Without narrative planning the functions are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from environments.interface import ToolSchema
from schemas.events import SynthesisFailure
from synthesizer.config import ProfileMode, SynthesisConfig
from synthesizer.llm.answers import Answer, Unusable
from synthesizer.llm.prompts import as_data
from synthesizer.outcome import Failure
from synthesizer.profile import plan_shape
from synthesizer.stages.advice import ADVICE
from synthesizer.stages.scene import Scene

MAX_NARRATIVE_CHARS = 1500


class PlannedTurn(BaseModel):
    """One turn of a plan: functions of one class."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    api: str
    functions: list[str]


class PlanAnswer(Answer):
    """What the planner answers."""

    narrative: str
    turns: list[PlannedTurn]


@dataclass(frozen=True, slots=True)
class Plan:
    """A story, and for each turn a class and its functions in order."""

    narrative: str
    turns: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What may be planned.

    Attributes:
        by_class: Real functions by class, without the blocked ones.
        macros: High-level functions by class.
        shape: Calls of each turn that the seed has.
    """

    by_class: Mapping[str, Mapping[str, ToolSchema]]
    macros: Mapping[str, Mapping[str, list[str]]]
    shape: tuple[int, ...]

    def allowed(self, owner: str) -> set[str]:
        """Every name that a turn of the class may hold."""
        return {*self.by_class.get(owner, ()), *self.macros.get(owner, ())}


def choice_of(scene: Scene) -> Choice | Failure:
    """What is left to plan with, or ``func_sample_failed``."""
    task, blocked = scene.seed.task, set(scene.attempt.notebook.blocked)
    for turn in task.turns:
        for call in turn.ground_truth:
            if call.name not in scene.tools:
                return Failure(SynthesisFailure.FUNC_SAMPLE_FAILED, f"the seed's {call.name} is in no tool class of it")
    by_class: dict[str, dict[str, ToolSchema]] = {owner: {} for owner in task.involved_classes}
    for name, tool in scene.tools.items():
        if name not in blocked:
            by_class.setdefault(tool.owner, {})[name] = tool
    empty = [owner for owner, tools in by_class.items() if not tools]
    if empty:
        return Failure(SynthesisFailure.FUNC_SAMPLE_FAILED, f"no function of {', '.join(empty)} is left to plan with")
    macros = {
        owner: {name: parts for name, parts in scene.config.macros.get(owner, {}).items() if name not in blocked}
        for owner in by_class
    }
    shape = plan_shape(task.category, [len(turn.ground_truth) for turn in task.turns], scene.config)
    return Choice(by_class, macros, shape)


async def plan_of(scene: Scene) -> Plan | Failure:
    """A plan for this attempt."""
    choice = choice_of(scene)
    if isinstance(choice, Failure):
        return choice
    if not scene.config.narrative_planning:
        return drawn_plan(scene, choice)
    values = _values(scene, choice)
    why = ""
    for _ in range(scene.config.planner_tries):
        answer = await scene.dialogue.ask("planner", values, PlanAnswer, num_tries=1)
        why = answer.why if isinstance(answer, Unusable) else plan_fault(answer, choice, scene.config)
        if not why:
            return Plan(answer.narrative, tuple((turn.api, tuple(turn.functions)) for turn in answer.turns))
    return Failure(SynthesisFailure.NO_PATTERN, f"no usable plan in {scene.config.planner_tries} answers: {why}")


def plan_fault(answer: PlanAnswer, choice: Choice, config: SynthesisConfig) -> str:
    """Why a plan cannot be used, or an empty text."""
    if len(answer.narrative) > MAX_NARRATIVE_CHARS:
        return f"the narrative has {len(answer.narrative)} characters, the limit is {MAX_NARRATIVE_CHARS}"
    wanted, calls = choice.shape, [len(turn.functions) for turn in answer.turns]
    least = min(config.min_plan_turns, len(wanted))
    if not least <= len(calls) <= config.max_plan_turns:
        return f"{len(calls)} turns, allowed are {least} to {config.max_plan_turns}"
    for index, turn in enumerate(answer.turns):
        if turn.api not in choice.by_class:
            return f"turn {index}: {turn.api[:60]!r} is no class of the seed"
        if not 1 <= len(turn.functions) <= config.max_plan_calls:
            return f"turn {index}: {len(turn.functions)} functions, allowed are 1 to {config.max_plan_calls}"
        unknown = [name for name in turn.functions if name not in choice.allowed(turn.api)]
        if unknown:
            return f"turn {index}: {unknown[0][:60]!r} is no function of {turn.api} that may be used"
    if config.profile_mode is not ProfileMode.ENFORCE:
        return ""
    if len(calls) != len(wanted):
        return f"{len(calls)} turns, the seed asks for {len(wanted)}"
    if any(abs(have - want) > config.call_slack_per_turn for have, want in zip(calls, wanted, strict=True)):
        return f"calls per turn are {calls}, the seed has {list(wanted)}"
    return ""


def drawn_plan(scene: Scene, choice: Choice) -> Plan:
    """Functions without a story: classes in turn, functions at random, as many as the seed has. Ablation."""
    rng, owners = scene.rng("plan"), list(choice.by_class)
    turns = []
    for index, num in enumerate(choice.shape):
        owner = owners[index % len(owners)]
        names = sorted(choice.by_class[owner])
        turns.append((owner, tuple(rng.sample(names, min(num, len(names))))))
    return Plan("", tuple(turns))


def _values(scene: Scene, choice: Choice) -> dict[str, str]:
    task, notebook = scene.seed.task, scene.attempt.notebook
    sequence = [[call.name for call in turn.ground_truth] for turn in task.turns if turn.ground_truth]
    functions = {
        owner: {
            **({"high-level": sorted(choice.macros[owner])} if choice.macros.get(owner) else {}),
            "functions": {name: _summary(tool) for name, tool in tools.items()},
        }
        for owner, tools in choice.by_class.items()
    }
    return {
        "classes": as_data(functions, 30_000),
        "seed_texts": as_data([turn.user_text for turn in task.turns if turn.user_text], 6000),
        "seed_functions": as_data(sequence),
        "num_turns": str(len(choice.shape)),
        "calls_per_turn": as_data(list(choice.shape)),
        "max_calls": str(scene.config.max_plan_calls),
        "history": as_data([f"{item.failure.value}: {item.detail[:300]}" for item in _known(scene)]),
        "advice": as_data([ADVICE[item.failure] for item in _known(scene)[-1:] if item.failure in ADVICE]),
        "blocked": as_data(list(notebook.blocked)),
        "patch": as_data(notebook.config_patch),
    }


def _known(scene: Scene) -> tuple[Failure, ...]:
    return scene.attempt.history if scene.config.feedback else ()


def _summary(tool: ToolSchema) -> str:
    """What a function does, without what its class is for."""
    return tool.description.rpartition("Tool description:")[2].strip()[:200]
