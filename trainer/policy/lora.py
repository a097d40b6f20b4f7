"""Low-rank adapters (Hu et al. 2021) through ``peft``, and the plain model that everybody else reads.

Samplers, checkpoints and digests never see an adapter: they read a model of ordinary weights into which the adapters
are merged after every update. What has no adapter is shared between both models, not copied.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.config import TrainerConfig

ADAPTERS = "adapters"


class Trained(Protocol):
    """What an engine updates, beside what others read."""

    module: PreTrainedModel
    model: PreTrainedModel

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer changes."""
        ...

    def refresh(self) -> None:
        """Bring ``model`` up to date with ``module``."""
        ...

    def state_dict(self) -> dict[str, object]:
        """What ``model`` does not hold."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a state."""
        ...


class Whole:
    """All weights are trained: both are the same model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.module = self.model = model

    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return list(self.model.parameters())

    def refresh(self) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, object]:
        """Nothing beside the weights."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Nothing beside the weights."""


class Adapted:
    """Adapters are trained, everything else is frozen.

    Args:
        model: becomes the merged model; its present weights are the frozen base.
        config: rank, alpha and targets.
        seed: of the adapters' first weights.

    Raises:
        ValueError: no layer of the model has one of the target names, or no target is named and not all layers can be.
    """

    def __init__(self, model: PreTrainedModel, config: TrainerConfig, seed: int = 0) -> None:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        self.model = model
        shared = {id(p): p for p in model.parameters()}
        self.module = copy.deepcopy(model, shared)
        targets = list(config.lora_targets) or sorted(linear_names(model))
        if unreached := [] if config.lora_targets else not_linear(model):
            raise ValueError(
                f"{model.config.model_type}: empty lora_targets stand for all layers but the head, but {unreached[0]} and "
                f"{len(unreached) - 1} more weights, as of experts, are in no linear layer and would stay as they are: name "
                f"what to adapt, lora_targets = {targets}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            settings = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=targets)
            inject_adapter_in_model(settings, self.module)
        self._layers = {name: layer for name, layer in self.module.named_modules() if isinstance(layer, LoraLayer)}
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for name in self._layers:
            plain = model.get_submodule(name)
            plain.weight = nn.Parameter(plain.weight.detach().clone(), requires_grad=False)

    def parameters(self) -> list[nn.Parameter]:
        """The adapters."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge: base weight plus scaled product of the adapter's factors."""
        for name, layer in self._layers.items():
            merged = layer.get_base_layer().weight + layer.get_delta_weight("default")
            self.model.get_submodule(name).weight.copy_(merged)

    def state_dict(self) -> dict[str, object]:
        """The adapters; the base comes from the policy the run began with."""
        return {ADAPTERS: {name: p.detach().cpu() for name, p in self.module.named_parameters() if p.requires_grad}}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take the adapters back and merge them."""
        own = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        for name, value in state[ADAPTERS].items():
            own[name].copy_(value)
        self.refresh()


def linear_names(model: PreTrainedModel) -> set[str]:
    """Last names of all linear layers but the head."""
    head = model.get_output_embeddings()
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }


def not_linear(model: PreTrainedModel) -> list[str]:
    """Names of the weight matrices that are in neither a linear layer nor an embedding, such as fused experts."""
    reached = {
        id(p) for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding) for p in module.parameters()
    }
    return [name for name, p in model.named_parameters() if p.dim() > 1 and id(p) not in reached]


def trained_model(model: PreTrainedModel, config: TrainerConfig) -> Trained:
    """What an engine trains of a model: all of it, or adapters."""
    return Adapted(model, config) if config.lora_rank else Whole(model)
