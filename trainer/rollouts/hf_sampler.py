"""The transformers sampler: all live episodes of a step in one batch, one cache kept across turns.

Every row starts at position 0 with its own tokens and all rows move forward by tokens, not by turns: a row
that still has environment tokens to read is fed those, a row in a message is fed what it sampled. So there is
no padding and no attention mask. When every row has several tokens to read they are read in one go. A message
that ends goes to its episode at once; a row whose episode is over leaves the batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.policy.causal_lm import CausalLM, halves
from trainer.policy.grouped_attention import use_grouped_attention
from trainer.policy.kv_cache import BufferedCache
from trainer.policy.template import Template
from trainer.rollouts.live_episode import LiveEpisode
from trainer.rollouts.sampler import OnProgress, OnRollout, Rollout, RolloutRequest, SamplingParams
from trainer.rollouts.token_choice import choose, uniforms

PREFILL_TOKENS = 32_768
"""Most tokens, over all rows, that are read in one go."""


class HFSampler:
    """Samples with a transformers model that lives in this process; its weights are read at every call."""

    def __init__(self, model: PreTrainedModel, template: Template) -> None:
        use_grouped_attention(model)
        self._halves = halves(model)
        self._template = template

    def rollout(
        self,
        requests: Sequence[RolloutRequest],
        params: SamplingParams,
        on_progress: OnProgress | None = None,
        on_rollout: OnRollout | None = None,
    ) -> list[Rollout]:
        """Play every request to its end; results in the order of the requests.

        Raises:
            NonFiniteLogits: the policy gives no distribution any more.
        """
        self._halves.model.eval()
        batch = _Batch(self._halves, self._template, requests, params)
        with torch.inference_mode():
            while batch.num_live:
                num_before = batch.num_live
                batch.advance()
                if on_progress is not None and batch.num_live < num_before:
                    on_progress(len(requests) - batch.num_live, len(requests))
                _hand_on(batch, on_rollout)
        _hand_on(batch, on_rollout)
        return batch.rollouts()


def _hand_on(batch: _Batch, on_rollout: OnRollout | None) -> None:
    for i in batch.take_ended():
        if on_rollout is not None:
            on_rollout(batch.rollout(i))


class _Batch:
    """What the model reads and says for all requests (index i), and the cache rows that are still live (slot s)."""

    def __init__(
        self, policy: CausalLM, template: Template, requests: Sequence[RolloutRequest], params: SamplingParams
    ) -> None:
        self._policy, self._params = policy, params
        self._limit = min(params.max_episode_tokens, policy.max_tokens)
        self._episodes = [LiveEpisode(request, template, params, policy.max_tokens) for request in requests]
        shape = (len(requests), self._limit)
        self._ids = np.zeros(shape, np.int64)
        self._logprobs = np.zeros(shape, np.float32)
        self._uniforms = np.empty(shape, np.float64)
        self._num_known = np.zeros(len(requests), np.int64)
        self._message_start = np.zeros(len(requests), np.int64)
        self._stop_ids = np.array(sorted(template.stop_ids), np.int64)
        self._cache = BufferedCache(policy.model.config, self._limit)
        self._position = 0
        for i, request in enumerate(requests):
            self._uniforms[i] = uniforms(params.seed, request.stream_key, self._limit)
            self._show(i)
        self._order = np.array([i for i, live in enumerate(self._episodes) if not live.is_over], np.int64)
        self._ended = [i for i, live in enumerate(self._episodes) if live.is_over]
        self.num_live = len(self._order)

    def _show(self, i: int) -> None:
        """Queue what an episode has shown behind its last message."""
        start, shown = int(self._num_known[i]), self._episodes[i].ids
        self._ids[i, start : len(shown)] = shown[start:]
        self._num_known[i] = self._message_start[i] = len(shown)

    def advance(self) -> None:
        """Feed every live row its next tokens, sample where a row has read everything, end what has ended."""
        rows = self._order[: self.num_live]
        room = max(1, PREFILL_TOKENS // self.num_live)
        end = self._position + min(int(self._num_known[rows].min()) - self._position, room)
        fed = torch.from_numpy(self._ids[rows, self._position : end]).to(self._policy.device)
        hidden = self._policy.decoder(input_ids=fed, past_key_values=self._cache, use_cache=True).last_hidden_state
        self._position = end
        slots = np.flatnonzero(self._num_known[rows] == end)
        if len(slots):
            sampling = rows[slots]
            self._sample(sampling, hidden[:, -1] if len(slots) == len(rows) else hidden[torch.from_numpy(slots), -1])
            self._end_messages(slots[self._has_ended(sampling)])

    def _sample(self, rows: np.ndarray, hidden: torch.Tensor) -> None:
        at = self._position
        logits = self._policy.head(hidden)
        numbers = torch.from_numpy(self._uniforms[rows, at]).to(logits.device)
        ids, logprobs = choose(logits, numbers, self._params)
        self._ids[rows, at] = ids.cpu().numpy()
        self._logprobs[rows, at] = logprobs.cpu().numpy()
        self._num_known[rows] = at + 1

    def _has_ended(self, rows: np.ndarray) -> np.ndarray:
        last = self._num_known[rows]
        stopped = np.isin(self._ids[rows, last - 1], self._stop_ids)
        too_long = last - self._message_start[rows] >= self._params.max_message_tokens
        return stopped | too_long | (last >= self._limit)

    def _end_messages(self, slots: np.ndarray) -> None:
        for slot in slots[::-1]:
            i = int(self._order[slot])
            live, message = self._episodes[i], slice(self._message_start[i], self._num_known[i])
            ids = self._ids[i, message].tolist()
            ended = "stop" if ids[-1] in self._stop_ids else "length"
            live.accept(live.ids, ids, self._logprobs[i, message].tolist(), ended, None)
            if live.is_over:
                self._drop(int(slot))
            else:
                self._show(i)

    def _drop(self, slot: int) -> None:
        last = self.num_live - 1
        self._ended.append(int(self._order[slot]))
        if slot != last:
            self._cache.move_row(last, slot)
            self._order[slot] = self._order[last]
        self.num_live = last

    def take_ended(self) -> list[int]:
        """Requests that have ended since the last time, in the order in which they did."""
        ended, self._ended = self._ended, []
        return ended

    def rollouts(self) -> list[Rollout]:
        """What was played, in the order of the requests."""
        return [live.rollout() for live in self._episodes]

    def rollout(self, i: int) -> Rollout:
        """What was played for one request."""
        return self._episodes[i].rollout()
