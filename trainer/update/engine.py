"""The engine port: apply one update to the policy. The batch is plain numbers, so an engine can be anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class TrainedSequence:
    """One rollout as the update sees it.

    Attributes:
        group: 0-based group in batch order; groups stay whole in a minibatch.
        token_ids: All tokens, shape (T,), int32.
        logprobs: Log-probabilities as sampled, shape (T,), float32.
        mask: 1 where trained, shape (T,), uint8.
        advantage: Advantage of every trained token.
    """

    group: int
    token_ids: np.ndarray
    logprobs: np.ndarray
    mask: np.ndarray
    advantage: float

    @property
    def num_trained(self) -> int:
        """Trained tokens; the first token of a sequence has nothing before it and is never trained."""
        return int(self.mask[1:].sum())


@dataclass(frozen=True, eq=False)
class UpdateBatch:
    """Everything one training step learns from.

    Attributes:
        step: Training step, from 1.
        sequences: Valid rollouts in group order.
        num_groups: Groups in the batch, unusable ones included.
        num_zero_variance: Groups without a learning signal.
    """

    step: int
    sequences: tuple[TrainedSequence, ...]
    num_groups: int
    num_zero_variance: int

    @property
    def num_trained_tokens(self) -> int:
        """Sampled tokens that enter the update."""
        return sum(sequence.num_trained for sequence in self.sequences)


class Engine(Protocol):
    """Holds the policy's weights and the optimizer's state."""

    @property
    def model(self) -> PreTrainedModel:
        """The policy; samplers of the same process read its weights."""
        ...

    def update(self, batch: UpdateBatch) -> dict[str, float]:
        """Learn from one batch; returns metrics by name. Equal state and batch give equal weights."""
        ...

    def digest(self) -> str:
        """SHA-256 of the weights."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Everything but the weights that the next update depends on: tensors, numbers, strings."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a state; weights are loaded into :attr:`model`."""
        ...

    def close(self) -> None:
        """Let go of other processes; the engine is not used afterwards."""
        ...
