"""The plain torch engine: AdamW, learning-rate schedule, clipped gradients, minibatches. One device, deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from trainer.config import TrainerConfig
from trainer.policy.causal_lm import halves
from trainer.policy.lora import trained_model
from trainer.update.engine import UpdateBatch
from trainer.update.objective import Objective, Sums, Weighted, metrics_of, schedule_of
from trainer.update.recompute import recomputing
from trainer.update.schedule import learning_rate as learning_rate
from trainer.weights.digest import weights_digest


class TorchEngine:
    """Updates a model in this process.

    Args:
        model: the policy.
        config: settings of the update.
        reference: frozen model for the KL term; needed if ``kl_coef`` is above 0.

    Raises:
        ValueError: a KL term is asked for without a reference model.
    """

    def __init__(self, model: PreTrainedModel, config: TrainerConfig, reference: PreTrainedModel | None = None) -> None:
        torch.set_num_threads(config.num_threads)
        self._trained = trained_model(model.eval(), config)
        self._objective = Objective(
            halves(self._trained.module),
            config,
            halves(reference.eval().to(model.device)) if reference is not None else None,
        )
        self._config, self._schedule = config, schedule_of(config)
        self._parameters = self._trained.parameters()
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, weight_decay=config.weight_decay, foreach=False
        )
        self._num_updates = 0

    @property
    def model(self) -> PreTrainedModel:
        """The policy."""
        return self._trained.model

    def digest(self) -> str:
        """SHA-256 of the weights."""
        return weights_digest(self.model)

    def state_dict(self) -> dict[str, object]:
        """Optimizer state, number of optimizer steps, torch's random state, adapters if there are any."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "num_updates": self._num_updates,
            "torch_rng": torch.get_rng_state(),
            **self._trained.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        self._trained.load_state_dict(state)
        self._optimizer.load_state_dict(state["optimizer"])
        self._num_updates = int(state["num_updates"])
        torch.set_rng_state(state["torch_rng"])

    def close(self) -> None:
        """Nothing to let go of."""

    def update(self, batch: UpdateBatch) -> dict[str, float]:
        """Learn from one batch.

        A minibatch without any learning signal, or whose gradient is not finite, leaves weights and optimizer
        as they are and is counted in ``num_skipped_updates``.
        """
        sums: Sums = defaultdict(float)
        with recomputing(self._trained.module, self._config.gradient_checkpointing):
            for part in self._objective.minibatches(batch, sums):
                self._minibatch(part, sums)
        self._trained.refresh()
        return metrics_of(sums, self._schedule.rate(max(0, self._num_updates - 1)))

    def _minibatch(self, part: Sequence[Weighted], sums: Sums) -> None:
        passes = self._objective.passes(part)
        for items in passes:
            loss = self._objective.loss(items, sums)
            loss.backward()
            sums["loss"] += float(loss.detach())
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        sums["num_minibatches"] += 1
        if passes and bool(torch.isfinite(grad_norm)):
            for group in self._optimizer.param_groups:
                group["lr"] = self._schedule.rate(self._num_updates)
            self._optimizer.step()
            self._num_updates += 1
            sums["grad_norm"] += float(grad_norm)
            sums["num_updates"] += 1
        self._optimizer.zero_grad(set_to_none=True)
