"""What an update minimises, and how a batch is cut for it: the part of an engine that is the same in all engines.

A batch becomes minibatches, one for each optimizer step, and these become forward passes by token budget. Token
weights are those of the whole minibatch, so the sum over its passes, wherever they run, is its loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from trainer.config import TrainerConfig
from trainer.policy.causal_lm import CausalLM
from trainer.policy.grouped_attention import use_grouped_attention
from trainer.update.engine import TrainedSequence, UpdateBatch
from trainer.update.logprobs import Padded, Scored, packed, padded, score
from trainer.update.loss import (
    Surrogate,
    clipped_surrogate,
    k1_divergence,
    k3_divergence,
    token_weights,
    truncated_importance,
)
from trainer.update.minibatches import chosen, microbatches, minibatches, packs
from trainer.update.ranks import SINGLE_RANK, Ranks
from trainer.update.schedule import Schedule

Sums = defaultdict[str, float]
PROBE_TOKENS = 256
"""Longest of the sequences on which packing is tried."""
PACKING_TOLERANCE = 1e-4
"""Largest difference between log-probabilities of packed and of padded sequences, nats, in float32."""
ESTIMATORS = {"k1": k1_divergence, "k3": k3_divergence}


class PackingMisfit(ValueError):
    """Packing would let sequences of this policy see each other."""


@dataclass(frozen=True, eq=False)
class Weighted:
    """A sequence with the weight of each of its tokens, and what the sampler said where that is asked for."""

    sequence: TrainedSequence
    weight: float
    sampled: np.ndarray | None = None


Pass = Sequence[Weighted]


class Objective:
    """The loss of one policy under given settings.

    Args:
        policy: the model.
        config: settings of the update.
        reference: frozen model for the KL term; needed if ``kl_coef`` is above 0.
        ranks: the processes that share the passes of a minibatch.
        through: runs a forward pass of the policy; for engines that must be asked first.

    Raises:
        ValueError: a KL term is asked for without a reference model.
    """

    def __init__(
        self,
        policy: CausalLM,
        config: TrainerConfig,
        reference: CausalLM | None = None,
        ranks: Ranks = SINGLE_RANK,
        through: Callable[[Callable[[], Scored]], Scored] = lambda run: run(),
    ) -> None:
        if config.kl_coef > 0 and reference is None:
            raise ValueError(f"kl_coef is {config.kl_coef} but there is no reference model; pass one or set it to 0")
        self._config, self._ranks, self._through = config, ranks, through
        self._policy = self._packable(policy, through) if config.packing else policy
        self._reference = reference if config.kl_coef > 0 else None
        if self._reference is not None and config.packing:
            self._reference = self._packable(self._reference, lambda run: run())

    @torch.no_grad()
    def _packable(self, policy: CausalLM, through: Callable[[Callable[[], Scored]], Scored]) -> CausalLM:
        """The policy, packed in a way that gives the log-probabilities of padded sequences: ours first, then transformers'.

        Raises:
            PackingMisfit: no way does.
        """
        longest, vocab_size = min(policy.max_tokens, PROBE_TOKENS), policy.model.config.vocab_size
        lengths = (longest, longest // 2 + 1, 3, longest // 3 + 1)
        ids = [(7_919 * np.arange(length) ** 2 + 13 * row) % vocab_size for row, length in enumerate(lengths)]
        masks = [np.ones(length, np.uint8) for length in lengths]

        def scored(way: CausalLM, tokens: Padded) -> torch.Tensor:
            return Scored(*through(lambda: score(way, tokens))).logprobs_N

        ways = [replace(policy, takes_lengths=True)] if use_grouped_attention(policy.model) else []
        truth = scored(policy, padded(ids, masks, policy.device))
        for way in [*ways, policy]:
            gap = float((scored(way, packed(ids, masks, policy.device)) - truth).abs().max())
            if gap <= PACKING_TOLERANCE:
                return way
        raise PackingMisfit(
            f"{policy.model.config.model_type}: packed sequences get log-probabilities up to {gap:.2g} nats from those of the "
            f"same sequences alone, {PACKING_TOLERANCE:g} are allowed: set trainer.packing=false"
        )

    def minibatches(self, batch: UpdateBatch, sums: Sums) -> list[list[Weighted]]:
        """Weighted sequences of each optimizer step, with old log-probabilities as the settings ask."""
        left = chosen(batch.sequences, self._config.zero_variance)
        sums["num_dropped_groups"] += left.num_dropped
        sums["num_refilled_groups"] += left.num_refilled
        parts = [self._weighted(part) for part in minibatches(left.sequences, self._config.num_minibatches)]
        return [self._with_own_logprobs(part, sums) for part in parts] if self._config.recompute_old_logprobs else parts

    def _weighted(self, part: Sequence[TrainedSequence]) -> list[Weighted]:
        config = self._config
        weights_B = token_weights(
            [sequence.num_trained for sequence in part],
            config.loss_aggregation,
            config.loss_constant_tokens or config.max_episode_tokens,
        )
        return [Weighted(sequence, weight) for sequence, weight in zip(part, weights_B, strict=True)]

    def passes(self, part: Sequence[Weighted]) -> list[Pass]:
        """The forward passes of a minibatch; sequences that add nothing to the loss have none."""
        every = self._config.kl_coef > 0 or self._config.entropy_coef > 0
        return self._cut([item for item in part if item.sequence.advantage != 0.0 or every])

    def _cut(self, items: Sequence[Weighted]) -> list[list[Weighted]]:
        cut = packs if self._config.packing else microbatches
        lengths_B = [len(item.sequence.token_ids) for item in items]
        return [[items[index] for index in indices] for indices in cut(lengths_B, self._config.token_budget)]

    def loss(self, items: Pass, sums: Sums) -> torch.Tensor:
        """The loss of one forward pass, a scalar with gradient; statistics are added to ``sums``."""
        config, device = self._config, self._policy.device
        sequences = [item.sequence for item in items]
        num_trained_B = [sequence.num_trained for sequence in sequences]
        old_N = _recorded(sequences, device)
        advantages_N = _repeated([s.advantage for s in sequences], num_trained_B, device)
        weights_N = _repeated([item.weight for item in items], num_trained_B, device)
        tokens = self._tokens(sequences)
        scored = self._score(tokens, config.entropy_coef > 0)
        surrogate = clipped_surrogate(
            scored.logprobs_N, old_N, advantages_N, config.clip_low, config.clip_high, config.dual_clip
        )
        loss_N = surrogate.loss_N
        if config.importance_cap > 0:
            loss_N = loss_N * self._importance(items, old_N, sums)
        if scored.entropy_N is not None:
            loss_N = loss_N - config.entropy_coef * scored.entropy_N
            sums["entropy_exact"] += float(scored.entropy_N.detach().sum())
        if self._reference is not None:
            with torch.no_grad(), self._autocast():
                reference_N = score(self._reference, tokens, config.temperature).logprobs_N
            kl_N = ESTIMATORS[config.kl_estimator](scored.logprobs_N, reference_N)
            loss_N = loss_N + config.kl_coef * kl_N
            sums["reference_kl"] += float(kl_N.detach().sum())
        if not config.recompute_old_logprobs and not sums["num_updates"]:
            _count_gap(sums, scored.logprobs_N.detach(), old_N)
        _count(sums, scored.logprobs_N.detach(), old_N, surrogate)
        return (weights_N * loss_N).sum()

    def _importance(self, items: Pass, old_N: torch.Tensor, sums: Sums) -> torch.Tensor:
        sampled_N = torch.from_numpy(np.concatenate([item.sampled for item in items])).to(old_N.device)
        importance_N = truncated_importance(old_N, sampled_N, self._config.importance_cap)
        sums["importance"] += float(importance_N.sum())
        sums["importance_capped"] += float((importance_N >= self._config.importance_cap).sum())
        return importance_N

    def _tokens(self, sequences: Sequence[TrainedSequence]) -> Padded:
        lay = packed if self._config.packing else padded
        return lay([s.token_ids for s in sequences], [s.mask for s in sequences], self._policy.device)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._policy.device.type, torch.bfloat16, enabled=self._config.dtype == "bfloat16")

    def _score(self, tokens: Padded, with_entropy: bool = False) -> Scored:
        with self._autocast():
            return Scored(*self._through(lambda: score(self._policy, tokens, self._config.temperature, with_entropy)))

    def _with_own_logprobs(self, part: Sequence[Weighted], sums: Sums) -> list[Weighted]:
        """The same sequences with the policy's log-probabilities before the update as the old ones."""
        own: dict[int, np.ndarray] = {}
        numbers = {id(item): number for number, item in enumerate(part)}
        for items, is_mine in self._ranks.share(self._cut(part)):
            sequences = [item.sequence for item in items]
            with torch.no_grad():
                logprobs_N = self._score(self._tokens(sequences)).logprobs_N
            if is_mine:
                _count_gap(sums, logprobs_N, _recorded(sequences, self._policy.device))
                ends = np.cumsum([sequence.num_trained for sequence in sequences])[:-1]
                pieces = np.split(logprobs_N.cpu().numpy(), ends)
                own |= {numbers[id(item)]: piece for item, piece in zip(items, pieces, strict=True)}
        own = self._ranks.merged(own)
        return [_relearned(item, own[number]) for number, item in enumerate(part)]


def _relearned(item: Weighted, own_N: np.ndarray) -> Weighted:
    trained_T = item.sequence.mask == 1
    trained_T[0] = False
    logprobs_T = item.sequence.logprobs.copy()
    logprobs_T[trained_T] = own_N
    return Weighted(replace(item.sequence, logprobs=logprobs_T), item.weight, item.sequence.logprobs[trained_T])


def _recorded(sequences: Sequence[TrainedSequence], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([s.logprobs[1:][s.mask[1:] == 1] for s in sequences])).to(device)


def _repeated(values_B: Sequence[float], counts_B: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.repeat(np.array(values_B, np.float32), counts_B)).to(device)


def _count(sums: Sums, logprobs_N: torch.Tensor, old_N: torch.Tensor, surrogate: Surrogate) -> None:
    sums["num_tokens"] += len(logprobs_N)
    sums["entropy"] -= float(logprobs_N.sum())
    sums["kl"] += float(k3_divergence(old_N, logprobs_N).sum())
    sums["ratio"] += float(surrogate.ratio_N.sum())
    sums["clipped"] += float(surrogate.clipped_N.sum())


def _count_gap(sums: Sums, logprobs_N: torch.Tensor, recorded_N: torch.Tensor) -> None:
    gap_N = (logprobs_N - recorded_N).abs()
    sums["num_gap_tokens"] += len(gap_N)
    sums["gap"] += float(gap_N.sum())
    sums["gap_kl"] += float(k3_divergence(recorded_N, logprobs_N).sum())
    sums["gap_max"] = float(np.maximum(sums["gap_max"], float(gap_N.max())))


def schedule_of(config: TrainerConfig) -> Schedule:
    """The course of the learning rate."""
    return Schedule(
        config.learning_rate, config.warmup_steps, config.lr_schedule, config.lr_decay_steps, config.lr_final_frac
    )


def metrics_of(sums: Mapping[str, float], rate: float) -> dict[str, float]:
    """Means of what was summed. The gap is taken before the first optimizer step: 0 for a faithful sampler, left out where
    no token was scored."""
    num_tokens, num_minibatches = max(1.0, sums["num_tokens"]), max(1.0, sums["num_minibatches"])
    found = {
        "loss": sums["loss"] / num_minibatches,
        "kl": sums["kl"] / num_tokens,
        "reference_kl": sums["reference_kl"] / num_tokens,
        "clip_frac": sums["clipped"] / num_tokens,
        "mean_ratio": sums["ratio"] / num_tokens if sums["num_tokens"] else 1.0,
        "entropy": sums["entropy"] / num_tokens,
        "grad_norm": sums["grad_norm"] / max(1.0, sums["num_updates"]),
        "lr": rate,
        "num_optimizer_steps": sums["num_updates"],
        "num_skipped_updates": sums["num_minibatches"] - sums["num_updates"],
        "num_dropped_groups": sums["num_dropped_groups"],
        "num_refilled_groups": sums["num_refilled_groups"],
    }
    if num_gap_tokens := sums["num_gap_tokens"]:
        found |= {
            "logprob_gap_mean": sums["gap"] / num_gap_tokens,
            "logprob_gap_max": sums["gap_max"],
            "logprob_gap_kl": sums["gap_kl"] / num_gap_tokens,
        }
    if sums["importance"]:
        found["importance_mean"] = sums["importance"] / num_tokens
        found["importance_capped_frac"] = sums["importance_capped"] / num_tokens
    if sums["entropy_exact"]:
        found["entropy_exact"] = sums["entropy_exact"] / num_tokens
    return found
