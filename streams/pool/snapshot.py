"""The fold of a log up to a cursor, as bytes: folding on from it gives what folding from the beginning gives.

A snapshot is a cache. It is checked against damage and against the version of the fold that made it; one that does not fit
is refused by name, and its reader folds from the beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from immutables import Map

from schemas.codec import from_record
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Category,
    EpochPlanned,
    Evidence,
    Origin,
    RolloutGroupCompleted,
    StageStarted,
    TaskRetired,
    Zone,
)
from streams.log.port import Place
from streams.pool.pool import Pool, PoolTask
from streams.pool.settings import PoolConfig

VERSION = 1
"""Raised whenever the same events fold to another pool."""
DIGEST_BYTES = 32
PLAIN = ("run_id", "started_by", "seed", "finished", "last_epoch", "last_step")
BY_NUMBER = {"stages": StageStarted, "batches": BatchPlanned, "epochs": EpochPlanned}
BY_ID = {"signals": BoundaryDetected, "retired": TaskRetired}
SIMPLE = ("answered", "injected")


class UnusableSnapshot(ValueError):
    """Bytes that are no snapshot of this version; the text says why. Fold from the beginning instead."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Pools by run, and what had been folded into them.

    Attributes:
        pools: by run id.
        cursor: next offset of each partition.
    """

    pools: Mapping[str, Pool] = field(default_factory=dict)
    cursor: Mapping[Place, int] = field(default_factory=dict)


def dump(snapshot: Snapshot) -> bytes:
    """A snapshot as bytes."""
    cursor = [[*place, offset] for place, offset in sorted(snapshot.cursor.items())]
    pools = [_plain(pool) | {"key": run_id} for run_id, pool in sorted(snapshot.pools.items())]
    body = orjson.dumps({"version": VERSION, "cursor": cursor, "pools": pools}, option=orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(body).digest() + body


def load(data: bytes) -> Snapshot:
    """The snapshot in some bytes.

    Raises:
        UnusableSnapshot: damaged, or of another version.
    """
    digest, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise UnusableSnapshot(f"{len(data)} bytes do not match their checksum; fold from the beginning")
    tree = orjson.loads(body)
    if tree["version"] != VERSION:
        raise UnusableSnapshot(
            f"made by version {tree['version']} of the fold, this is {VERSION}; fold from the beginning"
        )
    return Snapshot(
        {pool["key"]: _pool(pool) for pool in tree["pools"]}, {Place(t, p): offset for t, p, offset in tree["cursor"]}
    )


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot in one piece."""
    part = path.with_suffix(".part")
    part.write_bytes(dump(snapshot))
    part.replace(path)


def read_snapshot(path: Path) -> Snapshot:
    """The snapshot in a file.

    Raises:
        FileNotFoundError: there is none.
        UnusableSnapshot: as :func:`load`.
    """
    return load(path.read_bytes())


def _plain(pool: Pool) -> dict[str, object]:
    """A pool as JSON values; frozen records become objects by themselves."""
    ended: dict[int, dict[str, str]] = {}
    for (step, task_id), event_id in pool.ended.items():
        ended.setdefault(step, {})[task_id] = event_id
    return {
        **{name: getattr(pool, name) for name in PLAIN},
        **{name: list(getattr(pool, name).values()) for name in (*BY_NUMBER, *BY_ID)},
        **{name: dict(getattr(pool, name)) for name in SIMPLE},
        "config": pool.config.model_dump(mode="json"),
        "early": list(pool.early),
        "tasks": list(pool.tasks.values()),
        "generated": dict(pool.generated),
        "steps": list(pool.steps.items()),
        "signalled": dict(pool.signalled),
        "ended": list(ended.items()),
        "observations": {task_id: [_row(e) for e in seen] for task_id, seen in pool.observations.items()},
    }


def _row(evidence: Evidence) -> tuple:
    return (
        evidence.step,
        evidence.num_rollouts,
        evidence.num_valid,
        evidence.mean,
        evidence.variance,
        evidence.phi,
        evidence.zone,
    )


def _pool(tree: dict) -> Pool:
    """The inverse of :func:`_plain`."""
    numbered = {name: [from_record(cls, record) for record in tree[name]] for name, cls in BY_NUMBER.items()}
    keyed = {name: [from_record(cls, record) for record in tree[name]] for name, cls in BY_ID.items()}
    return Pool(
        **{name: tree[name] for name in PLAIN},
        **{name: Map(tree[name]) for name in SIMPLE},
        stages=Map({event.first_epoch: event for event in numbered["stages"]}),
        batches=Map({event.step: event for event in numbered["batches"]}),
        epochs=Map({event.epoch: event for event in numbered["epochs"]}),
        signals=Map({event.signal_id: event for event in keyed["signals"]}),
        retired=Map({event.task_id: event for event in keyed["retired"]}),
        config=PoolConfig.model_validate(tree["config"]),
        steps=Map(tree["steps"]),
        early=tuple(from_record(RolloutGroupCompleted, record) for record in tree["early"]),
        tasks=Map({record["task_id"]: _task(record) for record in tree["tasks"]}),
        generated=Map({task_id: tuple(position) for task_id, position in tree["generated"].items()}),
        signalled=Map({task_id: tuple(steps) for task_id, steps in tree["signalled"].items()}),
        ended=Map(
            {(step, task_id): event_id for step, groups in tree["ended"] for task_id, event_id in groups.items()}
        ),
        observations=Map({task_id: _evidence(rows) for task_id, rows in tree["observations"].items()}),
    )


def _task(record: dict) -> PoolTask:
    return PoolTask(
        **{
            **record,
            "category": Category(record["category"]),
            "origin": Origin(record["origin"]),
            "position": tuple(record["position"]),
        }
    )


def _evidence(rows: Iterable[list]) -> tuple[Evidence, ...]:
    return tuple(
        [
            Evidence(
                step=step,
                num_rollouts=rollouts,
                num_valid=valid,
                mean=mean,
                variance=variance,
                phi=phi,
                zone=ZONES[zone],
            )
            for step, rollouts, valid, mean, variance, phi, zone in rows
        ]
    )


ZONES = {zone.value: zone for zone in Zone}
