"""Opens a run's weights again, for a replay or a fork."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from schemas import Event, encode
from schemas.events import StepCompleted
from streams.log import LogGap
from trainer.checkpoint import (
    Checkpoint,
    checkpoint_name,
    complete_checkpoints,
    is_complete,
    load_training_state,
    load_weights,
    pin,
    write_checkpoint,
)
from trainer.config import TrainerConfig
from trainer.engine import Engine
from trainer.policy import Policy, load_policy
from trainer.repeat import learn_again
from trainer.torch_engine import TorchEngine
from trainer.view import RunView


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


def initial_engine(checkpoints: Path, config: TrainerConfig, step: int = 0) -> Opened:
    """Policy and engine as they were after a step whose checkpoint is kept; fresh at step 0.

    Raises:
        LogGap: the checkpoint is missing.
    """
    policy = initial_policy(checkpoints)
    reference = initial_policy(checkpoints).model.eval() if config.kl_coef > 0 else None
    opened = Opened(policy, TorchEngine(policy.model, config, reference))
    if step:
        found = next((c for c in complete_checkpoints(checkpoints) if c.step == step), None)
        if found is None:
            raise LogGap(f"{checkpoints / checkpoint_name(step)} is missing or incomplete: the run was forked there")
        load_weights(found, policy.model)
        opened.engine.load_state_dict(load_training_state(found)["engine"])
    return opened


def largest_difference(model: torch.nn.Module, checkpoints: Path, step: int) -> float | None:
    """Largest absolute difference of any weight to the checkpoint of a step; ``None`` if there is no such checkpoint."""
    found = next((c for c in complete_checkpoints(checkpoints) if c.step == step), None)
    if found is None:
        return None
    ours = {name: value.detach().clone() for name, value in model.state_dict().items()}
    load_weights(Checkpoint(found.path, step), model)
    theirs = model.state_dict()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def copy_start(source: Path, target: Path) -> None:
    """Copy the checkpoint of step 0 to another run.

    Raises:
        LogGap: it is missing.
    """
    start = source / checkpoint_name(0)
    if not is_complete(start):
        raise LogGap(f"{start} is missing or incomplete: a fork needs the initial weights of its parent")
    shutil.copytree(start, target / checkpoint_name(0), dirs_exist_ok=True)


def make_checkpoint(
    source: Path, target: Path, step: int, config: TrainerConfig, events: Iterable[Event], announcement: StepCompleted
) -> None:
    """Put the checkpoint of a step into another run: learned again from the newest earlier one where it was not kept.

    Args:
        source: checkpoints of the run that did the step.
        target: checkpoints of the run that takes it over.
        step: the step.
        config: settings under which the steps were learned.
        events: the source's events, bodies included.
        announcement: the event that announces the step in the target.

    Raises:
        LogGap: rollouts between the checkpoint and the step are missing, or learning them again gives other weights.
    """
    found = max((c for c in complete_checkpoints(source) if c.step <= step), key=lambda c: c.step)
    opened = initial_engine(source, config, found.step)
    view = RunView()
    view.hear(events)
    for learned in learn_again(view, lambda groups: view.trajectories, opened.engine, config, range(found.step + 1, step + 1)):
        if learned.recorded != learned.repeated:
            raise LogGap(f"step {learned.step}: learning it again gives other weights than recorded; fork at a kept checkpoint: "
                         f"{', '.join(str(c.step) for c in complete_checkpoints(source))}")
    made = write_checkpoint(
        target, step, opened.engine.model, opened.policy.tokenizer, {"engine": opened.engine.state_dict()}, encode(announcement),
        config.keep_checkpoints)
    pin(made)
