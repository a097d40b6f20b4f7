"""The loss of a policy update, token by token: pure functions of tensors of shape (N,), N trained tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from trainer.config import LossAggregation

LARGEST_LOG_RATIO = 20.0
LARGEST_KL = 10.0


class Surrogate(NamedTuple):
    """Per token: loss, ratio of new to old probability, and whether a clip decided."""

    loss_N: torch.Tensor
    ratio_N: torch.Tensor
    clipped_N: torch.Tensor


def clipped_surrogate(
    logprobs_N: torch.Tensor,
    old_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float = 10.0,
) -> Surrogate:
    """The clipped policy loss with an asymmetric range and a dual clip.

    With r = exp(logprob - old), L = max(-A r, -A clip(r, 1 - low, 1 + high)); where A < 0 also L = min(L, -A c).
    Sources: PPO (Schulman et al. 2017), asymmetric range (DAPO, Yu et al. 2025), dual clip (Ye et al. 2020).

    A ratio of 2 earns no more than 1.28 with A = 1, and costs at most 10 with A = -1:

    >>> ratio = torch.tensor([2.0, 2.0, 20.0, 0.5])
    >>> clipped_surrogate(ratio.log(), torch.zeros(4), torch.tensor([1.0, -1.0, -1.0, -1.0])).loss_N
    tensor([-1.2800,  2.0000, 10.0000,  0.8000])
    """
    log_ratio_N = (logprobs_N - old_logprobs_N).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio_N = log_ratio_N.exp()
    plain_N = -advantages_N * ratio_N
    bounded_N = -advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = torch.maximum(plain_N, bounded_N)
    ceiling_N = -advantages_N * dual_clip
    negative_N = advantages_N < 0
    clipped_N = (bounded_N > plain_N) | (negative_N & (loss_N > ceiling_N))
    loss_N = torch.where(negative_N, torch.minimum(loss_N, ceiling_N), loss_N)
    return Surrogate(loss_N, ratio_N.detach(), clipped_N.detach())


def k3_divergence(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy || reference): e^d - d - 1 with d = log ref - log policy (Schulman 2020).

    d is held within 20 and the result within 10, so that one token cannot decide an update.

    >>> k3_divergence(torch.tensor([0.0, -1.0]), torch.tensor([0.0, 0.0]))
    tensor([0.0000, 0.7183])
    """
    d_N = (reference_N - logprobs_N).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return (d_N.exp() - d_N - 1).clamp(max=LARGEST_KL)


def k1_divergence(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """The k1 estimate of KL(policy || reference): log policy - log ref (Schulman 2020); single values may be negative.

    The difference is held within 20.

    >>> k1_divergence(torch.tensor([0.0, -1.0]), torch.tensor([-0.5, 0.0]))
    tensor([ 0.5000, -1.0000])
    """
    return (logprobs_N - reference_N).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def truncated_importance(own_N: torch.Tensor, sampled_N: torch.Tensor, cap: float) -> torch.Tensor:
    """Trainer over sampler probability of each token, at most ``cap``: the weight that makes up for a sampler of
    other numbers or older weights (truncated importance sampling, Ionides 2008; for RL samplers Yao et al. 2025).

    >>> truncated_importance(torch.tensor([0.0, 0.0, -1.0]), torch.tensor([0.0, -9.0, 0.0]), 2.0)
    tensor([1.0000, 2.0000, 0.3679])
    """
    return (own_N - sampled_N).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp().clamp(max=cap)


def token_weights(num_tokens_B: Sequence[int], aggregation: LossAggregation, constant_tokens: int = 1) -> list[float]:
    """Weight of each token of sequence b, so that the loss is the weighted sum over all trained tokens.

    Args:
        num_tokens_B: trained tokens of every sequence of the minibatch; sequences without any don't count.
        aggregation: over tokens; over tokens of a sequence and then over sequences; or by a constant, so that
            neither length nor reward changes the weight of a token (Dr. GRPO, Liu et al. 2025).
        constant_tokens: what a sequence counts as under the last one, tokens.

    >>> token_weights([1, 3], LossAggregation.TOKEN_MEAN)
    [0.25, 0.25]
    >>> token_weights([1, 2], LossAggregation.SEQ_MEAN_TOKEN_MEAN)
    [0.5, 0.25]
    >>> token_weights([1, 2], LossAggregation.CONSTANT, 5)
    [0.1, 0.1]
    """
    if aggregation is LossAggregation.TOKEN_MEAN:
        return [1.0 / max(1, sum(num_tokens_B))] * len(num_tokens_B)
    num_sequences = sum(1 for num_tokens in num_tokens_B if num_tokens)
    if aggregation is LossAggregation.CONSTANT:
        return [1.0 / max(1, num_sequences * constant_tokens)] * len(num_tokens_B)
    return [1.0 / (num_sequences * num_tokens) if num_tokens else 0.0 for num_tokens in num_tokens_B]
