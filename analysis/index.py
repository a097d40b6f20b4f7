"""What a log says, looked up by what it is about. Every other module of this room is a view of it. Pure.

The first event of an id in the log counts; a repetition is counted and changes nothing. Groups stay in the order in which
they came: the first that ends a task in its step counts, later ones are late.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from schemas import Event
from schemas.events import (
    BatchPlanned,
    DeadLettered,
    EvaluationCompleted,
    GroupReopened,
    RolloutGroupCompleted,
    RolloutsDropped,
    RunFinished,
    RunOutcome,
    RunStarted,
    StepCompleted,
    SynthesisFailed,
    TaskRetired,
    TaskSeeded,
    TaskSynthesized,
    TrajectoryRecorded,
    VariantRejected,
)
from streams.archive.scan import Scanned
from streams.pool.pool import Pool, apply, initial

Made = TaskSeeded | TaskSynthesized
Outcome = TaskSynthesized | SynthesisFailed


def mean(values: Iterable[float]) -> float | None:
    """The mean, or ``None`` of nothing."""
    items = list(values)
    return math.fsum(items) / len(items) if items else None


class Firsts:
    """Tells the first event of an id from its repetitions.

    Attributes:
        ids: every id seen.
        num_repeated: events whose id was seen before.
    """

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.num_repeated = 0

    def is_first(self, event_id: str) -> bool:
        """Whether an id is new; it is known from now on."""
        if event_id in self.ids:
            self.num_repeated += 1
            return False
        self.ids.add(event_id)
        return True


@dataclass(slots=True)
class RunIndex:
    """One run; feed it events as they come.

    Attributes:
        whole: keep bodies too: trajectories, verdicts and codes of groups, prompts and answers of syntheses. Figures need
            none of them, and a long run has gigabytes.
        pool: the fold from which was decided.
        firsts: ids of all events.
        faults: events that the fold refuses, in words.
        counts: events by type.
        started: first RunStarted.
        finished: its last word if that is an end.
        tasks: what brought a task in, by task id.
        groups: in log order, by (step, task id).
        reopened: (step, task id, attempt) of every GroupReopened.
        outcomes: what ended a signal, in log order, by signal id.
        rejected: refused candidates in attempt order, by signal id.
        steps: by step; ``step_of`` the step by the event id of its batch or completion.
        evaluations: by (suite, step).
        retired: by task id.
        dropped: by group id.
        trajectories: bodies by id, where they are kept; ``group_of`` the group id by trajectory id.
        scanned: events with their records by id in log order, where they came in records and bodies are kept.
    """

    whole: bool = False
    pool: Pool = field(default_factory=initial)
    firsts: Firsts = field(default_factory=Firsts)
    faults: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    started: RunStarted | None = None
    finished: RunFinished | None = None
    tasks: dict[str, Made] = field(default_factory=dict)
    groups: dict[tuple[int, str], list[RolloutGroupCompleted]] = field(default_factory=dict)
    reopened: set[tuple[int, str, int]] = field(default_factory=set)
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    rejected: dict[str, list[VariantRejected]] = field(default_factory=dict)
    steps: dict[int, StepCompleted] = field(default_factory=dict)
    step_of: dict[str, int] = field(default_factory=dict)
    evaluations: dict[tuple[str, int], EvaluationCompleted] = field(default_factory=dict)
    retired: dict[str, list[TaskRetired]] = field(default_factory=dict)
    dropped: dict[str, RolloutsDropped] = field(default_factory=dict)
    trajectories: dict[str, TrajectoryRecorded] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    scanned: dict[str, Scanned] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> RunIndex:
        """Take events in; one that was heard before changes nothing."""
        for event in events:
            self._hear_end(event)
            if self.firsts.is_first(event.event_id):
                try:
                    self.pool = apply(self.pool, event)
                except ValueError as error:
                    self.faults.append(f"{type(event).__name__} {event.event_id} cannot be used: {error}")
                self.counts[type(event).__name__] += 1
                self._place(event if self.whole else without_bodies(event))
        return self

    def _hear_end(self, event: Event) -> None:
        """A run that goes on after an end says RunStarted once more, and may end so again; completed is its last word."""
        is_completed = self.finished is not None and self.finished.outcome is RunOutcome.COMPLETED
        if isinstance(event, RunFinished | RunStarted) and not is_completed:
            self.finished = event if isinstance(event, RunFinished) else None

    def add_record(self, item: Scanned) -> None:
        """Take in the event of a record, and with bodies the record too."""
        if self.whole:
            self.scanned.setdefault(item.event.event_id, item)
        self.add((item.event,))

    def _place(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.started = self.started or event
            case TaskSeeded():
                self.tasks.setdefault(event.task.task_id, event)
            case TaskSynthesized():
                self.tasks.setdefault(event.task.task_id, event)
                self.outcomes.setdefault(event.signal_id, []).append(event)
            case SynthesisFailed():
                self.outcomes.setdefault(event.signal_id, []).append(event)
            case VariantRejected():
                self.rejected.setdefault(event.signal_id, []).append(event)
                self.rejected[event.signal_id].sort(key=lambda e: e.attempt)
            case RolloutGroupCompleted():
                self.groups.setdefault((event.step, event.task_id), []).append(event)
                self.group_of.update(dict.fromkeys(event.trajectory_ids, event.group_id))
            case GroupReopened():
                self.reopened.add((event.step, event.task_id, event.attempt))
            case RolloutsDropped():
                self.dropped.setdefault(event.group_id, event)
            case TrajectoryRecorded() if self.whole:
                self.trajectories[event.trajectory_id] = event
                self.group_of.setdefault(event.trajectory_id, event.group_id)
            case BatchPlanned():
                self.step_of[event.event_id] = event.step
            case StepCompleted():
                self.steps.setdefault(event.step, event)
                self.step_of[event.event_id] = event.step
            case EvaluationCompleted():
                self.evaluations.setdefault((event.suite, event.step), event)
            case TaskRetired():
                self.retired.setdefault(event.task_id, []).append(event)

    @property
    def last_step(self) -> StepCompleted | None:
        """The completed step with the highest number."""
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def failures(self) -> Counter:
        """Signals without a variant, by failure."""
        ended = (event for events in self.outcomes.values() for event in events)
        return Counter(event.failure.value for event in ended if isinstance(event, SynthesisFailed))

    @property
    def rejections(self) -> Counter:
        """Refused candidates, by failure."""
        return Counter(event.failure.value for events in self.rejected.values() for event in events)

    @property
    def retire_reasons(self) -> Counter:
        """Retirements, by reason."""
        return Counter(event.reason.value for events in self.retired.values() for event in events)

    @property
    def num_open_signals(self) -> int:
        """Signals without an outcome."""
        return sum(signal_id not in self.outcomes for signal_id in self.pool.signals)

    def zones(self) -> Counter:
        """Active tasks by zone of their last observation."""
        if self.pool.last_epoch < 0:
            return Counter()
        seen = [self.pool.observations.get(task_id, ()) for task_id in self.pool.epochs[self.pool.last_epoch].order]
        return Counter(observations[-1].zone.value if observations else "unknown" for observations in seen)

    def groups_of(self, task_id: str) -> list[RolloutGroupCompleted]:
        """The groups of a task by step and attempt."""
        found = [group for (_, played), groups in self.groups.items() if played == task_id for group in groups]
        return sorted(found, key=lambda group: (group.step, group.attempt))

    def rewards(self) -> dict[int, dict[str, float]]:
        """By epoch and task id: mean progress reward of the group that counts; without those in which none is valid."""
        found: dict[int, dict[str, float]] = {}
        for (_, task_id), (group, *_) in self.groups.items():
            value = mean(reward for reward in group.rewards if reward is not None and math.isfinite(reward))
            if value is not None:
                found.setdefault(group.epoch, {})[task_id] = value
        return found

    def parent_at(self, step: int) -> RunStarted | None:
        """The run's start, if it shares a step with a parent."""
        start = self.started
        return start if start and start.parent_run_id and step <= start.forked_at_step else None


def without_bodies(event: Event) -> Event:
    """An event without what figures do not need."""
    match event:
        case RolloutGroupCompleted():
            return replace(event, format_rewards=(), turn_verdicts=(), codes=(), trajectory_ids=())
        case TaskSynthesized() | SynthesisFailed() if event.completions:
            return replace(event, completions=tuple(replace(c, prompt="", text="") for c in event.completions))
    return event


@dataclass(slots=True)
class LogIndex:
    """All runs of a log; feed it records as they come.

    Attributes:
        whole: see :class:`RunIndex`.
        runs: by run id, in the order in which they were heard of.
        newest: the run that started last.
        letters: dead letters by event id, of whichever run.
        unreadable: records that are no events, by topic-partition@offset.
        num_records: records taken in.
    """

    whole: bool = False
    runs: dict[str, RunIndex] = field(default_factory=dict)
    newest: str = ""
    letters: dict[str, DeadLettered] = field(default_factory=dict)
    unreadable: dict[str, Scanned] = field(default_factory=dict)
    num_records: int = 0

    def run(self, run_id: str) -> RunIndex:
        """The index of a run; an empty one if it was not heard of."""
        return self.runs.get(run_id) or RunIndex(self.whole)

    def add(self, events: Iterable[Event]) -> LogIndex:
        """Take events of any runs in."""
        for event in events:
            self._run_of(event).add((event,))
        return self

    def add_records(self, items: Iterable[Scanned]) -> LogIndex:
        """Take records of any runs in, those that are no events too."""
        for item in items:
            self.num_records += 1
            if item.event is None:
                self.unreadable[item.where] = item
            else:
                self._run_of(item.event).add_record(item)
        return self

    def _run_of(self, event: Event) -> RunIndex:
        if isinstance(event, DeadLettered):
            self.letters[event.event_id] = event
        elif isinstance(event, RunStarted):
            self.newest = event.run_id
        return self.runs.setdefault(event.run_id, RunIndex(self.whole))

    @property
    def num_repeated(self) -> int:
        """Records whose event had come before."""
        return sum(run.firsts.num_repeated for run in self.runs.values())
