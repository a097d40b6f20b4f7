"""Checkpoints that are either whole or not there.

A checkpoint is a folder ``step-000012`` with the weights as safetensors, the tokenizer, the training state and
the event that announces its step. It is written next to its place, flushed, renamed, and marked complete last;
what has no marker, or not the files the marker lists, is never chosen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

MARKER = "COMPLETE"
PINNED = "PINNED"
STATE = "training_state.pt"
ANNOUNCEMENT = "step_completed.avro"
NAME = re.compile(r"step-(\d{6,})")

disable_progress_bar()  # transformers would draw one on the terminal for every checkpoint


class BrokenCheckpoint(ValueError):
    """A complete checkpoint that cannot be loaded."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; step 0 holds the weights a run starts from."""

    path: Path
    step: int

    @property
    def name(self) -> str:
        """Folder name."""
        return self.path.name


def checkpoint_name(step: int) -> str:
    """Folder name of the checkpoint of a step."""
    return f"step-{step:06d}"


def write_checkpoint(
    root: Path,
    step: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    state: Mapping[str, object],
    announcement: bytes,
    keep_last: int,
    keep_step: int | None = None,
) -> Checkpoint:
    """Write the checkpoint of a step, then delete the oldest complete ones.

    Args:
        root: folder of the run's checkpoints.
        step: training step.
        model: weights, saved as safetensors.
        tokenizer: saved beside them; None saves none.
        state: what the next update depends on: tensors, numbers, strings and containers of them.
        announcement: encoded event of the step, so that a restart can still send it; may be empty.
        keep_last: complete checkpoints to keep besides that of step 0, at least 1.
        keep_step: a step whose checkpoint is kept as well, as a rule the best one.
    """
    root.mkdir(parents=True, exist_ok=True)
    path, draft = root / checkpoint_name(step), root / f".draft-{checkpoint_name(step)}"
    for leftover in (path, draft):
        _remove(leftover)
    draft.mkdir()
    model.save_pretrained(draft, safe_serialization=True)
    if tokenizer is not None:
        tokenizer.save_pretrained(draft)
    torch.save(dict(state), draft / STATE)
    (draft / ANNOUNCEMENT).write_bytes(announcement)
    files = [file for file in sorted(draft.rglob("*")) if file.is_file()]
    sizes = {file.relative_to(draft).as_posix(): file.stat().st_size for file in files}
    for name in sizes:
        _flush(draft / name)
    _flush(draft)
    os.rename(draft, path)
    _flush(root)
    _mark_complete(path, sizes)
    keep_newest(root, keep_last, keep_step)
    return Checkpoint(path, step)


def _mark_complete(path: Path, sizes: Mapping[str, int]) -> None:
    draft = path / f".{MARKER}"
    draft.write_text(json.dumps(sizes, indent=1, sort_keys=True))
    _flush(draft)
    os.rename(draft, path / MARKER)
    _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    (path / MARKER).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def is_complete(path: Path) -> bool:
    """Whether a folder has its marker and every file the marker lists, in the right size."""
    try:
        sizes = json.loads((path / MARKER).read_text())
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def complete_checkpoints(root: Path) -> list[Checkpoint]:
    """All complete checkpoints of a folder, oldest first; none if the folder does not exist."""
    folders = [(NAME.fullmatch(path.name), path) for path in (root.iterdir() if root.is_dir() else ())]
    found = [Checkpoint(path, int(match[1])) for match, path in folders if match and is_complete(path)]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest_complete(root: Path) -> Checkpoint | None:
    """The newest complete checkpoint, if there is one."""
    found = complete_checkpoints(root)
    return found[-1] if found else None


def keep_newest(root: Path, num_kept: int, keep_step: int | None = None) -> None:
    """Delete all complete checkpoints but the newest ``num_kept``, that of ``keep_step``, and those a replay starts
    from: step 0 and pinned ones."""
    for checkpoint in complete_checkpoints(root)[: -max(1, num_kept)]:
        if checkpoint.step not in (0, keep_step) and not (checkpoint.path / PINNED).exists():
            _remove(checkpoint.path)


def best_step(rewards: Mapping[int, float]) -> int | None:
    """The step with the highest held-out reward, the first of equal ones; the untrained policy of step 0 never counts.

    >>> best_step({0: 0.9, 10: 0.4, 20: 0.6, 30: 0.6}), best_step({0: 0.9})
    (20, None)
    """
    trained = {step: reward for step, reward in rewards.items() if step and reward == reward}
    return min(trained, key=lambda step: (-trained[step], step)) if trained else None


def pin(checkpoint: Checkpoint) -> None:
    """Keep a checkpoint for ever."""
    (checkpoint.path / PINNED).touch()


def load_weights(checkpoint: Checkpoint, model: PreTrainedModel) -> None:
    """Put the weights of a checkpoint into a model of the same shape.

    Raises:
        BrokenCheckpoint: it holds another model.
    """
    try:
        loaded = type(model).from_pretrained(checkpoint.path, dtype=model.dtype, local_files_only=True)
        model.load_state_dict(loaded.state_dict())
    except (OSError, RuntimeError, ValueError) as error:
        raise BrokenCheckpoint(f"{checkpoint.path}: its weights do not fit the policy: {error}") from error


def load_training_state(checkpoint: Checkpoint) -> dict[str, object]:
    """The training state of a checkpoint; loading runs no code from the file."""
    return torch.load(checkpoint.path / STATE, map_location="cpu", weights_only=True)


def load_announcement(checkpoint: Checkpoint) -> bytes:
    """The encoded event of the checkpoint's step; empty if it has none."""
    return (checkpoint.path / ANNOUNCEMENT).read_bytes()
