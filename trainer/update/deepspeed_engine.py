"""The DeepSpeed engine: one update shared by several processes, ZeRO stage 0 to 3, on GPUs (NCCL) or CPUs (gloo).

The first process runs the trainer's loop and uses this like any engine. The others call :meth:`DeepSpeedEngine.follow`:
they wait for what the first one was asked, and do their share of it. ``model`` is a whole, ordinary model in the first
process at every stage, so samplers, digests and checkpoints need not know how weights are spread.

The optimizer is torch's AdamW: unlike DeepSpeed's own it continues bit for bit from a saved state.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from trainer.config import TrainerConfig
from trainer.policy.causal_lm import halves
from trainer.policy.lora import trained_model
from trainer.update.engine import UpdateBatch
from trainer.update.objective import Objective, Sums, Weighted, metrics_of, schedule_of
from trainer.update.processes import Processes, loaded_deepspeed
from trainer.update.recompute import recomputing
from trainer.update.zero import Shards, Through, ds_config
from trainer.weights.digest import weights_digest

EQUAL_EVERYWHERE = frozenset(
    {"num_updates", "num_minibatches", "grad_norm", "num_dropped_groups", "num_refilled_groups"}
)
LARGEST = frozenset({"gap_max"})


class DeepSpeedEngine:
    """Updates a model with DeepSpeed.

    Args:
        model: the policy, the same in every process.
        config: settings of the update.
        reference: frozen model for the KL term; needed if ``kl_coef`` is above 0.

    Raises:
        ValueError: a KL term is asked for without a reference model.
    """

    def __init__(self, model: PreTrainedModel, config: TrainerConfig, reference: PreTrainedModel | None = None) -> None:
        torch.set_num_threads(config.num_threads)
        deepspeed = loaded_deepspeed()
        self._processes = Processes()
        self._config, self._schedule = config, schedule_of(config)
        self._trained = trained_model(model.eval(), config)
        spread = copy.deepcopy(self._trained.module) if config.zero_stage == 3 else self._trained.module
        policy = halves(spread)
        own = [parameter for parameter in spread.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(own, lr=config.learning_rate, weight_decay=config.weight_decay, foreach=False)
        self._engine, *_ = deepspeed.initialize(
            model=Through(spread), optimizer=optimizer, model_parameters=own, config=ds_config(config)
        )
        if config.zero_stage < 3:
            self._trained.model.to(self._engine.device)
        self._shards = Shards(self._engine, spread, self._trained.module, config.zero_stage)
        self._objective = Objective(
            policy, config, self._frozen(reference), self._processes, lambda run: self._engine(run)
        )
        self._spread = spread
        self._num_updates = 0

    def _frozen(self, reference: PreTrainedModel | None) -> object:
        return None if reference is None else halves(reference.eval().to(self._engine.device))

    @property
    def model(self) -> PreTrainedModel:
        """The policy, whole; up to date in the first process."""
        return self._trained.model

    def digest(self) -> str:
        """SHA-256 of the weights."""
        return weights_digest(self.model)

    def follow(self) -> None:
        """Do this process's share of everything the first one is asked, until that one closes."""
        while (told := self._processes.heard()) is not None:
            name, value = told
            {"update": self._update, "state": self._state, "load": self._load}[name](value)

    def close(self) -> None:
        """Let the other processes go."""
        self._processes.tell(None)

    def update(self, batch: UpdateBatch) -> dict[str, float]:
        """Learn from one batch; see :meth:`trainer.update.torch_engine.TorchEngine.update`."""
        self._processes.tell(("update", batch))
        return self._update(batch)

    def state_dict(self) -> dict[str, object]:
        """Optimizer state of every process, number of optimizer steps, torch's random state, adapters."""
        self._processes.tell(("state", None))
        return self._state(None)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a state of :meth:`state_dict`.

        Raises:
            ValueError: the state was saved under another ZeRO stage or number of processes.
        """
        ours = (self._config.zero_stage, self._processes.size)
        theirs = (state.get("zero_stage"), len(state.get("shards", ())))
        if ours != theirs:
            raise ValueError(
                f"the checkpoint's optimizer state is of (ZeRO stage, processes) {theirs}, this run's "
                f"engine has {ours}: resume with the same engine, zero_stage and num_processes"
            )
        common = {name: value for name, value in state.items() if name != "shards"}
        self._processes.tell(("load", common))
        self._load(common, state["shards"])

    def _update(self, batch: UpdateBatch) -> dict[str, float]:
        sums: Sums = defaultdict(float)
        with recomputing(self._spread, self._config.gradient_checkpointing):
            for part in self._objective.minibatches(batch, sums):
                self._minibatch(part, sums)
        self._shards.bring_home()
        self._trained.refresh()
        total = self._processes.summed(sums, EQUAL_EVERYWHERE, LARGEST)
        return metrics_of(total, self._schedule.rate(max(0, self._num_updates - 1)))

    def _minibatch(self, part: Sequence[Weighted], sums: Sums) -> None:
        sums["num_minibatches"] += 1
        shares = self._processes.share(self._objective.passes(part))
        for number, (items, is_mine) in enumerate(shares):
            self._engine.set_gradient_accumulation_boundary(number == len(shares) - 1)
            kept = sums if is_mine else defaultdict(float, num_updates=sums["num_updates"])
            loss = self._objective.loss(items, kept) * float(is_mine)
            self._engine.backward(loss * self._processes.size, scale_wrt_gas=False)
            kept["loss"] += float(loss.detach())
        if shares:
            for group in self._engine.optimizer.param_groups:
                group["lr"] = self._schedule.rate(self._num_updates)
            grad_norm = self._shards.step(self._config.max_grad_norm)
            if grad_norm is not None:
                self._num_updates += 1
                sums["grad_norm"] += grad_norm
                sums["num_updates"] += 1

    def _state(self, _: None) -> dict[str, object]:
        """The whole state in the first process; the others keep none of it."""
        return {
            "shards": self._processes.first_gathers(self._shards.optimizer_state()),
            "num_updates": self._num_updates,
            "zero_stage": self._config.zero_stage,
            "torch_rng": torch.get_rng_state(),
            **self._trained.state_dict(),
        }

    def _load(self, state: Mapping[str, object], shards: Sequence[object] | None = None) -> None:
        self._trained.load_state_dict(state)
        self._shards.send_out()
        self._shards.load_optimizer_state(self._processes.first_scatters(shards))
        self._num_updates = int(state["num_updates"])
        torch.set_rng_state(state["torch_rng"])
