"""One episode on its way: which tokens were shown, which were sampled, what comes next.

The tokens of an episode only ever grow: what is asked for next is what was shown and sampled so far, never rendered again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from environments.interface import CALL_FAILURES
from schemas.events import FinishReason
from trainer.policy.template import Template
from trainer.rollouts.sampler import Rollout, RolloutRequest, SamplingParams, StreamKey


class NotWhatWasAsked(RuntimeError):
    """A sampling engine did something else than it was asked to; what it says cannot be learned from."""


class LiveEpisode:
    """The tokens of one rollout, and its episode.

    Args:
        request: what to play.
        template: the prompt format.
        params: how to sample.
        max_tokens: longest sequence the engine takes, tokens.

    Attributes:
        ids: everything shown and sampled so far.
        error: what broke the episode or its sampling; empty if nothing did.
    """

    def __init__(self, request: RolloutRequest, template: Template, params: SamplingParams, max_tokens: int) -> None:
        self.request, self.error = request, ""
        self._template, self._params = template, params
        self._limit = min(params.max_episode_tokens, max_tokens)
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._mask: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self.num_messages = 0
        start = template.start_ids(request.task, tuple(request.episode.offered.values()))
        self._show([*start, *template.incoming_ids(request.episode.incoming)])

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to sample."""
        return self.request.episode.done

    @property
    def room(self) -> int:
        """Most tokens the next message may have."""
        return min(self._params.max_message_tokens, self._limit - len(self.ids))

    @property
    def seed(self) -> int:
        """Seed of the next message: a function of run, rollout and the message's number; 62 bits."""
        return message_seed(self._params.seed, self.request.stream_key, self.num_messages)

    def _show(self, ids: Sequence[int]) -> None:
        if not self.ids and not ids:
            raise ValueError(
                f"task {self.request.task.task_id}: the template {self._template.name} shows nothing at all"
            )
        if len(self.ids) + len(ids) >= self._limit:
            self.request.episode.cut(FinishReason.TOKEN_LIMIT)
            return
        self._extend(ids, [0.0] * len(ids), 0)

    def _extend(self, ids: Sequence[int], logprobs: Sequence[float], mask: int) -> None:
        self.ids += ids
        self._logprobs += logprobs
        self._mask += [mask] * len(ids)

    def accept(
        self, prompt_ids: Sequence[int], ids: Sequence[int], logprobs: Sequence[float], ended: str, version: int | None
    ) -> None:
        """Take a sampled message: record it, give it to the episode, show what follows.

        A message that ended neither with a stop token nor at its longest, as one that was aborted, breaks the episode; so
        does one with an id that the tokenizer has no token for.

        Args:
            prompt_ids: what the engine says it continued.
            ids: the message, its stop token included.
            logprobs: one for each of ``ids``, nats.
            ended: the engine's reason: stop, length, or what broke it off.
            version: policy version it was sampled under; ``None`` if that is not known here.

        Raises:
            NotWhatWasAsked: the engine continued another prompt, or gave no message of the kind asked for.
        """
        if ended not in ("stop", "length") or (ended == "length" and len(ids) != self.room):
            self.fail(f"message {self.num_messages}: the engine broke it off after {len(ids)} tokens: {ended}")
            return
        self._check(prompt_ids, ids, logprobs, ended)
        if version is not None and (not self._spans or self._spans[-1][1] != version):
            self._spans.append((len(self.ids), version))
        self._extend(ids, logprobs, 1)
        self.num_messages += 1
        episode = self.request.episode
        try:
            text = self._template.message_text(list(ids))
            if ids[-1] in self._template.stop_ids:
                episode.step(text)
            else:
                episode.cut(FinishReason.TOKEN_LIMIT)
        except CALL_FAILURES as error:
            self.fail(f"message {len(episode.messages)}: {type(error).__name__}: {error}")
        if not episode.done:
            self._show(self._template.incoming_ids(episode.incoming))

    def _check(self, prompt_ids: Sequence[int], ids: Sequence[int], logprobs: Sequence[float], ended: str) -> None:
        where = f"{self.request.stream_key}, message {self.num_messages}"
        if list(prompt_ids) != self.ids:
            raise NotWhatWasAsked(
                f"{where}: sampling went on from {len(prompt_ids)} tokens that are not the "
                f"{len(self.ids)} of this episode"
            )
        if not 0 < len(ids) <= self.room or len(ids) != len(logprobs):
            raise NotWhatWasAsked(
                f"{where}: {len(ids)} tokens with {len(logprobs)} log-probabilities; 1 to {self.room} "
                "tokens with one each were asked for"
            )
        if any(id_ in self._template.stop_ids for id_ in ids[:-1]):
            raise NotWhatWasAsked(f"{where}: sampling went on behind a stop token")
        if ended == "stop" and ids[-1] not in self._template.stop_ids:
            raise NotWhatWasAsked(f"{where}: sampling stopped at {ids[-1]}, which is no stop token")
        if not all(np.isfinite(logprob) and logprob <= 1e-4 for logprob in logprobs):
            raise NotWhatWasAsked(f"{where}: a log-probability is not one")

    def fail(self, error: str) -> None:
        """End the episode as broken; it is recorded and not learned from."""
        self.error = self.error or error
        self.request.episode.cut(FinishReason.ERROR)

    def rollout(self) -> Rollout:
        """What was played."""
        return Rollout(
            task_id=self.request.task.task_id,
            rollout_index=self.request.rollout_index,
            token_ids=np.array(self.ids, np.int32),
            logprobs=np.array(self._logprobs, np.float32),
            mask=np.array(self._mask, np.uint8),
            episode=self.request.episode,
            error=self.error,
            version_spans=tuple(self._spans),
        )


def message_seed(seed: int, key: StreamKey, number: int) -> int:
    """The seed of one message, 0 to 2**62 - 1."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in (seed, *key, number)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 2


def logprobs_misfit(mode: str, params: SamplingParams) -> str:
    """Why an engine's log-probabilities are not those of the distribution scaled by temperature; empty if they are.

    Greedy messages are never learned from; vLLM gives them log-probabilities at temperature 1 in either mode.

    >>> logprobs_misfit("raw_logprobs", SamplingParams(0, 8, 8)), logprobs_misfit("processed_logprobs", SamplingParams(0, 8, 8))
    ('', '')
    >>> logprobs_misfit("raw_logprobs", SamplingParams(0, 8, 8, temperature=0.7))
    'logprobs_mode raw_logprobs ignores temperature 0.7: start vLLM with --logprobs-mode processed_logprobs'
    >>> logprobs_misfit("processed_logprobs", SamplingParams(0, 8, 8, temperature=0.7, greedy=True))
    ''
    """
    if mode not in ("raw_logprobs", "processed_logprobs"):
        return f"logprobs_mode {mode} gives no log-probabilities"
    if params.greedy:
        return ""
    if mode == "raw_logprobs" and params.temperature != 1.0:
        return (
            f"logprobs_mode raw_logprobs ignores temperature {params.temperature}: start vLLM with "
            "--logprobs-mode processed_logprobs"
        )
    if mode == "processed_logprobs" and params.top_p != 1.0:
        return f"logprobs_mode processed_logprobs is of the nucleus of top_p {params.top_p}: sample with top_p 1"
    return ""
