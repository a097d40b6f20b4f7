"""The past of one run as the past of another. Pure.

A fork copies what happened up to a step under a new run id: every event gets the id it would have had there, and every
reference to an event follows. The plans of the copied past are facts; they are not decided again. What was learned from
(``StepCompleted``, ``RolloutsDropped``) is left out where the fork learns again. ``WeightsSynced`` stays behind: it names
folders and servers of the parent, and the fork's trainer hands its own weights over before its first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from enum import StrEnum

from schemas import BY_NAME, Event, event_id
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    DeadLettered,
    EpochPlanned,
    EvaluationCompleted,
    GroupClaimed,
    GroupReopened,
    RolloutGroupCompleted,
    RolloutsDropped,
    RunFinished,
    RunStarted,
    StageStarted,
    StepCompleted,
    SynthesisFailed,
    TaskRetired,
    TaskSeeded,
    TaskSynthesized,
    TrajectoryRecorded,
    VariantRejected,
    WeightsSynced,
)
from schemas.identity import identity_of

REFERENCES = ("caused_by", "signal_id", "group_id", "trajectory_id")
REFERENCE_LISTS = ("trajectory_ids", "group_ids")


class ForkMode(StrEnum):
    """What a fork does with the past."""

    CONTINUE = "continue"
    RETRAIN = "retrain"


class NothingToFork(ValueError):
    """The run does not reach the step; the text says how far it goes."""


def shared_past(events: Iterable[Event], at_step: int, mode: ForkMode) -> list[Event]:
    """Events of a run that a fork at a step takes over, in their order.

    Args:
        events: the run's events.
        at_step: last shared step.
        mode: ``continue`` keeps the completed steps; ``retrain`` leaves them out, so that they are learned again from the
            recorded rollouts.

    Raises:
        NothingToFork: the run did not complete that step.
        TypeError: an event of a type of which nobody said whether it is shared.
    """
    events = list(events)
    completed = {event.step for event in events if isinstance(event, StepCompleted)}
    if at_step < 1 or at_step not in completed:
        raise NothingToFork(f"step {at_step} was not completed; the run has steps 1 to {max(completed, default=0)}")
    epochs = {event.epoch for event in events if isinstance(event, EpochPlanned) and event.first_step <= at_step}
    signals = {event.signal_id for event in events if isinstance(event, BoundaryDetected) and event.step <= at_step}
    return [event for event in events if _is_shared(event, at_step, mode, epochs, signals)]


def _is_shared(event: Event, at_step: int, mode: ForkMode, epochs: set[int], signals: set[str]) -> bool:
    match event:
        case TaskSeeded():
            return True
        case StageStarted():
            return event.first_step <= at_step
        case EpochPlanned() | TaskRetired():
            return event.epoch in epochs
        case (
            BatchPlanned()
            | TrajectoryRecorded()
            | RolloutGroupCompleted()
            | BoundaryDetected()
            | GroupClaimed()
            | GroupReopened()
        ):
            return event.step <= at_step
        case StepCompleted() | EvaluationCompleted() | RolloutsDropped():
            return event.step <= at_step and mode is ForkMode.CONTINUE
        case TaskSynthesized() | SynthesisFailed() | VariantRejected():
            return event.signal_id in signals
        case RunStarted() | RunFinished() | DeadLettered() | WeightsSynced():
            return False
    raise TypeError(f"nobody said whether a fork shares {type(event).__name__}")


def renamed(events: Iterable[Event], run_id: str) -> list[Event]:
    """The events under another run id, ids and references included; cursors, which name offsets, are emptied."""
    events = list(events)
    ids: dict[str, str] = {}
    for event in sorted(events, key=_hangs_on_another):
        ids[event.event_id] = event_id(run_id, type(event).__name__, *_new_identity(event, ids))
    return [_renamed(event, run_id, ids) for event in events]


def _hangs_on_another(event: Event) -> bool:
    """Whether an event's identity names another event, whose new id must be known first."""
    return not {"signal_id", "group_id"}.isdisjoint(BY_NAME[type(event).__name__].identity)


def _new_identity(event: Event, ids: Mapping[str, str]) -> list[object]:
    names = BY_NAME[type(event).__name__].identity
    return [
        ids.get(value, value) if name in REFERENCES else value
        for name, value in zip(names, identity_of(event), strict=True)
    ]


def _renamed(event: Event, run_id: str, ids: Mapping[str, str]) -> Event:
    names = {field.name for field in fields(event)}
    changes: dict[str, object] = {"event_id": ids[event.event_id], "run_id": run_id}
    changes |= {name: ids.get(getattr(event, name), getattr(event, name)) for name in REFERENCES if name in names}
    changes |= {name: tuple(ids.get(i, i) for i in getattr(event, name)) for name in REFERENCE_LISTS if name in names}
    if "input_cursor" in names:
        changes["input_cursor"] = ()
    return replace(event, **changes)
