"""Log-probabilities of given tokens under a model, without ever holding the logits of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from trainer.policy.causal_lm import CausalLM
from trainer.update.head_logprobs import HeadLogprobs, is_linear

LOGITS_AT_ONCE = 2**24
"""Most logits (tokens times vocabulary) that exist at a time; 64 MiB in float32. On a GPU four times as many."""


class Scored(NamedTuple):
    """Per trained token: log-probability, and entropy of the distribution it came from (nats)."""

    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor | None


class Padded(NamedTuple):
    """Sequences side by side, padded at the right; what is padded comes after everything that counts.

    With ``lengths`` they lie end to end in a single row instead.
    """

    ids_BT: torch.Tensor
    mask_BT: torch.Tensor
    lengths: tuple[int, ...] = ()


def padded(ids_B: Sequence[np.ndarray], mask_B: Sequence[np.ndarray], device: torch.device) -> Padded:
    """Tensors of shape (B, longest) of token ids (int64) and trained positions (bool)."""
    shape = (len(ids_B), max(len(ids_T) for ids_T in ids_B))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for row, (ids_T, mask_T) in enumerate(zip(ids_B, mask_B, strict=True)):
        ids[row, : len(ids_T)] = ids_T
        mask[row, : len(mask_T)] = mask_T
    return Padded(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))


def packed(ids_B: Sequence[np.ndarray], mask_B: Sequence[np.ndarray], device: torch.device) -> Padded:
    """The same as one row of shape (1, sum of lengths); the first token of a sequence is never scored."""
    ids, mask = np.concatenate(ids_B).astype(np.int64), np.concatenate(mask_B).astype(bool)
    lengths = tuple(len(ids_T) for ids_T in ids_B)
    mask[np.cumsum((0, *lengths[:-1]))] = False
    return Padded(torch.from_numpy(ids)[None].to(device), torch.from_numpy(mask)[None].to(device), lengths)


def hidden_states(policy: CausalLM, batch: Padded) -> torch.Tensor:
    """Last hidden states, shape (B, T, H).

    A causal model never looks at what comes later, so padding at the right needs no attention mask. Packed
    sequences start at position 0 each; see :class:`trainer.policy.causal_lm.CausalLM` for what keeps them apart.
    """
    if not batch.lengths:
        return policy.decoder(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
    positions = torch.cat([torch.arange(length) for length in batch.lengths])[None].to(policy.device)
    apart = {}
    if policy.takes_lengths:
        no_mask = torch.zeros((1, 1, 1, 1), device=policy.device)
        apart = {"sequence_lengths": batch.lengths, "attention_mask": no_mask}
    return policy.decoder(input_ids=batch.ids_BT, position_ids=positions, use_cache=False, **apart).last_hidden_state


def score(policy: CausalLM, batch: Padded, temperature: float = 1.0, with_entropy: bool = False) -> Scored:
    """Score every masked token given what stands before it, sequence by sequence.

    Args:
        policy: the model; gradients flow if they are enabled.
        batch: padded sequences; the first token of a row is never scored.
        temperature: divisor of the logits, as in sampling.
        with_entropy: also give entropies.
    """
    scored_BT = batch.mask_BT[:, 1:]
    hidden_NH, targets_N = hidden_states(policy, batch)[:, :-1][scored_BT], batch.ids_BT[:, 1:][scored_BT]
    at_once = max(1, LOGITS_AT_ONCE * (4 if hidden_NH.is_cuda else 1) // policy.model.config.vocab_size)
    if len(targets_N) > at_once and is_linear(policy.head):
        head = policy.head
        return Scored(
            *HeadLogprobs.apply(hidden_NH, head.weight, head.bias, targets_N, temperature, at_once, with_entropy)
        )
    pieces = list(zip(hidden_NH.split(at_once), targets_N.split(at_once), strict=True))
    again = len(pieces) > 1 and torch.is_grad_enabled()
    parts = [
        checkpoint(_score_piece, policy, *piece, temperature, with_entropy, use_reentrant=False)
        if again
        else _score_piece(policy, *piece, temperature, with_entropy)
        for piece in pieces
    ]
    logprobs_N = torch.cat([part.logprobs_N for part in parts])
    return Scored(logprobs_N, torch.cat([part.entropy_N for part in parts]) if with_entropy else None)


def _score_piece(
    policy: CausalLM, hidden_NH: torch.Tensor, targets_N: torch.Tensor, temperature: float, with_entropy: bool
) -> Scored:
    logits_NV = policy.head(hidden_NH).float()
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    total_N = torch.logsumexp(logits_NV, dim=-1)
    logprobs_N = logits_NV.gather(1, targets_N[:, None])[:, 0] - total_N
    if not with_entropy:
        return Scored(logprobs_N, None)
    return Scored(logprobs_N, total_N - (torch.softmax(logits_NV, dim=-1) * logits_NV).sum(-1))
