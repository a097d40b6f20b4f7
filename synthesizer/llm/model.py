"""The port to a language model: one question, one answer, and how a model can fail.

Imports nothing of the other rooms, so that a model can be driven from any environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, str]
"""``{"role": "system" or "user", "content": text}``."""


class ModelRefused(ValueError):
    """The model's server will not answer this request, however often it is asked (too long, not allowed)."""


class ModelUnavailable(ConnectionError):
    """The model's server did not answer in time, after every repetition; the text says what was tried."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        role: Who is asked, for sampling and accounting.
        messages: The chat so far.
        schema: JSON schema of the answer, where the server is to enforce one; ``{}`` asks for any JSON object.
        temperature, top_p, max_tokens: Sampling.
        seed: Seed of the sampling, for servers that have one.
    """

    role: str
    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None
    temperature: float
    top_p: float
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        text: The answer, valid Unicode.
        finish_reason: Why the model stopped.
        model: Its name.
        num_prompt_tokens, num_completion_tokens: As the server counts; 0 where it does not.
        num_retries: Requests that failed before.
        latency_ms: From sending the last request to its answer.
    """

    text: str
    finish_reason: str = "stop"
    model: str = ""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_retries: int = 0
    latency_ms: float = 0.0


class LanguageModel(Protocol):
    """Answers questions; many at a time."""

    async def complete(self, question: Question) -> Reply:
        """The answer.

        Raises:
            ModelRefused, ModelUnavailable: there is none.
        """

    async def close(self) -> None:
        """Let go of connections."""
