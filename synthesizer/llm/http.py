"""A model behind OpenAI's chat completions over HTTP: vLLM's server first, any other that speaks it.

429, 5xx, lost connections, silence and answers that are no chat completion are repeated with growing waits, a bounded
number of times; any other refusal is final. The API key is read from the environment variable that the settings name
and stands nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from streams.retry_after import LONGEST_S, seconds_of
from synthesizer.config import AnswerFormat, ModelConfig
from synthesizer.llm.model import ModelRefused, ModelUnavailable, Question, Reply

MAX_BODY_BYTES = 8_000_000
MIN_WAIT_S = 0.2
IDLE_CONNECTION_S = 1.0
"""vLLM closes idle connections early; one that was kept longer is lost on its next use."""
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class _TryAgain(Exception):
    """This request failed in a way that may pass: ``after_s`` is the wait the server asks for, ``is_down`` says that
    nobody was reached."""

    def __init__(self, reason: str, after_s: float = 0.0, is_down: bool = False) -> None:
        super().__init__(reason)
        self.after_s = after_s
        self.is_down = is_down


class HttpModel:
    """One server.

    Args:
        config: address, name, limits.
        environ: where the API key is looked up.

    Raises:
        ModelRefused: the settings name a variable for the key that is not set.
    """

    def __init__(self, config: ModelConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._url = config.base_url.rstrip("/")
        self._model = config.model
        self._headers = {}
        if config.api_key_env:
            key = environ.get(config.api_key_env)
            if not key:
                raise ModelRefused(f"synthesis.llm.api_key_env names {config.api_key_env}, which is not set")
            self._headers["Authorization"] = f"Bearer {key}"
        self._slots = asyncio.Semaphore(config.max_requests)
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, question: Question) -> Reply:
        """The server's answer to one question; waits for a free slot first."""
        async with self._slots:
            return await self._repeated(question)

    async def _repeated(self, question: Question) -> Reply:
        """Ask until there is an answer, a refusal, or no more reason to hope."""
        wait_s, num_failed = self._config.retry_wait_s, 0
        give_up_s = time.monotonic() + self._config.server_patience_s
        while True:
            try:
                return await self._once(question, num_failed)
            except _TryAgain as error:
                num_failed += 1
                is_loading = error.is_down and time.monotonic() < give_up_s
                if num_failed > self._config.request_retries and not is_loading:
                    raise ModelUnavailable(
                        f"{self._url} gave no answer in {num_failed} requests, the last one: {error}"
                    ) from error
                await asyncio.sleep(min(LONGEST_S, max(wait_s, error.after_s)))
                wait_s = 2 * wait_s if not is_loading else max(wait_s, MIN_WAIT_S)

    async def _once(self, question: Question, num_retries: int) -> Reply:
        model = await self._name()
        started_s = time.perf_counter()
        body = await self._request("POST", "/chat/completions", payload_of(question, model, self._config))
        latency_ms = (time.perf_counter() - started_s) * 1000
        return reply_of(body, model, num_retries, latency_ms)

    async def _name(self) -> str:
        if not self._model:
            listed = await self._request("GET", "/models", None)
            try:
                self._model = str(listed["data"][0]["id"])
            except (LookupError, TypeError) as error:
                raise _TryAgain(f"/models lists no model: {str(listed)[:200]}") from error
        return self._model

    async def _request(self, method: str, path: str, payload: Mapping[str, Any] | None) -> Any:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._config.max_requests, keepalive_timeout=IDLE_CONNECTION_S)
            timeout = aiohttp.ClientTimeout(total=self._config.request_timeout_s)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)
        body = b""
        try:
            async with self._session.request(method, self._url + path, json=payload) as response:
                body = await _limited(response)
                if response.status != 200:
                    _refuse(response, body)
                return json.loads(body)
        except TimeoutError as error:
            raise _TryAgain(f"no answer within {self._config.request_timeout_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise _TryAgain(f"{type(error).__name__}: {error}", is_down=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _TryAgain(f"{type(error).__name__}: {error}") from error
        except (ValueError, RecursionError) as error:
            if isinstance(error, ModelRefused):
                raise
            raise _TryAgain(f"the answer is no JSON: {body[:200]!r}") from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ModelRefused(f"the answer has more than {MAX_BODY_BYTES} bytes")
    return b"".join(parts)


def _refuse(response: aiohttp.ClientResponse, body: bytes) -> None:
    """Raise what a status other than 200 means."""
    reason = f"HTTP {response.status}: {body[:500].decode(errors='replace')}"
    if response.status in AGAIN:
        raise _TryAgain(reason, seconds_of(response.headers.get("Retry-After", ""), response.headers.get("Date", "")))
    raise ModelRefused(reason)


def payload_of(question: Question, model: str, config: ModelConfig) -> dict[str, Any]:
    """The body of the request."""
    payload = {
        "model": model,
        "messages": list(question.messages),
        "temperature": question.temperature,
        "top_p": question.top_p,
        "max_tokens": question.max_tokens,
        **config.extra,
    }
    if config.send_seed:
        payload["seed"] = question.seed
    if question.schema is not None and config.answer_format is AnswerFormat.JSON_SCHEMA:
        form = {"name": question.role, "schema": dict(question.schema), "strict": True}
        payload["response_format"] = {"type": "json_schema", "json_schema": form}
    elif question.schema is not None and config.answer_format is AnswerFormat.JSON_OBJECT:
        payload["response_format"] = {"type": "json_object"}
    return payload


def reply_of(body: Any, model: str, num_retries: int, latency_ms: float) -> Reply:
    """The answer inside a response body; a refusal has no text.

    Raises:
        _TryAgain: the body is no chat completion.
    """
    try:
        choice = body["choices"][0]
        text = choice["message"].get("content") or ""
        if isinstance(text, list):
            text = "".join(part["text"] for part in text if part.get("type", "text") == "text")
        finish = choice.get("finish_reason") or ""
        usage = body.get("usage") or {}
        counts = [int(usage.get(key) or 0) for key in ("prompt_tokens", "completion_tokens")]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise _TryAgain(f"the answer is no chat completion: {str(body)[:200]}") from error
    if not isinstance(text, str):
        raise _TryAgain(f"the answer's content is no text: {str(text)[:200]}")
    if choice["message"].get("refusal"):
        finish = "refusal"
    clean = text.encode("utf-8", "replace").decode()
    return Reply(clean, str(finish), str(body.get("model") or model), *counts, num_retries, round(latency_ms, 3))
