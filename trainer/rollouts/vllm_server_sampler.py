"""The vLLM server sampler: token ids in, token ids and log-probabilities out, every live episode at the same time.

Each message is one request that continues exactly the tokens of its episode. The server's answer names the prompt it
continued, which must be those tokens. The label of the weights is read before and behind every message; a message in
whose time the weights changed counts as sampled under the older ones. In a run every message must have a version: a
server that carries none, as one that was started again, is not sampled from; while weights are being proven a message
waits; and one in whose time the server was sent marked weights is sampled again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import httpx

from trainer.policy.template import Template
from trainer.rollouts.live_episode import LiveEpisode, NotWhatWasAsked, logprobs_misfit
from trainer.rollouts.sampler import OnProgress, OnRollout, Rollout, RolloutRequest, SamplingParams
from trainer.rollouts.vllm_client import (
    PROVING,
    ServerFacts,
    VllmBusy,
    VllmClient,
    VllmError,
    VllmRefusal,
    checked,
    label_in,
    split,
)

COMPLETIONS = "/v1/completions"
NUM_TRIES = 3
BUSY_WAIT_S = 1.0
"""Wait for a busy server that does not say how long."""
PROVING_POLL_S = 0.2


class VllmServerSampler:
    """Samples from a vLLM server.

    Args:
        url: address of the server.
        template: the prompt format.
        deadline_s: longest time for one message, seconds, waiting in the server's queue included.
        max_concurrency: most requests at a time.
        client: for the questions before sampling; made from the address if not given.
        transport: for tests; the network if not given.
        needs_version: whether every message must have a policy version, as in a run; needs the server's developer mode.
    """

    def __init__(
        self,
        url: str,
        template: Template,
        deadline_s: float = 300.0,
        max_concurrency: int = 256,
        client: VllmClient | None = None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        needs_version: bool = False,
    ) -> None:
        self.url, self._needs_version = url.rstrip("/"), needs_version
        self._template, self._deadline_s, self._max_concurrency = template, deadline_s, max_concurrency
        self._client, self._transport = client or VllmClient(url), transport
        self._facts: ServerFacts | None = None

    def facts(self) -> ServerFacts:
        """What the server says of itself; asked once."""
        self._facts = self._facts or self._client.facts(needs_developer_mode=self._needs_version)
        return self._facts

    def version(self) -> int | None:
        """The policy version the server is labelled with now, or ``None``.

        Raises:
            VllmError: it cannot be reached, or has no developer mode.
        """
        return self._client.version()

    def rollout(
        self,
        requests: Sequence[RolloutRequest],
        params: SamplingParams,
        on_progress: OnProgress | None = None,
        on_rollout: OnRollout | None = None,
    ) -> list[Rollout]:
        """Play every request to its end; results in the order of the requests.

        A request that the server refuses ends its rollout as invalid, with the server's text.

        Raises:
            VllmError: the server cannot be reached, or breaks.
            NotWhatWasAsked: it samples something else than it was asked for.
        """
        misfit = logprobs_misfit(self.facts().logprobs_mode, params) if self.facts().logprobs_mode else ""
        if misfit:
            raise NotWhatWasAsked(f"{self.url}: {misfit}")
        episodes = [LiveEpisode(request, self._template, params, self.facts().max_tokens) for request in requests]
        asyncio.run(self._play_all(episodes, params, on_progress, on_rollout))
        return [episode.rollout() for episode in episodes]

    async def _play_all(
        self,
        episodes: Sequence[LiveEpisode],
        params: SamplingParams,
        on_progress: OnProgress | None,
        on_rollout: OnRollout | None,
    ) -> None:
        num_finished = 0

        async def play(episode: LiveEpisode) -> None:
            nonlocal num_finished
            while not episode.is_over:
                async with gate:
                    await self._message(http, episode, params)
            num_finished += 1
            if on_rollout is not None:
                on_rollout(episode.rollout())
            if on_progress is not None:
                on_progress(num_finished, len(episodes))

        limits = httpx.Limits(max_connections=self._max_concurrency, keepalive_expiry=1.0)
        gate = asyncio.Semaphore(self._max_concurrency)
        transport = self._transport() if self._transport else None
        async with httpx.AsyncClient(base_url=self.url, limits=limits, transport=transport) as http:
            try:
                async with asyncio.TaskGroup() as tasks:
                    for episode in episodes:
                        tasks.create_task(play(episode))
            except* (VllmError, NotWhatWasAsked) as errors:
                raise errors.exceptions[0] from None

    async def _message(self, http: httpx.AsyncClient, episode: LiveEpisode, params: SamplingParams) -> None:
        before, way = await self._label(http)
        try:
            answer = await self._ask(http, "POST", COMPLETIONS, json=self._body(episode, params))
        except VllmRefusal as error:
            episode.fail(f"message {episode.num_messages}: {error}")
            return
        after, way_after = await self._label(http)
        if self._needs_version and way_after != way:
            return
        episode.accept(*message_in(answer), before if after is None or before is None else min(before, after))

    async def _label(self, http: httpx.AsyncClient) -> tuple[int | None, str]:
        """Version and way the server is labelled with; in a run waits for a version that is being proven, and takes no
        other label."""
        if not self.facts().logprobs_mode:
            return None, ""
        give_up_s = time.monotonic() + self._deadline_s
        while True:
            label = label_in(await self._ask(http, "GET", "/weight_info"))
            version, way = split(label)
            if version is not None or not self._needs_version:
                return version, way
            if label != PROVING:
                raise VllmError(
                    f"{self.url} carries the label {label!r} instead of a version: it was started again, or its "
                    "weights are in doubt; the trainer brings it up to date after its step, or when the run is resumed"
                )
            if time.monotonic() > give_up_s:
                raise VllmError(f"{self.url}: its new weights were not proven within {self._deadline_s:g} s")
            await asyncio.sleep(PROVING_POLL_S)

    def _body(self, episode: LiveEpisode, params: SamplingParams) -> dict[str, object]:
        """Everything that decides what is sampled is said, so that no default of server or model has a say."""
        return {
            "model": self.facts().model,
            "prompt": episode.ids,
            "max_tokens": episode.room,
            "seed": episode.seed,
            "temperature": 0.0 if params.greedy else params.temperature,
            "top_p": 1.0 if params.greedy else params.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": sorted(self._template.stop_ids),
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
        }

    async def _ask(self, http: httpx.AsyncClient, method: str, path: str, **values: object) -> dict[str, object]:
        what = f"{method} {path}"
        for left in reversed(range(NUM_TRIES)):
            try:
                response = await http.request(method, path, timeout=self._deadline_s, **values)
                return checked(response, what, self.url)
            except httpx.TimeoutException as error:
                raise VllmError(f"{what} at {self.url}: no answer within {self._deadline_s:g} s") from error
            except VllmBusy as error:
                if not left:
                    raise
                await asyncio.sleep(error.after_s or BUSY_WAIT_S)
            except httpx.TransportError as error:
                if not left:
                    raise VllmError(
                        f"{what} at {self.url}: {type(error).__name__}: {error}; is the server running?"
                    ) from error
        raise AssertionError("the last try returns or raises")


def message_in(answer: dict[str, object]) -> tuple[list[int], list[int], list[float], str]:
    """Prompt ids, message ids, log-probabilities, and how the message ended, in an answer.

    Raises:
        NotWhatWasAsked: the answer lacks them.
    """
    try:
        choice = answer["choices"][0]
        logprobs = choice["logprobs"]["token_logprobs"] if choice["token_ids"] else ()
        return list(choice["prompt_token_ids"]), list(choice["token_ids"]), list(logprobs), str(choice["finish_reason"])
    except (KeyError, IndexError, TypeError) as error:
        raise NotWhatWasAsked(f"the answer lacks {error}; vLLM from 0.10 on knows return_token_ids") from error
