"""The request of one turn, written backwards from its executed calls, and the check that it asks for just these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from schemas.events import SynthesisFailure
from synthesizer.execution import Step
from synthesizer.llm.answers import Answer, Unusable
from synthesizer.llm.prompts import as_data
from synthesizer.outcome import Failure
from synthesizer.stages.scene import Scene, shown_steps, text_fault

if TYPE_CHECKING:
    from synthesizer.stages.planner import Plan


class QueryAnswer(Answer):
    """What the query generator answers."""

    query: str


class VerdictAnswer(Answer):
    """What the query verifier answers."""

    verdict: Literal["accept", "reject"]


async def request_of(
    scene: Scene, plan: Plan, steps: Sequence[Step], texts: Sequence[str], owner: str
) -> str | Failure:
    """A user's request for the calls of the turn that was just executed."""
    guide = scene.dialogue.prompts.for_class(owner, scene.config.generic_query_prompt)
    if guide is None:
        return Failure(SynthesisFailure.NO_PROMPTS, f"there is no query prompt for class {owner}")
    turn = len(texts)
    mine = [step for step in steps if step.turn == turn]
    values = {
        "guide": guide.strip(),
        "narrative": as_data(plan.narrative),
        "said": as_data(list(texts)),
        "before": as_data(shown_steps(step for step in steps if step.turn < turn), 8000),
        "calls": as_data(shown_steps(mine), 8000),
    }
    why = ""
    for _ in range(scene.config.answer_tries):
        answer = await scene.dialogue.ask("query", values, QueryAnswer, num_tries=1)
        if isinstance(answer, Unusable):
            why = answer.why
            continue
        why = text_fault(answer.query, scene.tools, mine, scene.config)
        if not why:
            return answer.query.strip()
    return Failure(SynthesisFailure.QUERY_GEN_FAILED, f"turn {turn}: {why}")


async def verdict_on(scene: Scene, request: str, steps: Sequence[Step], texts: Sequence[str]) -> Failure | None:
    """``None`` if the verifier accepts the request for the calls of its turn."""
    turn = len(texts)
    values = {
        "said": as_data(list(texts)),
        "query": as_data(request),
        "before": as_data(shown_steps(step for step in steps if step.turn < turn), 8000),
        "calls": as_data(shown_steps(step for step in steps if step.turn == turn), 8000),
    }
    answer = await scene.dialogue.ask("verifier", values, VerdictAnswer)
    if isinstance(answer, Unusable):
        return Failure(SynthesisFailure.QUERY_VERIFY_NO_TAG, f"turn {turn}: no verdict: {answer.why}")
    if answer.verdict == "reject":
        return Failure(SynthesisFailure.QUERY_VERIFY_FAILED, f"turn {turn}: {answer.reason[:500]}")
    return None
