"""Opens a run's weights again, for a replay or a fork."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from schemas import Event, encode
from schemas.events import StepCompleted
from streams.log.port import LogGap
from trainer.config import TrainerConfig
from trainer.policy.loading import Policy, load_policy
from trainer.replay.learning import learn_again
from trainer.update.engine import Engine
from trainer.update.engines import engine_of
from trainer.view import RunView
from trainer.weights.checkpoint import (
    checkpoint_name,
    complete_checkpoints,
    is_complete,
    load_training_state,
    load_weights,
    pin,
    write_checkpoint,
)


class NoWeights(LogGap):
    """The initial weights of a run are not at hand."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A policy at the start of a run and an engine that holds it.

    Attributes:
        policy: the policy; its model is the engine's.
        engine: as it was after the step that was asked for.
        initial_digest: SHA-256 of the weights before the first step.
    """

    policy: Policy
    engine: Engine
    initial_digest: str


def initial_policy(checkpoints: Path | None, model: str = "", **spoken: object) -> Policy:
    """The policy a run started from: its checkpoint of step 0, or the model that was taken.

    Args:
        checkpoints: of the run; ``None`` where they are not at hand.
        model: folder of the model the run was configured with; the caller compares the weights digest.
        spoken: how that model is spoken to, as ``load_policy`` takes it; a checkpoint says it itself.

    Raises:
        NoWeights: neither is there.
    """
    disable_progress_bar()
    if checkpoints is not None and is_complete(checkpoints / checkpoint_name(0)):
        return load_policy(checkpoints / checkpoint_name(0))
    if model and Path(model).is_dir():
        return load_policy(model, **spoken)
    where = (
        f"{checkpoints / checkpoint_name(0)} is missing or incomplete"
        if checkpoints
        else "there is no folder of checkpoints"
    )
    raise NoWeights(f"{where}: the initial weights of the run are needed to learn it again")


def initial_engine(
    checkpoints: Path | None, config: TrainerConfig, step: int = 0, model: str = "", **spoken: object
) -> Opened:
    """Policy and engine as they were after a step whose checkpoint is kept; fresh at step 0. Always in this one process.

    Args:
        checkpoints, model, spoken: see :func:`initial_policy`.
        config: settings of the updates.
        step: the step.

    Raises:
        NoWeights: the initial weights are not at hand.
        LogGap: the checkpoint is missing, or holds the state of several processes.
        EngineUnavailable: DeepSpeed or peft is asked for and not installed.
    """
    policy = initial_policy(checkpoints, model, **spoken)
    reference = copy.deepcopy(policy.model).eval() if config.kl_coef > 0 else None
    engine = engine_of(policy.model, config, reference)
    opened = Opened(policy, engine, engine.digest())
    if step:
        found = next((c for c in complete_checkpoints(checkpoints) if c.step == step), None) if checkpoints else None
        if found is None:
            raise LogGap(
                f"the checkpoint {checkpoint_name(step)} is missing or incomplete in {checkpoints}: the run was forked there"
            )
        load_weights(found, engine.model)
        try:
            engine.load_state_dict(load_training_state(found)["engine"])
        except ValueError as error:
            raise LogGap(f"{found.path} cannot be continued in one process: {error}") from error
    return opened


def largest_difference(model: PreTrainedModel, checkpoints: Path | None, step: int) -> float | None:
    """Largest absolute difference of any weight to the checkpoint of a step; ``None`` if there is no such checkpoint.

    Raises:
        BrokenCheckpoint: it holds another model.
    """
    found = next((c for c in complete_checkpoints(checkpoints) if c.step == step), None) if checkpoints else None
    if found is None:
        return None
    theirs = copy.deepcopy(model)
    load_weights(found, theirs)
    ours = model.state_dict()
    return max(float((ours[name] - value).abs().max()) for name, value in theirs.state_dict().items())


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
        NoWeights: there is no checkpoint at or before the step.
        LogGap: rollouts between the checkpoint and the step are missing, or learning them again gives other weights.
    """
    kept = [c for c in complete_checkpoints(source) if c.step <= step]
    if not kept:
        raise NoWeights(
            f"{source} holds no complete checkpoint of step {step} or before: weights to learn it again from"
        )
    found = max(kept, key=lambda c: c.step)
    opened = initial_engine(source, config, found.step)
    view = RunView()
    view.hear(events)
    for learned in learn_again(
        view, lambda groups: view.trajectories, opened.engine, config, range(found.step + 1, step + 1)
    ):
        if learned.recorded != learned.repeated:
            raise LogGap(
                f"step {learned.step}: learning it again gives other weights than recorded; fork at a kept checkpoint: "
                f"{', '.join(str(c.step) for c in complete_checkpoints(source))}"
            )
    made = write_checkpoint(
        target,
        step,
        opened.engine.model,
        opened.policy.tokenizer,
        {"engine": opened.engine.state_dict()},
        encode(announcement),
        config.keep_checkpoints,
    )
    pin(made)
