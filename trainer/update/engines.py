"""The engine a configuration asks for."""

from __future__ import annotations

import os

import torch
from transformers import PreTrainedModel

from trainer.config import TrainerConfig
from trainer.update.engine import Engine
from trainer.update.torch_engine import TorchEngine


class EngineUnavailable(RuntimeError):
    """The configured engine is not installed; the text says how to get it."""


def engine_of(model: PreTrainedModel, config: TrainerConfig, reference: PreTrainedModel | None = None) -> Engine:
    """A fresh engine around a policy, which is moved to a GPU if there is one.

    Raises:
        EngineUnavailable: DeepSpeed or peft is asked for and not installed.
        ValueError: a KL term is asked for without a reference model.
    """
    try:
        if config.engine == "torch":
            return TorchEngine(model.to("cuda" if torch.cuda.is_available() else "cpu"), config, reference)
        from trainer.update.deepspeed_engine import DeepSpeedEngine

        return DeepSpeedEngine(model, config, reference)
    except ImportError as error:
        extra = "lora" if error.name == "peft" else "deepspeed"
        raise EngineUnavailable(f"{error}; install it with: pip install 'rods-streams[{extra}]'") from error


def is_follower(config: TrainerConfig) -> bool:
    """Whether this process only helps with updates: any but the first of ``torchrun`` under DeepSpeed."""
    return config.engine == "deepspeed" and os.environ.get("RANK", "0") != "0"
