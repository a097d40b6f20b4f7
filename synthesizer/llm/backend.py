"""The model's backend: plan, execute, rewrite, withhold, judge, learn; and the hybrid, where a program keeps the
structure.

Deterministic in what the model answers: with recorded answers it gives the recorded outcome.
"""

from __future__ import annotations

from dataclasses import replace

from environments.registry import environment as environment_named
from schemas.events import Category, Task
from synthesizer.backend import Attempt, Draft, Seed
from synthesizer.config import SynthesisConfig
from synthesizer.execution import Trace
from synthesizer.guards import genuine
from synthesizer.llm.dialogue import Dialogue
from synthesizer.llm.model import LanguageModel
from synthesizer.llm.prompts import Prompts
from synthesizer.outcome import Failure
from synthesizer.scripted.backend import ScriptedBackend
from synthesizer.stages import feedback
from synthesizer.stages.judge import reviewed
from synthesizer.stages.orchestrator import executed_plan
from synthesizer.stages.planner import Plan, plan_of
from synthesizer.stages.rewriter import rewritten
from synthesizer.stages.scene import Scene
from synthesizer.stages.withholding import without_a_value


class LlmBackend:
    """Drafts variants with a language model.

    Args:
        model: who answers.
        config: settings.
    """

    name = "llm"
    is_sequential = False

    def __init__(self, model: LanguageModel, config: SynthesisConfig) -> None:
        self._model = model
        self._config = config
        self._prompts = Prompts(config.llm.prompts_folder)
        self.prompts_hash = self._prompts.hash

    def _scene(self, seed: Seed, attempt: Attempt) -> Scene:
        environment = environment_named(seed.task.environment)
        dialogue = Dialogue(self._model, self._prompts, self._config, attempt)
        return Scene(environment, seed, attempt, dialogue, self._config, environment.tools(seed.task))

    async def draft(self, seed: Seed, attempt: Attempt) -> Draft | Failure:
        """Plan, execute, rewrite; a missing parameter is withheld here, because the model writes its texts."""
        scene, notebook, number = self._scene(seed, attempt), attempt.notebook, attempt.number
        plan = await plan_of(scene)
        if isinstance(plan, Failure):
            return notebook.stopped(number, "plan", plan)
        notebook.passed(number, "plan", _spoken(plan))
        executed = await executed_plan(scene, plan, feedback.state_json(scene))
        if isinstance(executed, Failure):
            return notebook.stopped(number, "execute", executed)
        task, trace = executed
        notebook.passed(number, "execute", f"{len(trace.steps)} calls in {len(task.turns)} turns")
        if self._config.coherence_rewrite:
            told = await rewritten(scene, task, trace.steps, plan.narrative)
            if isinstance(told, Failure):
                return notebook.stopped(number, "rewrite", told)
            task = told
            notebook.passed(number, "rewrite")
        draft = Draft(task, trace, narrative=plan.narrative, changes=("new plan",))
        return await self._augmented(scene, draft)

    async def _augmented(self, scene: Scene, draft: Draft) -> Draft | Failure:
        if scene.seed.task.category is not Category.MISS_PARAM:
            return draft
        notebook, number = scene.attempt.notebook, scene.attempt.number
        withheld = await without_a_value(scene, draft)
        if isinstance(withheld, Failure):
            return notebook.stopped(number, "augment", withheld)
        notebook.passed(number, "augment", withheld.changes[-1])
        return withheld

    async def review(self, seed: Seed, draft: Draft, attempt: Attempt) -> Draft | Failure:
        """The judge, with one refinement."""
        return await reviewed(self._scene(seed, attempt), draft)

    async def learn(self, seed: Seed, attempt: Attempt, failure: Failure) -> None:
        """Patches and the blocklist."""
        if self._config.feedback:
            await feedback.learn(self._scene(seed, attempt), failure)

    async def close(self) -> None:
        """Close the model's connections."""
        await self._model.close()


class HybridBackend(LlmBackend):
    """A program keeps structure and ground truth, the model writes the texts and judges.

    The reference calls are the seed's with other entities and amounts, so that they succeed and are as hard as the
    seed's by construction; what the program cannot do, a new voice and story, is the model's.
    """

    name = "hybrid"

    def __init__(self, model: LanguageModel, config: SynthesisConfig) -> None:
        super().__init__(model, config)
        self._program = ScriptedBackend()

    async def draft(self, seed: Seed, attempt: Attempt) -> Draft | Failure:
        """The program's variant with the model's texts."""
        notebook, number = attempt.notebook, attempt.number
        drafted = await self._program.draft(seed, attempt)
        if isinstance(drafted, Failure) or not self._config.coherence_rewrite:
            return drafted
        scene = self._scene(seed, attempt)
        hidden = withheld_values(drafted.task, drafted.trace)
        told = await rewritten(scene, drafted.task, drafted.trace.steps, "", hidden)
        if isinstance(told, Failure):
            return notebook.stopped(number, "rewrite", told)
        notebook.passed(number, "rewrite")
        return replace(drafted, task=told, changes=(*drafted.changes, "texts by the model"))

    async def learn(self, seed: Seed, attempt: Attempt, failure: Failure) -> None:
        """Nothing: the program's next attempt changes less."""


def withheld_values(task: Task, trace: Trace) -> dict[int, list[str]]:
    """Values of a miss_param task that the turn before their clarification may not say, by that turn."""
    found: dict[int, list[str]] = {}
    if task.category is Category.MISS_PARAM:
        for position, value in genuine(task, trace).items():
            found.setdefault(position[0] - 1, []).append(str(value))
    return found


def _spoken(plan: Plan) -> str:
    turns = "; ".join(f"{owner}: {', '.join(names)}" for owner, names in plan.turns)
    return f"{plan.narrative} [{turns}]".strip()
