"""The quality judge, the failure classifier and the one refinement that a rejected candidate may get.

The judge decides after gates and guards and can overrule none of them: a refined candidate goes through all of them
again. An unreadable verdict is a rejection; an unreadable classification means that nothing can be mended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from schemas.events import SynthesisFailure
from synthesizer.backend import Draft
from synthesizer.llm.answers import Answer, Unusable
from synthesizer.llm.prompts import as_data
from synthesizer.outcome import Failure
from synthesizer.stages.scene import Scene, shown_conversation, shown_steps, text_fault


class JudgeAnswer(Answer):
    """What the quality judge answers."""

    verdict: Literal["accept", "reject"]
    fail_reason: str


class ClassAnswer(Answer):
    """What the failure classifier answers: whether a text can mend it, and which turn's."""

    kind: Literal["query_fixable", "gt_unfixable"]
    turn: int


class RefinedAnswer(Answer):
    """What the query refiner answers."""

    query: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the judge said no."""

    reason: str


async def reviewed(scene: Scene, draft: Draft) -> Draft | Failure:
    """The draft as it is, refined once, or the judge's refusal."""
    notebook, number = scene.attempt.notebook, scene.attempt.number
    rejection = await judged(scene, draft)
    if rejection is None:
        notebook.passed(number, "judge")
        return draft
    notebook.missed(number, "judge", rejection.reason)
    refined = await _refined(scene, draft, rejection)
    if isinstance(refined, Failure):
        return notebook.stopped(number, "refine", refined)
    again = await judged(scene, refined)
    if again is not None:
        return notebook.stopped(number, "refine", _no(f"after one refinement: {again.reason}"))
    notebook.passed(number, "refine", refined.changes[-1])
    return refined


def _no(reason: str) -> Failure:
    return Failure(SynthesisFailure.JUDGE_REJECTED, reason)


async def judged(scene: Scene, draft: Draft) -> Rejection | None:
    """``None`` if the judge accepts."""
    values = {
        "category": draft.task.category.value,
        "narrative": as_data(draft.narrative),
        "withheld": as_data(list(draft.task.withheld_functions)),
        "conversation": shown_conversation(draft.task, draft.trace.steps),
    }
    answer = await scene.dialogue.ask("judge", values, JudgeAnswer)
    if isinstance(answer, Unusable):
        return Rejection(f"no readable verdict: {answer.why}")
    if answer.verdict == "accept":
        return None
    return Rejection((answer.fail_reason or answer.reason)[:1000])


async def _refined(scene: Scene, draft: Draft, rejection: Rejection) -> Draft | Failure:
    """The draft with one text mended, if the classifier finds one to mend."""
    task, steps = draft.task, draft.trace.steps
    values = {"issue": as_data(rejection.reason), "conversation": shown_conversation(task, steps)}
    found = await scene.dialogue.ask("classifier", values, ClassAnswer)
    if isinstance(found, Unusable):
        return _no(f"{rejection.reason} (gt_unfixable: no readable classification: {found.why})")
    spoken = {index for index, turn in enumerate(task.turns) if turn.user_text}
    if found.kind == "gt_unfixable" or found.turn not in spoken:
        return _no(f"{rejection.reason} (gt_unfixable: {found.reason[:300]})")
    mine = [step for step in steps if step.turn == found.turn]
    values |= {
        "turn": str(found.turn),
        "query": as_data(task.turns[found.turn].user_text),
        "calls": as_data(shown_steps(mine)),
    }
    answer = await scene.dialogue.ask("refiner", values, RefinedAnswer)
    fault = answer.why if isinstance(answer, Unusable) else text_fault(answer.query, scene.tools, mine, scene.config)
    if fault:
        return _no(f"{rejection.reason} (refinement of turn {found.turn} unusable: {fault})")
    turns = list(task.turns)
    turns[found.turn] = replace(turns[found.turn], user_text=answer.query.strip())
    note = f"text of turn {found.turn} refined"
    return replace(draft, task=replace(task, turns=tuple(turns)), changes=(*draft.changes, note))
