"""``rods fork``: a new run that shares the past of another and goes on, or learns, with other settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from commands.config import ConfigError, RunConfig, parsed_value, put, validated
from commands.folder import RunFolder, find_run
from commands.run import new_run_id
from schemas import TOPICS, Event
from schemas.events import RunStarted, StepCompleted
from streams.archive import ArchiveLog
from streams.fork import ForkMode, renamed, shared_past
from streams.observer import Observer


def events_of(folder: RunFolder) -> list[Event]:
    """Every event of a run, bodies included, from its archive.

    Raises:
        ConfigError: the run has no archive, or one without its start.
    """
    if not folder.archive.is_dir():
        raise ConfigError(f"{folder.path} has no archive folder")
    archive = ArchiveLog(folder.archive)
    topics = [topic for topic in TOPICS if topic in archive.partitions]
    events = Observer(archive, topics, archive.partitions, folder.run_id).catch_up()
    if not any(isinstance(event, RunStarted) for event in events):
        raise ConfigError(f"{folder.archive} holds no RunStarted of run {folder.run_id}: there is nothing to read yet")
    return events


def start_of(events: Sequence[Event]) -> RunStarted:
    """The start of the run that some events are of."""
    return next(event for event in events if isinstance(event, RunStarted))


def changed_config(parent: RunFolder, overrides: Sequence[str]) -> RunConfig:
    """The parent's configuration with some settings changed.

    Raises:
        ConfigError: an override is wrong, or touches what the shared past was made with.
    """
    tree = parent.config()
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or "." not in key:
            raise ConfigError(f"--set {override!r}: expected section.key=value")
        if key.split(".")[0] in ("tasks", "policy", "kafka"):
            raise ConfigError(f"--set {key}: a fork shares its parent's tasks, policy and topics; start a new run instead")
        put(tree, key.strip().split("."), parsed_value(text.strip()))
    return validated(tree, f"fork of {parent.run_id}")


def fork(parent: RunFolder, at_step: int, mode: ForkMode, overrides: Sequence[str], runs: Path) -> RunFolder:
    """Prepare the run folder of a fork; ``rods run --resume`` then goes on with it.

    Raises:
        NothingToFork: the parent did not complete that step.
        LogGap: weights of that step can neither be found nor learned again.
    """
    from trainer.reopen import copy_start, make_checkpoint

    config = changed_config(parent, overrides)
    events = events_of(parent)
    started = start_of(events)
    folder = RunFolder((runs / new_run_id(config)).resolve()).create(config)
    past = renamed(shared_past(events, at_step, mode), folder.run_id)
    opening = replace(
        renamed([started], folder.run_id)[0], caused_by=started.event_id, occurred_at_ms=0, config_json=config.as_json(),
        seed=config.run.seed, parent_run_id=parent.run_id, forked_at_step=at_step, fork_mode=mode.value)
    archive = ArchiveLog(folder.archive, ArchiveLog(parent.archive).partitions)
    archive.append([opening, *past])
    archive.close()
    copy_start(parent.checkpoints, folder.checkpoints)
    if mode is ForkMode.CONTINUE:
        old = validated(parent.config(), str(parent.config_file)).trainer
        last = max((e for e in past if isinstance(e, StepCompleted)), key=lambda e: e.step)
        make_checkpoint(parent.checkpoints, folder.checkpoints, at_step, old, events, last)
    return folder


def show(name: str, at_step: int, mode: ForkMode, overrides: Sequence[str], runs: Path, as_json: bool, console: Console) -> None:
    """Prepare a fork and say how to go on."""
    parent = find_run(name, runs)
    folder = fork(parent, at_step, mode, overrides, runs)
    if as_json:
        print(json.dumps({"run_id": folder.run_id, "parent_run_id": parent.run_id, "forked_at_step": at_step, "mode": mode.value,
                          "folder": str(folder.path)}))
        return
    console.print(f"{folder.run_id} shares the past of {parent.run_id} up to step {at_step} ({mode.value})", highlight=False)
    console.print(f"go on with: rods run --resume {folder.run_id}", highlight=False, soft_wrap=True)
