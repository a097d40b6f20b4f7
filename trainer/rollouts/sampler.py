"""The sampler port: play episodes with the current policy and return exactly what was sampled.

Every sampler promises token-in token-out: the ids that are returned are the ids that were shown and sampled,
never re-tokenised text, and every sampled token carries its log-probability and a mask of 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from environments.episode import Episode
from schemas.events import Task

StreamKey = tuple[object, ...]
OnProgress = Callable[[int, int], None]
"""Called with the number of finished rollouts and the number of all rollouts."""
OnRollout = Callable[["Rollout"], None]
"""Called with every rollout as soon as it has ended."""


@dataclass(frozen=True)
class SamplingParams:
    """How to sample.

    Attributes:
        seed: Master seed; together with a request's stream key it fixes the random numbers of a rollout.
        max_message_tokens: Longest assistant message, tokens; a longer one ends the episode.
        max_episode_tokens: Longest episode with everything shown, tokens; a longer one ends the episode.
        temperature: Divisor of the logits.
        top_p: Probability mass of the nucleus to sample from; 1 samples from everything.
        greedy: Take the likeliest token instead of sampling.
    """

    seed: int
    max_message_tokens: int
    max_episode_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}; greedy=True takes the likeliest")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if min(self.max_message_tokens, self.max_episode_tokens) < 1:
            raise ValueError("max_message_tokens and max_episode_tokens must be at least 1")

    def as_json(self, stop_ids: Iterable[int] = ()) -> str:
        """Everything that decides how tokens are sampled, as canonical JSON."""
        return json.dumps({**asdict(self), "stop_ids": sorted(stop_ids)}, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, eq=False)
class RolloutRequest:
    """One episode to play.

    Attributes:
        task: The task.
        episode: A fresh episode of that task; it is played to its end.
        rollout_index: Number of this rollout within its group.
        stream_key: What names the random numbers of this rollout: (step, task_id, rollout_index).
    """

    task: Task
    episode: Episode
    rollout_index: int
    stream_key: StreamKey


@dataclass(frozen=True, eq=False)
class Rollout:
    """One played episode.

    Attributes:
        task_id: The task.
        rollout_index: Number within the group.
        token_ids: All tokens in order, shape (T,), int32.
        logprobs: Log-probability of each sampled token under the distribution scaled by temperature (before
            a nucleus is cut), shape (T,), float32; 0 where the mask is 0.
        mask: 1 where the policy sampled the token, shape (T,), uint8.
        episode: The finished episode.
        error: What broke the episode from inside the environment; empty if nothing did.
        version_spans: (first token, policy version) of each run of sampled tokens, in order; empty where the sampler
            does not know versions, for then its caller does.
    """

    task_id: str
    rollout_index: int
    token_ids: np.ndarray
    logprobs: np.ndarray
    mask: np.ndarray
    episode: Episode
    error: str = ""
    version_spans: tuple[tuple[int, int], ...] = ()


class Sampler(Protocol):
    """Plays episodes."""

    def rollout(
        self,
        requests: Sequence[RolloutRequest],
        params: SamplingParams,
        on_progress: OnProgress | None = None,
        on_rollout: OnRollout | None = None,
    ) -> list[Rollout]:
        """Play every request to its end; results in the order of the requests."""
        ...
