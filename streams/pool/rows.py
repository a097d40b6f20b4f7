"""Rows of the pool table: what a person or a dashboard wants to know of one task. Pure.

The table is a cache of the fold; no decision reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import fastavro

from schemas.events import EpochPlanned, Event, Origin, RolloutGroupCompleted, TaskRetired, TaskSeeded, TaskSynthesized
from schemas.heads import GroupHead
from streams.pool.pool import Pool

ROW_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "PoolRow",
        "namespace": "rods.table",
        "fields": [
            {"name": "run_id", "type": "string"},
            {"name": "task_id", "type": "string"},
            {"name": "category", "type": "string"},
            {"name": "origin", "type": "string"},
            {"name": "state", "type": "string", "doc": "waiting, active or retired"},
            {"name": "reason", "type": "string", "doc": "Why it retired, or empty."},
            {"name": "parent_task_id", "type": "string"},
            {"name": "root_task_id", "type": "string"},
            {"name": "generation", "type": "int"},
            {"name": "num_observations", "type": "int"},
            {"name": "last_step", "type": "int", "doc": "Step of the last observation, 0 for none."},
            {"name": "first_mean", "type": ["null", "double"]},
            {"name": "last_mean", "type": ["null", "double"]},
            {"name": "last_variance", "type": ["null", "double"]},
            {"name": "phi", "type": ["null", "double"]},
            {"name": "zone", "type": "string", "doc": "Zone of the last observation."},
            {"name": "num_signals", "type": "int"},
        ],
    }
)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One task of the pool; fields as in ``ROW_SCHEMA``."""

    run_id: str
    task_id: str
    category: str
    origin: str
    state: str
    reason: str
    parent_task_id: str
    root_task_id: str
    generation: int
    num_observations: int
    last_step: int
    first_mean: float | None
    last_mean: float | None
    last_variance: float | None
    phi: float | None
    zone: str
    num_signals: int


def state_of(pool: Pool, task_id: str) -> str:
    """``waiting`` (queued), ``active`` (in the last planned epoch) or ``retired``."""
    if task_id in pool.retired:
        return "retired"
    task = pool.tasks[task_id]
    return "active" if task.origin is Origin.HUMAN or task_id in pool.injected else "waiting"


def row_of(pool: Pool, task_id: str) -> PoolRow:
    """The row of a task."""
    task = pool.tasks[task_id]
    seen = pool.observations.get(task_id, ())
    retired = pool.retired.get(task_id)
    return PoolRow(
        run_id=pool.run_id,
        task_id=task_id,
        category=task.category.value,
        origin=task.origin.value,
        state=state_of(pool, task_id),
        reason=retired.reason.value if retired else "",
        parent_task_id=task.parent_task_id,
        root_task_id=task.root_task_id,
        generation=task.generation,
        num_observations=len(seen),
        last_step=seen[-1].step if seen else 0,
        first_mean=seen[0].mean if seen else None,
        last_mean=seen[-1].mean if seen else None,
        last_variance=seen[-1].variance if seen else None,
        phi=seen[-1].phi if seen else None,
        zone=seen[-1].zone.value if seen else "unknown",
        num_signals=len(pool.signalled.get(task_id, ())),
    )


def rows_of(pool: Pool) -> dict[str, PoolRow]:
    """Every row by task id, in id order."""
    return {task_id: row_of(pool, task_id) for task_id in sorted(pool.tasks)}


def touched(event: Event | GroupHead) -> tuple[str, ...]:
    """Tasks whose row an event changes."""
    if isinstance(event, TaskSeeded | TaskSynthesized):
        return (event.task.task_id,)
    if isinstance(event, EpochPlanned):
        return (*event.injected, *event.retired)
    if isinstance(event, RolloutGroupCompleted | GroupHead | TaskRetired):
        return (event.task_id,)
    return (event.task_id,) if type(event).__name__ == "BoundaryDetected" else ()
