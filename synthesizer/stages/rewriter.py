"""Stage three: all requests rewritten at once, so that they are one conversation with one voice and one goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from schemas.events import SynthesisFailure, Task
from synthesizer.execution import Step
from synthesizer.llm.answers import Answer, Unusable
from synthesizer.llm.prompts import as_data
from synthesizer.outcome import Failure
from synthesizer.stages.scene import Scene, shown_conversation, text_fault


class RewriteAnswer(Answer):
    """What the coherence rewriter answers: one text for each turn that has one."""

    queries: list[str]


async def rewritten(
    scene: Scene,
    task: Task,
    steps: Sequence[Step],
    narrative: str,
    forbidden: Mapping[int, Sequence[str]] | None = None,
) -> Task | Failure:
    """The task with new texts; turns without a text keep none.

    Args:
        scene: the attempt.
        task: the candidate.
        steps: its executed calls.
        narrative: the story; may be empty.
        forbidden: values that the text of a turn may not say, by turn.
    """
    spoken = [index for index, turn in enumerate(task.turns) if turn.user_text]
    values = {
        "narrative": as_data(narrative),
        "conversation": shown_conversation(task, steps),
        "num_queries": str(len(spoken)),
        "turns": as_data(spoken),
        "forbidden": as_data({str(turn): list(found) for turn, found in (forbidden or {}).items()}),
    }
    why = ""
    for _ in range(scene.config.answer_tries):
        answer = await scene.dialogue.ask("rewriter", values, RewriteAnswer, num_tries=1)
        why = answer.why if isinstance(answer, Unusable) else _fault(scene, answer, spoken, steps)
        if not why:
            texts = dict(zip(spoken, answer.queries, strict=True))
            turns = tuple(
                replace(turn, user_text=texts[index].strip()) if index in texts else turn
                for index, turn in enumerate(task.turns)
            )
            return replace(task, turns=turns)
    return Failure(SynthesisFailure.CONVERSATION_CONSTRUCT_FAILED, f"rewrite: {why}")


def _fault(scene: Scene, answer: RewriteAnswer, spoken: Sequence[int], steps: Sequence[Step]) -> str:
    if len(answer.queries) != len(spoken):
        return f"{len(answer.queries)} texts for {len(spoken)} turns"
    faults = (text_fault(text, scene.tools, steps, scene.config) for text in answer.queries)
    return next((f"turn {turn}: {fault}" for turn, fault in zip(spoken, faults, strict=True) if fault), "")
