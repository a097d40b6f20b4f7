"""``rods rescore``: what a recorded run would have been under other rewards or detector settings, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from analysis.rescore import Counterfactual, Rescorer, reread
from commands.config import ConfigError, assignments, put, validated
from commands.folder import RunFolder, find_run
from commands.fork import events_of, start_of
from commands.options import AsJson, Overrides, RunName, Runs, console
from schemas.events import RolloutGroupCompleted, RunStarted, TaskSeeded, TaskSynthesized, TrajectoryRecorded
from streams.log.port import LogGap
from streams.pool.settings import PoolConfig


class Verifier(StrEnum):
    """Who judges a recorded rollout."""

    RECORDED = "recorded"
    PROGRESS = "progress"
    BINARY = "binary"
    OFFICIAL = "official"


def rescore(
    name: RunName = None,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    verifier: Annotated[str, typer.Option(help="recorded, binary, progress or official.")] = "recorded",
) -> None:
    """What a recorded run would have been under other rewards or --set pool.key=value, without a model."""
    if verifier not in set(Verifier):
        raise ConfigError(f"--verifier {verifier!r}: choose one of {', '.join(Verifier)}")
    folder = find_run(name, runs)
    events = events_of(folder)
    config = changed_pool(start_of(events), overrides) if overrides else None
    was = reread(events, lambda group: group)
    would = reread(events, rescorer_of(Verifier(verifier), folder, events), config)
    changed = changes(was, would)
    if as_json:
        print(
            json.dumps(
                {
                    "run_id": folder.run_id,
                    "verifier": verifier,
                    "recorded": figures(was),
                    "rescored": figures(would),
                    **changed,
                }
            )
        )
        return
    table = Table(
        box=None, pad_edge=False, title=f"{folder.run_id}, {verifier} {' '.join(overrides or ())}", title_justify="left"
    )
    for heading in ("figure", "recorded", "rescored"):
        table.add_column(heading)
    before, after = flat(figures(was)), flat(figures(would))
    for key in before | after:
        table.add_row(key, text(before.get(key)), text(after.get(key)))
    console.print(table)
    for what, items in changed.items():
        if items:
            console.print(f"{what.replace('_', ' ')}: {len(items)}", highlight=False)
            for item in items:
                console.print(f"  {described(what, item)}", highlight=False, markup=False, soft_wrap=True)


def rescorer_of(verifier: Verifier, folder: RunFolder, events: Sequence[object]) -> Rescorer:
    """How a group gets its new rewards: from its record, from its verdicts, or by playing the recorded calls again.

    The last one raises LogGap for a group whose messages are not among the events.
    """
    if verifier is Verifier.RECORDED:
        return lambda group: group
    if verifier is Verifier.BINARY:
        return binary
    from trainer.replay.playing import Judge

    bodies = {e.trajectory_id: e for e in events if isinstance(e, TrajectoryRecorded)}
    tasks = {e.task.task_id: e.task for e in events if isinstance(e, TaskSeeded | TaskSynthesized)}
    judge = Judge(folder.checkpoints, tasks, bodies, official=verifier is Verifier.OFFICIAL)

    def rescored(group: RolloutGroupCompleted) -> RolloutGroupCompleted:
        for reward, body in zip(group.rewards, group.trajectory_ids, strict=True):
            if reward is not None and (body not in bodies or group.task_id not in tasks):
                raise LogGap(
                    f"rollout {body} of group {group.group_id} of {group.task_id} at step {group.step}: its messages or "
                    "its task are not in the archive, so that it cannot be played again"
                )
        return judge.rescored(group)

    return rescored


def binary(group: RolloutGroupCompleted) -> RolloutGroupCompleted:
    """1 where every turn is right, else 0; missing rewards stay missing."""
    rewards = tuple(
        None if reward is None else float(bool(verdicts) and all(v == 1 for v in verdicts))
        for reward, verdicts in zip(group.rewards, group.turn_verdicts, strict=True)
    )
    return replace(group, rewards=rewards)


def changed_pool(started: RunStarted, overrides: Sequence[str]) -> PoolConfig:
    """The recorded pool settings with some of them changed.

    Raises:
        ConfigError: an override is wrong, or is no setting of the pool.
    """
    tree = json.loads(started.config_json)
    expected = "only pool.key=value can be read anew; other settings need `rods fork`"
    for key, text in assignments(overrides, expected):
        if not key.startswith("pool."):
            raise ConfigError(f"--set {key}: {expected}")
        put(tree, key, text)
    return validated(tree, f"rescoring of {started.run_id}").pool


def figures(reading: Counterfactual) -> dict:
    """A reading in numbers."""
    return {
        "mean_reward": reading.mean_reward,
        "zones": dict(sorted(reading.zones.items())),
        "zone_variance": reading.variance,
        "signals": len(reading.signals),
        "injected": sum(map(len, reading.injected.values())),
        "retired": len(reading.retired),
    }


def members(reading: Counterfactual) -> dict[str, set]:
    """What a reading makes of the tasks: (step, task id) of boundary observations and signals, (epoch, task id) of
    injections, task ids of retirements."""
    return {
        "boundary": reading.boundary,
        "signals": reading.signals,
        "injected": {(epoch, task_id) for epoch, task_ids in reading.injected.items() for task_id in task_ids},
        "retired": set(reading.retired),
    }


def changes(was: Counterfactual, would: Counterfactual) -> dict[str, list]:
    """``<what>_gained`` and ``<what>_lost`` of :func:`members`, sorted."""
    before, after = members(was), members(would)
    found: dict[str, list] = {}
    for what in before:
        found[f"{what}_gained"] = sorted(after[what] - before[what])
        found[f"{what}_lost"] = sorted(before[what] - after[what])
    return found


def described(what: str, item: tuple[int, str] | str) -> str:
    """A task that changes sides, with its step or epoch."""
    if isinstance(item, str):
        return item
    number, task_id = item
    return f"{'epoch' if what.startswith('injected') else 'step'} {number}: {task_id}"


def flat(values: dict) -> dict[str, object]:
    """Figures one a row: those by zone under the zone's name."""
    rows: dict[str, object] = {}
    for key, value in values.items():
        rows |= {f"{key} {part}": number for part, number in value.items()} if isinstance(value, dict) else {key: value}
    return rows


def text(value: float | int | None) -> str:
    """A figure for people."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
