"""The plain torch engine: AdamW, linear warm-up, clipped gradients, minibatches. Deterministic on one machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.causal_lm import CausalLM, halves
from trainer.config import TrainerConfig
from trainer.engine import TrainedSequence, UpdateBatch
from trainer.logprobs import Padded, padded, score
from trainer.loss import Surrogate, clipped_surrogate, k3_divergence, token_weights
from trainer.minibatches import microbatches, minibatches
from trainer.weights import weights_digest


def learning_rate(peak: float, warmup_steps: int, num_updates: int) -> float:
    """The rate of the optimizer step behind ``num_updates`` earlier ones: linear from peak / warmup_steps up to peak.

    >>> [learning_rate(1.0, 4, num_updates) for num_updates in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return peak * min(1.0, (num_updates + 1) / max(1, warmup_steps))


class TorchEngine:
    """Updates a model in this process.

    Args:
        model: the policy.
        config: settings of the update.
        reference: frozen model for the KL term; needed if ``kl_coef`` is above 0.

    Raises:
        ValueError: a KL term is asked for without a reference model.
    """

    def __init__(
        self, model: PreTrainedModel, config: TrainerConfig, reference: PreTrainedModel | None = None
    ) -> None:
        if config.kl_coef > 0 and reference is None:
            raise ValueError(f"kl_coef is {config.kl_coef} but there is no reference model; pass one or set it to 0")
        torch.set_num_threads(config.num_threads)
        self._policy = halves(model.eval())
        self._reference = halves(reference.eval()) if reference is not None and config.kl_coef > 0 else None
        self._config = config
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, foreach=False
        )
        self._num_updates = 0

    @property
    def model(self) -> PreTrainedModel:
        """The policy."""
        return self._policy.model

    def digest(self) -> str:
        """SHA-256 of the weights."""
        return weights_digest(self.model)

    def state_dict(self) -> dict[str, object]:
        """Optimizer state, number of optimizer steps, torch's random state."""
        return {
            "optimizer": self._optimizer.state_dict(), "num_updates": self._num_updates,
            "torch_rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._num_updates = int(state["num_updates"])
        torch.set_rng_state(state["torch_rng"])

    def update(self, batch: UpdateBatch) -> dict[str, float]:
        """Learn from one batch.

        A minibatch without any learning signal, or whose gradient is not finite, leaves weights and optimizer
        as they are and is counted in ``num_skipped_updates``.
        """
        parts = minibatches(batch.sequences, self._config.num_minibatches)
        sums: dict[str, float] = defaultdict(float)
        if self._config.recompute_old_logprobs:
            parts = [self._with_own_logprobs(part, sums) for part in parts]
        for part in parts:
            self._minibatch(part, sums)
        return _metrics(sums, self._rate(max(0, self._num_updates - 1)))

    def _rate(self, num_updates: int) -> float:
        return learning_rate(self._config.learning_rate, self._config.warmup_steps, num_updates)

    def _needs_every_sequence(self) -> bool:
        return self._config.kl_coef > 0 or self._config.entropy_coef > 0

    def _minibatch(self, part: Sequence[TrainedSequence], sums: dict[str, float]) -> None:
        weights_B = token_weights([sequence.num_trained for sequence in part], self._config.loss_aggregation)
        pairs = [(sequence, weight) for sequence, weight in zip(part, weights_B, strict=True)
                 if sequence.advantage != 0.0 or self._needs_every_sequence()]
        for indices in microbatches([len(sequence.token_ids) for sequence, _ in pairs], self._config.token_budget):
            loss = self._loss([pairs[index] for index in indices], sums)
            loss.backward()
            sums["loss"] += float(loss.detach())
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._config.max_grad_norm)
        sums["num_minibatches"] += 1
        if pairs and bool(torch.isfinite(grad_norm)):
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate(self._num_updates)
            self._optimizer.step()
            self._num_updates += 1
            sums["grad_norm"] += float(grad_norm)
            sums["num_updates"] += 1
        self._optimizer.zero_grad(set_to_none=True)

    def _loss(self, pairs: Sequence[tuple[TrainedSequence, float]], sums: dict[str, float]) -> torch.Tensor:
        config, device = self._config, self._policy.device
        sequences = [sequence for sequence, _ in pairs]
        tokens = _tokens(sequences, device)
        num_trained_B = [sequence.num_trained for sequence in sequences]
        old_N = _recorded(sequences, device)
        advantages_N = _repeated([s.advantage for s in sequences], num_trained_B, device)
        weights_N = _repeated([weight for _, weight in pairs], num_trained_B, device)
        with self._autocast():
            scored = score(self._policy, tokens, config.temperature, config.entropy_coef > 0)
        surrogate = clipped_surrogate(
            scored.logprobs_N, old_N, advantages_N, config.clip_low, config.clip_high, config.dual_clip
        )
        loss_N = surrogate.loss_N
        if scored.entropy_N is not None:
            loss_N = loss_N - config.entropy_coef * scored.entropy_N
        if self._reference is not None:
            kl_N = k3_divergence(scored.logprobs_N, self._logprobs(self._reference, tokens))
            loss_N = loss_N + config.kl_coef * kl_N
            sums["reference_kl"] += float(kl_N.detach().sum())
        if not config.recompute_old_logprobs and not sums["num_updates"]:
            _count_gap(sums, scored.logprobs_N.detach(), old_N)
        _count(sums, scored.logprobs_N.detach(), old_N, surrogate)
        return (weights_N * loss_N).sum()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._policy.device.type, torch.bfloat16, enabled=self._config.dtype == "bfloat16")

    def _logprobs(self, policy: CausalLM, tokens: Padded) -> torch.Tensor:
        with torch.no_grad(), self._autocast():
            return score(policy, tokens, self._config.temperature).logprobs_N

    def _with_own_logprobs(self, part: Sequence[TrainedSequence], sums: dict[str, float]) -> list[TrainedSequence]:
        fresh: dict[int, TrainedSequence] = {}
        for indices in microbatches([len(sequence.token_ids) for sequence in part], self._config.token_budget):
            members = [part[index] for index in indices]
            logprobs_N = self._logprobs(self._policy, _tokens(members, self._policy.device))
            _count_gap(sums, logprobs_N, _recorded(members, self._policy.device))
            ends = np.cumsum([member.num_trained for member in members])[:-1]
            for index, member, own in zip(indices, members, np.split(logprobs_N.cpu().numpy(), ends), strict=True):
                logprobs_T = member.logprobs.copy()
                logprobs_T[1:][member.mask[1:] == 1] = own
                fresh[index] = replace(member, logprobs=logprobs_T)
        return [fresh[index] for index in range(len(part))]


def _tokens(sequences: Sequence[TrainedSequence], device: torch.device) -> Padded:
    return padded([s.token_ids for s in sequences], [s.mask for s in sequences], device)


def _recorded(sequences: Sequence[TrainedSequence], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([s.logprobs[1:][s.mask[1:] == 1] for s in sequences])).to(device)


def _repeated(values_B: Sequence[float], counts_B: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.repeat(np.array(values_B, np.float32), counts_B)).to(device)


def _count(sums: dict[str, float], logprobs_N: torch.Tensor, old_N: torch.Tensor, surrogate: Surrogate) -> None:
    sums["num_tokens"] += len(logprobs_N)
    sums["entropy"] -= float(logprobs_N.sum())
    sums["kl"] += float(k3_divergence(old_N, logprobs_N).sum())
    sums["ratio"] += float(surrogate.ratio_N.sum())
    sums["clipped"] += float(surrogate.clipped_N.sum())


def _count_gap(sums: dict[str, float], logprobs_N: torch.Tensor, recorded_N: torch.Tensor) -> None:
    gap_N = (logprobs_N - recorded_N).abs()
    sums["num_gap_tokens"] += len(gap_N)
    sums["gap"] += float(gap_N.sum())
    sums["gap_max"] = max(sums["gap_max"], float(gap_N.max()))


def _metrics(sums: Mapping[str, float], rate: float) -> dict[str, float]:
    """Means of what was summed. The gap is taken before the first optimizer step: 0 for a faithful sampler."""
    num_tokens, num_minibatches = max(1.0, sums["num_tokens"]), max(1.0, sums["num_minibatches"])
    return {
        "loss": sums["loss"] / num_minibatches,
        "kl": sums["kl"] / num_tokens,
        "reference_kl": sums["reference_kl"] / num_tokens,
        "clip_frac": sums["clipped"] / num_tokens,
        "mean_ratio": sums["ratio"] / num_tokens if sums["num_tokens"] else 1.0,
        "entropy": sums["entropy"] / num_tokens,
        "grad_norm": sums["grad_norm"] / max(1.0, sums["num_updates"]),
        "lr": rate,
        "logprob_gap_mean": sums["gap"] / max(1.0, sums["num_gap_tokens"]),
        "logprob_gap_max": sums["gap_max"],
        "num_optimizer_steps": sums["num_updates"],
        "num_skipped_updates": sums["num_minibatches"] - sums["num_updates"],
    }
