"""Counts that nothing is lost and nothing counted twice. Pure.

Exactly one terminal fact per dispatched unit: each planned (step, task) of a finished step ends in one group for each
attempt at it that was opened (the first in the log counts), each signal in one outcome, each planned step in one
StepCompleted, and each synthesized task is waiting, active or retired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas import Event
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    EpochPlanned,
    GroupReopened,
    RolloutGroupCompleted,
    StepCompleted,
    SynthesisFailed,
    TaskRetired,
    TaskSynthesized,
)


@dataclass(slots=True)
class Ledger:
    """What was dispatched and what came back; feed it every event once or many times."""

    planned: dict[tuple[int, str], str] = field(default_factory=dict)
    groups: dict[tuple[int, str], set[str]] = field(default_factory=dict)
    reopened: set[tuple[int, str, int]] = field(default_factory=set)
    attempts: set[tuple[int, str, int]] = field(default_factory=set)
    signals: set[str] = field(default_factory=set)
    outcomes: dict[str, set[str]] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    completed: dict[int, set[str]] = field(default_factory=dict)
    synthesized: set[str] = field(default_factory=set)
    entered: Counter = field(default_factory=Counter)
    left: Counter = field(default_factory=Counter)
    _seen: set[str] = field(default_factory=set)

    def add(self, events: Iterable[Event]) -> Ledger:
        """Count events; one already seen changes nothing."""
        for event in events:
            if event.event_id not in self._seen:
                self._seen.add(event.event_id)
                self._count(event)
        return self

    def _count(self, event: Event) -> None:
        match event:
            case BatchPlanned():
                self.steps.add(event.step)
                self.planned.update({(event.step, task_id): event.event_id for task_id in event.task_ids})
            case RolloutGroupCompleted():
                self.groups.setdefault((event.step, event.task_id), set()).add(event.event_id)
                self.attempts.add((event.step, event.task_id, event.attempt))
            case GroupReopened():
                self.reopened.add((event.step, event.task_id, event.attempt))
            case StepCompleted():
                self.completed.setdefault(event.step, set()).add(event.event_id)
            case BoundaryDetected():
                self.signals.add(event.event_id)
            case TaskSynthesized():
                self.outcomes.setdefault(event.signal_id, set()).add(event.event_id)
                self.synthesized.add(event.task.task_id)
            case SynthesisFailed():
                self.outcomes.setdefault(event.signal_id, set()).add(event.event_id)
            case EpochPlanned():
                self.entered.update(event.injected)
            case TaskRetired():
                self.left[event.task_id] += 1

    def num_late(self) -> int:
        """Groups that came after another attempt had ended their task in their step; only the first in the log counts."""
        return sum(len(ids) - 1 for ids in self.groups.values())

    def missing(self) -> list[str]:
        """Dispatched units without their end, in words, sorted."""
        lost = [f"group of {task} at step {step}" for step, task in self.planned if (step, task) not in self.groups]
        lost += [f"outcome of signal {signal}" for signal in self.signals if signal not in self.outcomes]
        lost += [f"completion of step {step}" for step in self.steps if step not in self.completed]
        return sorted(lost)

    def duplicate(self) -> list[str]:
        """Units that ended more than once, in words, sorted."""
        unasked = {place for place in self.attempts if place[2] > 0} - self.reopened
        twice = [f"group of {task} at step {step}" for step, task, _ in unasked]
        twice += [f"outcome of signal {signal}" for signal, ids in self.outcomes.items() if len(ids) > 1]
        twice += [f"injection of {task}" for task, count in self.entered.items() if count > 1]
        twice += [f"retirement of {task}" for task, count in self.left.items() if count > 1]
        twice += [f"injection of {task}, which nobody made" for task in self.entered if task not in self.synthesized]
        return sorted(twice)
