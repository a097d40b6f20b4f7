"""Asks the roles of one attempt and writes every question and answer down."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from schemas.events import Completion
from synthesizer.backend import Attempt
from synthesizer.config import AnswerFormat, Sampling, SynthesisConfig
from synthesizer.llm.answers import A, Unusable, instruction, read, schema_of
from synthesizer.llm.model import LanguageModel, Message, ModelRefused, ModelUnavailable, Question, Reply
from synthesizer.llm.prompts import Prompts
from synthesizer.llm.transcript import prompt_hash, prompt_text

MAX_ERROR_CHARS = 1000


class AnswersTooLong(ValueError):
    """The answers of one synthesis would not fit the log."""


class Dialogue:
    """The model, asked in roles, for one attempt.

    Args:
        model: who answers.
        prompts: prompt texts.
        config: settings.
        attempt: the attempt; its notebook gets every completion.
    """

    def __init__(self, model: LanguageModel, prompts: Prompts, config: SynthesisConfig, attempt: Attempt) -> None:
        self._model = model
        self.prompts = prompts
        self._config = config
        self._attempt = attempt

    async def ask(self, role: str, values: Mapping[str, str], shape: type[A], num_tries: int = 0) -> A | Unusable:
        """One role's answer, asked again while it cannot be read.

        Args:
            role: who is asked.
            values: what the prompt's names stand for.
            shape: sections of the answer.
            num_tries: answers that are read; 0 takes the settings'.

        Raises:
            ModelRefused, ModelUnavailable: there is no answer.
            AnswersTooLong: this synthesis has said too much.
        """
        llm = self._config.llm
        messages = self.prompts.messages(role, values, instruction(shape, llm.answer_format))
        result: A | Unusable = Unusable("nobody was asked")
        for _ in range(num_tries or self._config.answer_tries):
            reply = await self._answered(role, messages, shape)
            result = read(reply.text, shape, llm.answer_format, llm.max_answer_chars)
            if not isinstance(result, Unusable):
                return result
        return result

    async def _answered(self, role: str, messages: tuple[Message, ...], shape: type[A]) -> Reply:
        question = self._question(role, messages, shape)
        try:
            reply = await self._model.complete(question)
        except (ModelRefused, ModelUnavailable) as error:
            kind = "refused" if isinstance(error, ModelRefused) else "unavailable"
            self._note(question, Reply(""), f"{kind}: {error}"[:MAX_ERROR_CHARS].encode("utf-8", "replace").decode())
            raise
        self._note(question, reply, "")
        return reply

    def _question(self, role: str, messages: tuple[Message, ...], shape: type[A]) -> Question:
        llm = self._config.llm
        own = llm.roles.get(role, Sampling())
        schema = None if llm.answer_format is AnswerFormat.TAGGED else schema_of(shape)
        number = len(self._attempt.notebook.completions)
        return Question(
            role,
            messages,
            schema,
            llm.temperature if own.temperature is None else own.temperature,
            llm.top_p if own.top_p is None else own.top_p,
            own.max_tokens or llm.max_tokens,
            _sampling_seed(self._attempt.seed, number),
        )

    def _note(self, question: Question, reply: Reply, error: str) -> None:
        llm, notebook = self._config.llm, self._attempt.notebook
        notebook.answered(
            Completion(
                attempt=self._attempt.number,
                role=question.role,
                model=reply.model,
                prompt_hash=prompt_hash(question.messages),
                prompt=prompt_text(question.messages).encode("utf-8", "replace").decode() if llm.record_prompts else "",
                text=reply.text[: llm.max_answer_chars + 1],
                finish_reason=reply.finish_reason,
                error=error,
                num_prompt_tokens=reply.num_prompt_tokens,
                num_completion_tokens=reply.num_completion_tokens,
                num_retries=reply.num_retries,
                latency_ms=reply.latency_ms,
            )
        )
        if notebook.num_bytes > llm.max_recorded_bytes:
            raise AnswersTooLong(
                f"{notebook.num_bytes} bytes of prompts and answers, the limit is {llm.max_recorded_bytes}"
            )


def _sampling_seed(seed: int, number: int) -> int:
    """31 bits, another for every question of an attempt."""
    return int.from_bytes(hashlib.sha256(f"{seed}\x1f{number}".encode()).digest()[:4], "big") >> 1
