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

from environments.interface import CALL_FAILURES
from schemas.events import FinishReason
from trainer.policy.causal_lm import CausalLM, halves
from trainer.policy.grouped_attention import use_grouped_attention
from trainer.policy.kv_cache import BufferedCache
from trainer.policy.template import Template
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
    """Token arrays of all requests (index i), and the cache rows that are still live (slot s)."""

    def __init__(
        self, policy: CausalLM, template: Template, requests: Sequence[RolloutRequest], params: SamplingParams
    ) -> None:
        self._policy, self._template, self._requests, self._params = policy, template, requests, params
        self._limit = min(params.max_episode_tokens, policy.max_tokens)
        shape = (len(requests), self._limit)
        self._ids = np.zeros(shape, np.int64)
        self._logprobs = np.zeros(shape, np.float32)
        self._mask = np.zeros(shape, np.uint8)
        self._uniforms = np.empty(shape, np.float64)
        self._num_known = np.zeros(len(requests), np.int64)
        self._message_start = np.zeros(len(requests), np.int64)
        self._errors: dict[int, str] = {}
        self._stop_ids = np.array(sorted(template.stop_ids), np.int64)
        self._cache = BufferedCache(policy.model.config, self._limit)
        self._position = 0
        self._order = np.array([i for i in range(len(requests)) if self._open(i)], np.int64)
        self._ended = sorted(set(range(len(requests))) - set(self._order.tolist()))
        self.num_live = len(self._order)

    def _open(self, i: int) -> bool:
        request = self._requests[i]
        self._uniforms[i] = uniforms(self._params.seed, request.stream_key, self._limit)
        start = self._template.start_ids(request.task, tuple(request.episode.offered.values()))
        return self._show(i, [*start, *self._template.incoming_ids(request.episode.incoming)])

    def _show(self, i: int, ids: list[int]) -> bool:
        """Queue environment tokens; False if the episode had to be cut because they leave no room."""
        start = int(self._num_known[i])
        end = start + len(ids)
        if end == 0:
            task_id = self._requests[i].task.task_id
            raise ValueError(f"task {task_id}: the template {self._template.name} shows nothing at all")
        if end >= self._limit:
            self._requests[i].episode.cut(FinishReason.TOKEN_LIMIT)
            return False
        self._ids[i, start:end] = ids
        self._num_known[i] = self._message_start[i] = end
        return True

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
        self._mask[rows, at] = 1
        self._num_known[rows] = at + 1

    def _has_ended(self, rows: np.ndarray) -> np.ndarray:
        last = self._num_known[rows]
        stopped = np.isin(self._ids[rows, last - 1], self._stop_ids)
        too_long = last - self._message_start[rows] >= self._params.max_message_tokens
        return stopped | too_long | (last >= self._limit)

    def _end_messages(self, slots: np.ndarray) -> None:
        for slot in slots[::-1]:
            if not self._end_message(int(self._order[slot])):
                self._drop(int(slot))

    def _end_message(self, i: int) -> bool:
        """Give the message of row i to its episode; False if the episode is over."""
        episode = self._requests[i].episode
        ids = self._ids[i, self._message_start[i] : self._num_known[i]].tolist()
        if ids[-1] not in self._template.stop_ids:
            episode.cut(FinishReason.TOKEN_LIMIT)
            return False
        try:
            episode.step(self._template.message_text(ids))
        except CALL_FAILURES as error:
            self._errors[i] = f"message {len(episode.messages)}: {type(error).__name__}: {error}"
            episode.cut(FinishReason.ERROR)
        return not episode.done and self._show(i, self._template.incoming_ids(episode.incoming))

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
        return [self.rollout(i) for i in range(len(self._requests))]

    def rollout(self, i: int) -> Rollout:
        """What was played for one request."""
        request, end = self._requests[i], int(self._num_known[i])
        return Rollout(
            task_id=request.task.task_id,
            rollout_index=request.rollout_index,
            token_ids=self._ids[i, :end].astype(np.int32),
            logprobs=self._logprobs[i, :end].copy(),
            mask=self._mask[i, :end].copy(),
            episode=request.episode,
            error=self._errors.get(i, ""),
        )
