"""Where DeepSpeed keeps weights and optimizer state at each ZeRO stage, and how to reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from trainer.config import TrainerConfig
from trainer.update.logprobs import Scored


def ds_config(config: TrainerConfig) -> dict[str, object]:
    """DeepSpeed's own settings. Weights stay float32 and bfloat16 is autocast, as in the torch engine."""
    zero: dict[str, object] = {"stage": config.zero_stage}
    if config.offload_optimizer and config.zero_stage:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 10**9,
        "gradient_clipping": config.max_grad_norm if config.zero_stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


class Through(nn.Module):
    """The root DeepSpeed watches: runs a function that uses the model inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[], Scored]) -> Scored:
        """What ``run`` gives."""
        scored = run()
        return tuple(scored)


class Shards:
    """Weights and optimizer state of one process.

    Args:
        engine: DeepSpeed's engine.
        spread: the module inside, whose weights DeepSpeed may have taken apart.
        home: the same module, whole; the same object below stage 3.
        stage: ZeRO stage.
    """

    def __init__(self, engine: object, spread: nn.Module, home: nn.Module, stage: int) -> None:
        self._engine, self._stage = engine, stage
        named = dict(home.named_parameters())
        self._pairs = [(parameter, named[name]) for name, parameter in spread.named_parameters()]

    def step(self, max_grad_norm: float) -> float | None:
        """Apply the accumulated gradients; their norm, or None if it is not finite and nothing was changed."""
        if self._stage:
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm())
            return norm if not self._engine.optimizer.overflow else None
        own = [parameter for parameter, _ in self._pairs if parameter.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(own, max_grad_norm)
        if not bool(torch.isfinite(norm)):
            self._engine.zero_grad()
            return None
        self._engine.step()
        return float(norm)

    @torch.no_grad()
    def bring_home(self) -> None:
        """Stage 3: collect the trained weights in the first process's whole module."""
        if self._stage == 3:
            for parameter, whole in self._pairs:
                if parameter.requires_grad:
                    with _whole(parameter):
                        whole.copy_(parameter)

    @torch.no_grad()
    def send_out(self) -> None:
        """Give every process the weights of the first one's whole module."""
        for parameter, whole in self._pairs:
            if self._stage == 3:
                with _whole(parameter, modifier_rank=0):
                    if dist.get_rank() == 0:
                        parameter.copy_(whole)
            else:
                dist.broadcast(parameter.data, src=0)
        if self._stage:
            self._engine.optimizer.refresh_fp32_params()
        self.bring_home()

    def _masters(self) -> list[torch.Tensor]:
        """The tensors the optimizer keeps state for."""
        optimizer = self._engine.optimizer
        if self._stage == 0:
            return [parameter for parameter, _ in self._pairs if parameter.requires_grad]
        return list(
            optimizer.fp32_partitioned_groups_flat if self._stage == 3 else optimizer.single_partition_of_fp32_groups
        )

    @property
    def _state(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        return (self._engine.optimizer.optimizer if self._stage else self._engine.optimizer).state

    def optimizer_state(self) -> list[dict[str, torch.Tensor]]:
        """State of this process's share, in main memory."""
        return [
            {name: value.detach().cpu().clone() for name, value in self._state[master].items()}
            for master in self._masters()
        ]

    def load_optimizer_state(self, saved: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Take a state of :meth:`optimizer_state` back."""
        for master, values in zip(self._masters(), saved, strict=True):
            self._state[master] = {
                name: value.clone() if name == "step" else value.to(master.device, copy=True)
                for name, value in values.items()
            }


def _whole(parameter: nn.Parameter, modifier_rank: int | None = None) -> object:
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=modifier_rank)
