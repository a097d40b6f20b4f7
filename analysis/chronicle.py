"""A run's events by what they are about: the index that lineage and explanations look things up in. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas import Event
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    EpochPlanned,
    RolloutGroupCompleted,
    RolloutsDropped,
    RunStarted,
    StepCompleted,
    SynthesisFailed,
    TaskRetired,
    TaskSeeded,
    TaskSynthesized,
    TrajectoryRecorded,
    VariantRejected,
)
from streams.pool.boundary import evidence_of
from streams.pool.settings import PoolConfig


@dataclass(slots=True)
class Chronicle:
    """Events of one run; feed it every event once or many times.

    Attributes:
        config: pool settings of the run.
        started: RunStarted, if it was fed.
        tasks: the event that brought a task in, by task id.
        groups: by group id; ``groups_of`` the same by task id, in step order.
        group_of: group id by trajectory id.
        trajectories: bodies by trajectory id, as far as they were fed.
        signals, outcomes: BoundaryDetected and what ended it, by signal id.
        rejected: VariantRejected by signal id, in attempt order.
        batches, steps: by step; ``step_of`` the step by the event id of either.
        epochs: by number.
        injected_in: epoch that took a task in, by task id.
        retired: by task id.
        dropped: RolloutsDropped by group id.
    """

    config: PoolConfig = PoolConfig()
    started: RunStarted | None = None
    tasks: dict[str, TaskSeeded | TaskSynthesized] = field(default_factory=dict)
    groups: dict[str, RolloutGroupCompleted] = field(default_factory=dict)
    groups_of: dict[str, list[RolloutGroupCompleted]] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    trajectories: dict[str, TrajectoryRecorded] = field(default_factory=dict)
    signals: dict[str, BoundaryDetected] = field(default_factory=dict)
    signals_of: dict[str, list[BoundaryDetected]] = field(default_factory=dict)
    outcomes: dict[str, TaskSynthesized | SynthesisFailed] = field(default_factory=dict)
    rejected: dict[str, list[VariantRejected]] = field(default_factory=dict)
    batches: dict[int, BatchPlanned] = field(default_factory=dict)
    steps: dict[int, StepCompleted] = field(default_factory=dict)
    step_of: dict[str, int] = field(default_factory=dict)
    epochs: dict[int, EpochPlanned] = field(default_factory=dict)
    injected_in: dict[str, int] = field(default_factory=dict)
    retired: dict[str, TaskRetired] = field(default_factory=dict)
    dropped: dict[str, RolloutsDropped] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def add(self, events: Iterable[Event]) -> Chronicle:
        """Sort events in; one already seen changes nothing."""
        for event in events:
            if event.event_id not in self._seen:
                self._seen.add(event.event_id)
                self._place(event)
        return self

    def _place(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.started = event
                self.config = PoolConfig.model_validate(json.loads(event.config_json).get("pool", {}))
            case TaskSeeded():
                self.tasks.setdefault(event.task.task_id, event)
            case TaskSynthesized():
                self.tasks.setdefault(event.task.task_id, event)
                self.outcomes.setdefault(event.signal_id, event)
            case SynthesisFailed():
                self.outcomes.setdefault(event.signal_id, event)
            case VariantRejected():
                self.rejected.setdefault(event.signal_id, []).append(event)
                self.rejected[event.signal_id].sort(key=lambda e: e.attempt)
            case RolloutGroupCompleted():
                self._place_group(event)
            case TrajectoryRecorded():
                self.trajectories[event.trajectory_id] = event
                self.group_of.setdefault(event.trajectory_id, event.group_id)
            case BoundaryDetected():
                self.signals[event.signal_id] = event
                self.signals_of.setdefault(event.task_id, []).append(event)
                self.signals_of[event.task_id].sort(key=lambda e: e.step)
            case _:
                self._place_plan(event)

    def _place_group(self, event: RolloutGroupCompleted) -> None:
        self.groups[event.group_id] = event
        self.groups_of.setdefault(event.task_id, []).append(event)
        self.groups_of[event.task_id].sort(key=lambda e: (e.step, e.attempt))
        self.group_of.update(dict.fromkeys(event.trajectory_ids, event.group_id))

    def _place_plan(self, event: Event) -> None:
        match event:
            case BatchPlanned():
                self.batches.setdefault(event.step, event)
                self.step_of[event.event_id] = event.step
            case StepCompleted():
                self.steps.setdefault(event.step, event)
                self.step_of[event.event_id] = event.step
            case EpochPlanned():
                self.epochs.setdefault(event.epoch, event)
                self.injected_in.update(dict.fromkeys(event.injected, event.epoch))
            case TaskRetired():
                self.retired.setdefault(event.task_id, event)
            case RolloutsDropped():
                self.dropped.setdefault(event.group_id, event)

    def fork_at(self, step: int) -> RunStarted | None:
        """The run's start, if it shares a step with a parent."""
        return (
            self.started
            if self.started and self.started.parent_run_id and step <= self.started.forked_at_step
            else None
        )

    def evidence(self, group: RolloutGroupCompleted) -> dict[str, object]:
        """The numbers of a group as the pool reads them; what was valid alone where it is no observation."""
        evidence = evidence_of(group, self.config)
        if evidence is None:
            return {"num_valid": group.num_valid, "num_rollouts": group.num_rollouts, "zone": "unknown"}
        return {
            "mean": evidence.mean,
            "variance": evidence.variance,
            "phi": evidence.phi,
            "zone": evidence.zone.value,
            "num_valid": evidence.num_valid,
            "num_rollouts": evidence.num_rollouts,
        }
