"""Which token comes next: a pure function of logits and one uniform number per row.

The random numbers of a rollout are a function of a seed and a stream key and belong to positions in the
episode, so the same rollout draws the same numbers whatever else is in the batch.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from trainer.rollouts.sampler import SamplingParams, StreamKey

LARGEST_UNIFORM = 1.0 - 2.0**-50


class NonFiniteLogits(FloatingPointError):
    """The policy gave no distribution to sample from: its weights have diverged."""


def uniforms(seed: int, key: StreamKey, num_positions: int) -> np.ndarray:
    """Uniform numbers in [0, 1) of one rollout, one for each position, shape (num_positions,), float64."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in (seed, *key)).encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return np.minimum(generator.random(num_positions), LARGEST_UNIFORM)


def nucleus(probs_RV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Probabilities with everything outside the smallest set of mass ``top_p`` set to 0 (Holtzman et al. 2020).

    >>> nucleus(torch.tensor([[0.5, 0.3, 0.2]]), 0.7)
    tensor([[0.5000, 0.3000, 0.0000]])
    """
    sorted_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
    before_RV = sorted_RV.cumsum(-1) - sorted_RV
    return torch.zeros_like(probs_RV).scatter(-1, order_RV, sorted_RV.masked_fill(before_RV >= top_p, 0.0))


def choose(
    logits_RV: torch.Tensor, uniforms_R: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (R,) int64 and their log-probabilities (R,) float32, by inverting the distribution function.

    Args:
        logits_RV: logits.
        uniforms_R: float64 numbers in [0, 1).
        params: temperature, nucleus, greedy.

    Raises:
        NonFiniteLogits: a row is not a distribution.
    """
    scaled_RV = logits_RV.float() if params.temperature == 1.0 else logits_RV.float() / params.temperature
    logprobs_RV = torch.log_softmax(scaled_RV, dim=-1)
    if params.greedy:
        ids_R1 = logprobs_RV.argmax(-1, keepdim=True)
    else:
        probs_RV = logprobs_RV.exp()
        kept_RV = probs_RV if params.top_p == 1.0 else nucleus(probs_RV, params.top_p)
        cumulated_RV = kept_RV.cumsum(-1, dtype=torch.float64)
        targets_R1 = uniforms_R[:, None] * cumulated_RV[:, -1:]
        ids_R1 = torch.searchsorted(cumulated_RV, targets_R1, right=True).clamp_(max=logits_RV.shape[1] - 1)
    chosen_R = logprobs_RV.gather(1, ids_R1)[:, 0]
    if not bool(torch.isfinite(chosen_R).all()):
        bad = int((~torch.isfinite(chosen_R)).nonzero()[0, 0])
        raise NonFiniteLogits(f"row {bad}: logits are not finite; the weights have diverged, lower the learning rate")
    return ids_R1[:, 0], chosen_R
