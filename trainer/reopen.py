"""Opens a finished run's weights again, for a replay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from streams.log import LogGap
from trainer.checkpoint import Checkpoint, checkpoint_name, complete_checkpoints, is_complete, load_weights
from trainer.config import TrainerConfig
from trainer.engine import Engine
from trainer.policy import Policy, load_policy
from trainer.torch_engine import TorchEngine


@dataclass(frozen=True, slots=True)
class Opened:
    """A policy at the start of a run and an engine that holds it."""

    policy: Policy
    engine: Engine


def initial_policy(checkpoints: Path) -> Policy:
    """The policy a run started from: its checkpoint of step 0.

    Raises:
        LogGap: that checkpoint is missing.
    """
    disable_progress_bar()
    start = checkpoints / checkpoint_name(0)
    if not is_complete(start):
        raise LogGap(f"{start} is missing or incomplete: the initial weights of the run are needed to learn it again")
    return load_policy(start)


def initial_engine(checkpoints: Path, config: TrainerConfig) -> Opened:
    """Policy and a fresh engine at step 0."""
    policy = initial_policy(checkpoints)
    reference = initial_policy(checkpoints).model.eval() if config.kl_coef > 0 else None
    return Opened(policy, TorchEngine(policy.model, config, reference))


def largest_difference(model: torch.nn.Module, checkpoints: Path, step: int) -> float | None:
    """Largest absolute difference of any weight to the checkpoint of a step; ``None`` if there is no such checkpoint."""
    found = next((c for c in complete_checkpoints(checkpoints) if c.step == step), None)
    if found is None:
        return None
    ours = {name: value.detach().clone() for name, value in model.state_dict().items()}
    load_weights(Checkpoint(found.path, step), model)
    theirs = model.state_dict()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
