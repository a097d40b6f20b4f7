"""``rods rescore``: what a recorded run would have been under other rewards or detector settings, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.table import Table

from commands.config import parsed_value, put, validated
from commands.folder import RunFolder, find_run
from commands.fork import events_of
from schemas.events import RolloutGroupCompleted, TaskSeeded, TaskSynthesized, TrajectoryRecorded
from streams.pool_config import PoolConfig
from streams.rescore import Counterfactual, Rescorer, reread


class Verifier(StrEnum):
    """Who judges a recorded rollout."""

    RECORDED = "recorded"
    PROGRESS = "progress"
    BINARY = "binary"
    OFFICIAL = "official"


def rescorer_of(verifier: Verifier, folder: RunFolder, events: Sequence[object]) -> Rescorer:
    """How a group gets its new rewards: from its record, from its verdicts, or by playing the recorded calls again."""
    if verifier is Verifier.RECORDED:
        return lambda group: group
    if verifier is Verifier.BINARY:
        return binary
    from trainer.rejudge import Judge

    bodies = {e.trajectory_id: e for e in events if isinstance(e, TrajectoryRecorded)}
    tasks = {e.task.task_id: e.task for e in events if isinstance(e, TaskSeeded | TaskSynthesized)}
    return Judge(folder.checkpoints, tasks, bodies, official=verifier is Verifier.OFFICIAL).rescored


def binary(group: RolloutGroupCompleted) -> RolloutGroupCompleted:
    """1 where every turn is right, else 0; missing rewards stay missing."""
    rewards = tuple(None if reward is None else float(bool(verdicts) and all(v == 1 for v in verdicts))
                    for reward, verdicts in zip(group.rewards, group.turn_verdicts, strict=True))
    return replace(group, rewards=rewards)


def changed_pool(folder: RunFolder, overrides: Sequence[str]) -> PoolConfig:
    """The recorded pool settings with some of them changed."""
    tree = folder.config()
    for override in overrides:
        key, _, text = override.partition("=")
        put(tree, key.strip().split("."), parsed_value(text.strip()))
    return validated(tree, f"rescoring of {folder.run_id}").pool


def figures(reading: Counterfactual) -> dict:
    """A reading in numbers."""
    return {
        "mean_reward": reading.mean_reward, "zones": dict(sorted(reading.zones.items())), "zone_variance": reading.variance,
        "signals": len(reading.signals), "injected": sum(map(len, reading.injected.values())),
        "retired": len(reading.retired),
    }


def show(name: str | None, verifier: Verifier, overrides: Sequence[str], runs: Path, as_json: bool, console: Console) -> None:
    """Print recorded and rescored figures side by side, and which tasks change sides."""
    folder = find_run(name, runs)
    events = events_of(folder)
    was = reread(events, lambda group: group)
    would = reread(events, rescorer_of(verifier, folder, events), changed_pool(folder, overrides) if overrides else None)
    gained, lost = sorted(would.signals - was.signals), sorted(was.signals - would.signals)
    if as_json:
        print(json.dumps({"run_id": folder.run_id, "verifier": verifier.value, "recorded": figures(was),
                          "rescored": figures(would), "signals_gained": gained, "signals_lost": lost,
                          "retired_gained": sorted(would.retired.keys() - was.retired.keys()),
                          "retired_lost": sorted(was.retired.keys() - would.retired.keys())}))
        return
    table = Table(box=None, pad_edge=False, title=f"{folder.run_id}, {verifier.value} {' '.join(overrides)}", title_justify="left")
    for heading in ("figure", "recorded", "rescored"):
        table.add_column(heading)
    for key, value in figures(was).items():
        table.add_row(key, str(value), str(figures(would)[key]))
    console.print(table)
    console.print(f"signals: {len(gained)} only when rescored {gained[:5]}, {len(lost)} only as recorded {lost[:5]}",
                  highlight=False, soft_wrap=True)
