"""A model that answers what was answered before, in order, and refuses any other question."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.events import Completion
from synthesizer.llm.model import ModelRefused, ModelUnavailable, Question, Reply
from synthesizer.llm.transcript import prompt_hash

ERRORS = {"refused": ModelRefused, "unavailable": ModelUnavailable}


class ReplayDiverged(Exception):
    """The synthesis asks something else than it did then; the text names the question."""


class RecordedModel:
    """Plays the completions of one synthesis.

    Args:
        completions: as they stand in its terminal event.
    """

    def __init__(self, completions: Sequence[Completion]) -> None:
        self._completions = completions
        self._next = 0

    async def complete(self, question: Question) -> Reply:
        """The recorded answer.

        Raises:
            ReplayDiverged: the recorded question is another one.
            TimeoutError: there is no further answer, as when the synthesis ran out of time.
        """
        if self._next == len(self._completions):
            raise TimeoutError
        then = self._completions[self._next]
        if (then.role, then.prompt_hash) != (question.role, prompt_hash(question.messages)):
            raise ReplayDiverged(
                f"question {self._next} was asked of {then.role} with prompt {then.prompt_hash[:12]}, now of "
                f"{question.role} with prompt {prompt_hash(question.messages)[:12]}: code or prompt files differ"
            )
        self._next += 1
        kind, _, reason = then.error.partition(": ")
        if kind in ERRORS:
            raise ERRORS[kind](reason)
        return Reply(
            then.text,
            then.finish_reason,
            then.model,
            then.num_prompt_tokens,
            then.num_completion_tokens,
            then.num_retries,
            then.latency_ms,
        )

    @property
    def num_left(self) -> int:
        """Recorded answers that nobody asked for."""
        return len(self._completions) - self._next

    async def close(self) -> None:
        """Nothing is open."""
