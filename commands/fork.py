"""``rods fork``: a new run that shares the past of another and goes on, or learns, with other settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from analysis.fork import ForkMode, renamed, shared_past
from commands.config import ConfigError, RunConfig, assignments, put, validated
from commands.folder import RunFolder, find_run
from commands.options import AsJson, Overrides, Runs, console
from commands.run import new_run_id
from schemas import TOPICS, Event
from schemas.events import RunStarted, StepCompleted
from streams.archive.index import require_whole
from streams.archive.segments import ArchiveLog
from streams.log.port import partition_counts
from streams.log.reader import EventReader

ASIDE = ".forking"
EMBEDDED = ("kafka.bootstrap_servers", "")
"""The one setting of the topics that a fork may change: it leaves its parent's broker for the embedded one."""


def fork_command(
    name: Annotated[str, typer.Argument(help="Run to fork: id or folder.")],
    at: Annotated[int, typer.Option("--at", help="Last step that is shared.")],
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    retrain: Annotated[
        bool, typer.Option(help="Learn the recorded rollouts again under the changed settings.")
    ] = False,
) -> None:
    """Prepare a new run that shares another's past; `rods run --resume` goes on with it."""
    mode = ForkMode.RETRAIN if retrain else ForkMode.CONTINUE
    parent = find_run(name, runs)
    folder = fork(parent, at, mode, overrides or [], runs)
    if as_json:
        print(
            json.dumps(
                {
                    "run_id": folder.run_id,
                    "parent_run_id": parent.run_id,
                    "forked_at_step": at,
                    "mode": mode.value,
                    "folder": str(folder.path),
                }
            )
        )
        return
    console.print(f"{folder.run_id} shares the past of {parent.run_id} up to step {at} ({mode.value})", highlight=False)
    console.print(f"go on with: rods run --resume {folder.run_id}", highlight=False, soft_wrap=True)


def events_of(folder: RunFolder) -> list[Event]:
    """Every event of a run, bodies included, from its archive.

    Raises:
        ConfigError: the run has no archive, or one without its start.
        LogGap: the archive is damaged.
    """
    if not folder.archive.is_dir():
        raise ConfigError(f"{folder.path} has no archive folder")
    require_whole(folder.archive)
    archive = ArchiveLog(folder.archive)
    topics = [topic for topic in TOPICS if topic in archive.partitions]
    events = EventReader(archive, topics, archive.partitions, folder.run_id).catch_up()
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
    for key, text in assignments(overrides):
        if key.partition(".")[0] in ("tasks", "policy", "kafka") and (key, text) != EMBEDDED:
            raise ConfigError(
                f"--set {key}: a fork shares its parent's tasks, policy and topics; start a new run instead"
            )
        put(tree, key, text)
    config = validated(tree, f"fork of {parent.run_id}")
    if config.kafka.bootstrap_servers:
        raise ConfigError(
            f"{parent.run_id} lies on the broker {config.kafka.bootstrap_servers}, where a pool agent would decide a past anew "
            f"that it did not hear: fork it onto the embedded broker with --set {'='.join(EMBEDDED)}"
        )
    return config


def opening_of(
    started: RunStarted, parent: RunFolder, run_id: str, config: RunConfig, at_step: int, mode: ForkMode
) -> RunStarted:
    """The start of the fork: the parent's, under another run id, with the changed settings and the name of the parent."""
    return replace(
        renamed([started], run_id)[0],
        caused_by=started.event_id,
        occurred_at_ms=0,
        config_json=config.as_json(),
        seed=config.run.seed,
        parent_run_id=parent.run_id,
        forked_at_step=at_step,
        fork_mode=mode.value,
    )


def fork(parent: RunFolder, at_step: int, mode: ForkMode, overrides: Sequence[str], runs: Path) -> RunFolder:
    """Prepare the run folder of a fork; ``rods run --resume`` then goes on with it.

    The folder is made aside and moved into place whole: a fork that fails or is killed leaves none.

    Raises:
        ConfigError: an override is wrong, or the parent has no archive.
        NothingToFork: the parent did not complete that step.
        LogGap: the archive is damaged, or weights of that step can neither be found nor learned again.
    """
    config = changed_config(parent, overrides)
    events = events_of(parent)
    run_id = new_run_id(config)
    past = renamed(shared_past(events, at_step, mode), run_id)
    opening = opening_of(start_of(events), parent, run_id, config, at_step, mode)
    target, aside = (runs / run_id).resolve(), (runs / ASIDE / run_id).resolve()
    try:
        folder = RunFolder(aside).create(config)
        write_archive(folder.archive, [opening, *past], config)
        write_checkpoints(parent, folder, at_step, mode, events, past)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):
            aside.parent.rmdir()
    return RunFolder(target)


def write_archive(root: Path, events: Sequence[Event], config: RunConfig) -> None:
    """Put events into a fresh archive, as the fork's topics will be."""
    kafka = config.kafka
    archive = ArchiveLog(root, partition_counts(TOPICS, kafka.num_decision_partitions, kafka.num_spread_partitions))
    archive.append(events)
    archive.close()


def write_checkpoints(
    parent: RunFolder, folder: RunFolder, at_step: int, mode: ForkMode, events: Sequence[Event], past: Sequence[Event]
) -> None:
    """The initial weights, and those of the fork's step unless it learns from the start.

    Raises:
        LogGap: they can neither be found nor learned again.
    """
    from trainer.replay.opening import copy_start, make_checkpoint

    copy_start(parent.checkpoints, folder.checkpoints)
    if mode is ForkMode.CONTINUE:
        old = parent.settings().trainer
        last = max((e for e in past if isinstance(e, StepCompleted)), key=lambda e: e.step)
        make_checkpoint(parent.checkpoints, folder.checkpoints, at_step, old, events, last)
