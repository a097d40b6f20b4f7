"""Stage two: each planned function gets arguments from the live state and is executed at once; then the turn's
request is written backwards from what was executed, and checked.

Correctness never rests on text: what counts are the executed calls. The first failure ends the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from environments.execution import make_call, run_call, started
from environments.interface import CALL_FAILURES
from schemas.events import Category, SynthesisFailure, Task, Turn
from synthesizer.execution import Step, Trace, failure_kind
from synthesizer.outcome import Failure
from synthesizer.stages.parameters import arguments_of
from synthesizer.stages.planner import Plan
from synthesizer.stages.queries import request_of, verdict_on
from synthesizer.stages.scene import Scene


@dataclass(slots=True)
class Stage:
    """The simulators while a plan is executed.

    Attributes:
        scene: The attempt.
        plan: What is executed.
        task: The candidate so far; its turns are empty.
        state: Live state.
        steps: Executed calls.
        texts: Requests of the turns that are done.
    """

    scene: Scene
    plan: Plan
    task: Task
    state: object
    steps: list[Step]
    texts: list[str]


def blank_candidate(scene: Scene, config_json: str) -> Task:
    """The seed without its conversation, in the mode and state the candidate is made in.

    A long-context candidate is made in long-context mode from the first call on.
    """
    long_context = scene.seed.task.category is Category.LONG_CONTEXT
    return replace(
        scene.seed.task,
        category=Category.LONG_CONTEXT if long_context else Category.BASE,
        initial_config_json=config_json,
        turns=(),
        withheld_functions=(),
        long_context=long_context,
        id_seed=scene.rng("ids").randrange(1, 2**31),
    )


async def executed_plan(scene: Scene, plan: Plan, config_json: str) -> tuple[Task, Trace] | Failure:
    """The candidate with executed calls and draft requests.

    Args:
        scene: the attempt.
        plan: its plan.
        config_json: initial state, patches included.
    """
    task = blank_candidate(scene, config_json)
    try:
        state = started(scene.environment, task)
    except CALL_FAILURES as error:
        return Failure(SynthesisFailure.VM_EXEC_FAILED, f"the state cannot be loaded: {error}")
    stage = Stage(scene, plan, task, state, [], [])
    for turn in range(len(plan.turns)):
        failure = await _turn(stage, turn)
        if failure is not None:
            return failure
    turns = tuple(
        Turn(user_text=text, ground_truth=tuple(step.call for step in stage.steps if step.turn == index))
        for index, text in enumerate(stage.texts)
    )
    return replace(task, turns=turns), Trace(tuple(stage.steps))


async def _turn(stage: Stage, turn: int) -> Failure | None:
    owner, planned = stage.plan.turns[turn]
    for name in planned:
        names = decomposed(stage.scene, owner, name)
        if isinstance(names, Failure):
            return names
        for function in names:
            failure = await _function(stage, turn, function)
            if failure is not None:
                return failure
    request = await request_of(stage.scene, stage.plan, stage.steps, stage.texts, owner)
    if isinstance(request, Failure):
        return request
    rejected = await verdict_on(stage.scene, request, stage.steps, stage.texts)
    if rejected is None:
        stage.texts.append(request)
    return rejected


def decomposed(scene: Scene, owner: str, name: str) -> tuple[str, ...] | Failure:
    """The real functions behind a planned name: itself, or what a high-level function stands for."""
    macro = scene.config.macros.get(owner, {}).get(name)
    if macro is None:
        return (name,)
    unknown = [part for part in macro if part not in scene.tools]
    if not macro or unknown:
        detail = f"{name} stands for no function" if not macro else f"{name} stands for unknown {unknown[0]}"
        return Failure(SynthesisFailure.DECOMPOSE_FAILED, detail, name)
    return tuple(macro)


async def _function(stage: Stage, turn: int, function: str) -> Failure | None:
    """Arguments, checks, execution of one function; the step is added."""
    tool = stage.scene.tools.get(function)
    if tool is None:
        return Failure(SynthesisFailure.FUNC_SAMPLE_FAILED, f"there is no function {function[:60]!r}", function)
    index = sum(step.turn == turn for step in stage.steps)
    arguments = await arguments_of(stage.scene, stage.plan, tool, stage.state, stage.steps, stage.texts)
    if isinstance(arguments, Failure):
        return arguments
    call = make_call(function, arguments)
    if any(step.turn == turn and step.call == call for step in stage.steps):
        detail = f"turn {turn}: {function} twice with {call.arguments_json[:200]}"
        return Failure(SynthesisFailure.DUPLICATE_FUNC, detail, function)
    result = run_call(stage.scene.environment, stage.state, call)
    kind = failure_kind(result)
    if kind:
        detail = f"turn {turn}, call {index}, {function}({call.arguments_json[:200]}) fails ({kind}): {result[:200]}"
        return Failure(SynthesisFailure.VM_EXEC_FAILED, detail, function)
    stage.steps.append(Step(turn, index, call, result))
    return None
