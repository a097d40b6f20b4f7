"""Where a run stands between two steps: what a checkpoint holds of it, and how the trainer goes on from there.

A checkpoint holds weights, the engine's state, the event that announces its step, and the log's cursor: how many events of
each lasting kind the trainer had heard. The cursor counts events and not offsets, for offsets are another thing on another
broker. Nothing is skipped by it: a restart hears the log from its beginning and takes its place in it from the step. The
cursor is compared with what was heard, so that weights are never put on top of a log that does not hold how they came about.
"""

from __future__ import annotations

from schemas import HELDOUT, decode, encode
from schemas.events import StepCompleted
from streams.log.port import LogGap
from trainer.setup import DigestMismatch, TrainerSetup
from trainer.view import RunView
from trainer.weights.checkpoint import (
    Checkpoint,
    checkpoint_name,
    is_complete,
    latest_complete,
    load_announcement,
    load_training_state,
    load_weights,
    write_checkpoint,
)


def restore(setup: TrainerSetup, view: RunView) -> int:
    """Load the last complete checkpoint, or write that of step 0 if there is none; returns its step.

    Raises:
        DigestMismatch: the weights are not those the log says.
        LogGap: the log ends before the checkpoint.
    """
    checkpoint = latest_complete(setup.checkpoints)
    if checkpoint is None:
        if view.weights_digest not in ("", setup.engine.digest()):
            raise DigestMismatch(
                f"run {setup.run_id} started from weights {view.weights_digest}, but the policy given "
                f"has {setup.engine.digest()}"
            )
        save(setup, view, 0, b"")
        return 0
    state = load_training_state(checkpoint)
    refuse_lost_log(checkpoint, state.get("cursor", {}), view.cursor)
    load_weights(checkpoint, setup.engine.model)
    setup.engine.load_state_dict(state["engine"])
    announcement = load_announcement(checkpoint)
    if announcement:
        announce(setup, view, decode(announcement))
    recorded = view.steps[checkpoint.step].weights_digest if checkpoint.step in view.steps else view.weights_digest
    if recorded not in ("", setup.engine.digest()):
        raise DigestMismatch(
            f"{checkpoint.path} holds weights {setup.engine.digest()}, the log says {recorded} of step "
            f"{checkpoint.step}"
        )
    view.forget_before(checkpoint.step + 1)
    return checkpoint.step


def refuse_lost_log(checkpoint: Checkpoint, cursor: dict[str, int], heard: dict[str, int]) -> None:
    """Compare the cursor of a checkpoint with what the log holds; kinds that a checkpoint does not name are passed over.

    Raises:
        LogGap: the log holds less; the text names the kind and both numbers.
    """
    for kind, num_heard in heard.items():
        if num_heard < cursor.get(kind, 0):
            raise LogGap(
                f"{checkpoint.path} was written behind {cursor[kind]} events {kind}, the log holds {num_heard}: it lost its "
                "end, or is another run's; restore the log from the archive"
            )


def save(setup: TrainerSetup, view: RunView, step: int, announcement: bytes) -> None:
    """Write the checkpoint of the step whose weights the engine holds."""
    write_checkpoint(
        setup.checkpoints,
        step,
        setup.engine.model,
        setup.tokenizer,
        {"engine": setup.engine.state_dict(), "cursor": view.cursor},
        announcement,
        setup.config.keep_checkpoints,
        view.best_step(HELDOUT) if setup.config.keep_best else None,
    )


def save_if_best(setup: TrainerSetup, view: RunView, step: int) -> None:
    """Write a checkpoint of the step with the best held-out reward if none was due: what is not written cannot be kept."""
    is_best = setup.config.keep_best and view.best_step(HELDOUT) == step
    if is_best and not is_complete(setup.checkpoints / checkpoint_name(step)):
        save(setup, view, step, encode(view.steps[step]))


def announce(setup: TrainerSetup, view: RunView, done: StepCompleted) -> None:
    """Write the event of a step unless the log holds it."""
    if done.step not in view.steps:
        setup.say(view, [done])
