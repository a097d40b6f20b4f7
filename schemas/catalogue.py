"""Every event of the system: one line each.

An event type is one ``.avsc`` file plus one :class:`Entry` here. ``topic`` is the name without the
configured prefix, ``key`` the field whose value keys the record, ``identity`` the fields that, with run
and type, make the deterministic ``event_id``, ``alias`` a field that repeats ``event_id`` under a speaking name.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where one event type lives and what identifies it."""

    name: str
    topic: str
    key: str
    identity: tuple[str, ...]
    alias: str = ""


# fmt: off
CATALOGUE: tuple[Entry, ...] = (
    Entry("RunStarted", "runs", "run_id", ()),
    Entry("StageStarted", "runs", "run_id", ("stage",)),
    Entry("RunFinished", "runs", "run_id", ("step", "outcome")),
    Entry("TaskSeeded", "tasks", "run_id", ("task.task_id",)),
    Entry("TaskSynthesized", "tasks", "run_id", ("signal_id",)),
    Entry("EpochPlanned", "batches", "run_id", ("epoch",)),
    Entry("BatchPlanned", "batches", "run_id", ("step",)),
    Entry("TrajectoryRecorded", "trajectories", "event_id", ("step", "task_id", "attempt", "rollout_index"), "trajectory_id"),
    Entry("RolloutGroupCompleted", "rollouts", "run_id", ("step", "task_id", "attempt"), "group_id"),
    Entry("GroupClaimed", "dispatches", "run_id", ("step", "task_id", "attempt", "worker")),
    Entry("GroupReopened", "dispatches", "run_id", ("step", "task_id", "attempt")),
    Entry("RolloutsDropped", "dispatches", "run_id", ("group_id",)),
    Entry("WeightsSynced", "dispatches", "run_id", ("policy_version", "target")),
    Entry("BoundaryDetected", "boundary-signals", "run_id", ("step", "task_id"), "signal_id"),
    Entry("SynthesisFailed", "synthesis-outcomes", "run_id", ("signal_id",)),
    Entry("VariantRejected", "synthesis-outcomes", "run_id", ("signal_id", "attempt")),
    Entry("TaskRetired", "retirements", "run_id", ("task_id",)),
    Entry("StepCompleted", "steps", "run_id", ("step",)),
    Entry("EvaluationCompleted", "steps", "run_id", ("suite", "step")),
    Entry("DeadLettered", "dead-letters", "run_id", ("topic", "partition", "offset")),
)
# fmt: on

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in CATALOGUE}
TOPICS: tuple[str, ...] = tuple(dict.fromkeys(entry.topic for entry in CATALOGUE))
SPREAD_TOPICS: frozenset[str] = frozenset({"trajectories"})
"""Topics whose records are spread over all partitions; the others hold one run in one partition."""
HELDOUT = "heldout"
"""Suite of the held-out tasks in ``EvaluationCompleted``: the one that reports show and the best checkpoint is chosen by."""
