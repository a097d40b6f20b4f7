"""vLLM inside this process: no server, the same port. Questions that wait together are answered as one batch.

vLLM is imported when the first question comes; without it the first question says what to install.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synthesizer.config import AnswerFormat, ModelConfig
from synthesizer.llm.model import ModelRefused, ModelUnavailable, Question, Reply


@dataclass(frozen=True, slots=True)
class _Waiting:
    question: Question
    reply: asyncio.Future


class InProcessModel:
    """``vllm.LLM`` behind the model port.

    Args:
        config: ``model`` is a path or name; ``extra`` holds further arguments of ``vllm.LLM``.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._engine: Any = None
        self._waiting: list[_Waiting] = []
        self._worker: asyncio.Task | None = None

    async def complete(self, question: Question) -> Reply:
        """The answer to one question."""
        waiting = _Waiting(question, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await waiting.reply

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)
            batch, self._waiting = (
                self._waiting[: self._config.max_requests],
                self._waiting[self._config.max_requests :],
            )
            batch = [waiting for waiting in batch if not waiting.reply.cancelled()]
            replies = await asyncio.to_thread(self._answers, [waiting.question for waiting in batch])
            for waiting, reply in zip(batch, replies, strict=True):
                if not waiting.reply.cancelled():
                    _settle(waiting.reply, reply)

    def _answers(self, questions: Sequence[Question]) -> list[Reply | Exception]:
        """One answer or error a question."""
        try:
            engine = self._loaded()
            started_s = time.perf_counter()
            outputs = engine.chat(
                [[dict(message) for message in question.messages] for question in questions],
                [self._sampling(question) for question in questions],
                use_tqdm=False,
            )
        except ModelUnavailable as error:
            return [error] * len(questions)
        except (ValueError, TypeError) as error:
            return [ModelRefused(str(error))] * len(questions)
        except (RuntimeError, OSError, MemoryError) as error:
            return [ModelUnavailable(f"vLLM: {error}")] * len(questions)
        latency_ms = round((time.perf_counter() - started_s) * 1000, 3)
        return [self._reply(output, latency_ms) for output in outputs]

    def _loaded(self) -> Any:
        if self._engine is None:
            try:
                from vllm import LLM
            except ImportError as error:
                raise ModelUnavailable(
                    f"synthesis.llm.client = vllm needs vLLM in this environment: {error}"
                ) from error
            self._engine = LLM(model=self._config.model, **self._config.extra)
        return self._engine

    def _sampling(self, question: Question) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        form = None
        if question.schema is not None and self._config.answer_format is AnswerFormat.JSON_SCHEMA:
            form = StructuredOutputsParams(json=dict(question.schema))
        elif question.schema is not None:
            form = StructuredOutputsParams(json_object=True)
        return SamplingParams(
            temperature=question.temperature,
            top_p=question.top_p,
            max_tokens=question.max_tokens,
            seed=question.seed if self._config.send_seed else None,
            structured_outputs=form,
        )

    def _reply(self, output: Any, latency_ms: float) -> Reply:
        best = output.outputs[0]
        text = best.text.encode("utf-8", "replace").decode()
        return Reply(
            text,
            best.finish_reason or "",
            self._config.model,
            len(output.prompt_token_ids or ()),
            len(best.token_ids),
            0,
            latency_ms,
        )

    async def close(self) -> None:
        """Let the engine go."""
        if self._worker is not None:
            await self._worker
        self._engine = None


def _settle(future: asyncio.Future, reply: Reply | Exception) -> None:
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
