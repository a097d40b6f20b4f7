"""What a run came to, folded from its events. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from analysis.conservation import Ledger
from analysis.fork import ForkMode
from schemas import HELDOUT, Event
from schemas.events import (
    EpochPlanned,
    EvaluationCompleted,
    RolloutGroupCompleted,
    RunFinished,
    RunOutcome,
    RunStarted,
    StepCompleted,
    SynthesisFailed,
    TaskRetired,
    TaskSeeded,
    VariantRejected,
)
from streams.pool.boundary import zone_variance
from streams.pool.lifecycle import live_generated, queue_of
from streams.pool.pool import Pool, apply, initial


def mean(values: Iterable[float]) -> float | None:
    """The mean, or ``None`` of nothing."""
    items = list(values)
    return math.fsum(items) / len(items) if items else None


@dataclass(slots=True)
class RunFacts:
    """Running totals of one run; the live view and the summary read it.

    Attributes:
        pool: the fold that also decides.
        ledger: conservation count.
        finished: its last word if that is an end.
        seed_means: (epoch, task id) to mean reward, human seeds only.
    """

    pool: Pool = field(default_factory=initial)
    ledger: Ledger = field(default_factory=Ledger)
    counts: Counter = field(default_factory=Counter)
    seeds: set[str] = field(default_factory=set)
    seed_means: dict[tuple[int, str], float] = field(default_factory=dict)
    evaluations: dict[int, EvaluationCompleted] = field(default_factory=dict)
    failures: Counter = field(default_factory=Counter)
    retire_reasons: Counter = field(default_factory=Counter)
    last_step: StepCompleted | None = None
    finished: RunFinished | None = None
    started: RunStarted | None = None
    _seen: set[str] = field(default_factory=set)

    def add(self, events: Iterable[Event]) -> RunFacts:
        """Fold events; one already seen changes nothing."""
        for event in events:
            self._hear_end(event)
            if event.event_id in self._seen:
                continue
            self._seen.add(event.event_id)
            self.pool = apply(self.pool, event)
            self.ledger.add([event])
            self._count(event)
        return self

    def _hear_end(self, event: Event) -> None:
        """A run that goes on after an end before its last epoch says RunStarted once more, and may end so again."""
        is_completed = self.finished is not None and self.finished.outcome is RunOutcome.COMPLETED
        if isinstance(event, RunFinished | RunStarted) and not is_completed:
            self.finished = event if isinstance(event, RunFinished) else None

    def _count(self, event: Event) -> None:
        self.counts[type(event).__name__] += 1
        match event:
            case RunStarted():
                self.started = event
            case TaskSeeded():
                self.seeds.add(event.task.task_id)
            case RolloutGroupCompleted():
                value = mean(r for r in event.rewards if r is not None and math.isfinite(r))
                if value is not None:
                    self.seed_means[event.epoch, event.task_id] = value
            case StepCompleted() if self.last_step is None or event.step > self.last_step.step:
                self.last_step = event
            case EvaluationCompleted() if event.suite == HELDOUT:
                self.evaluations[event.step] = event
            case SynthesisFailed():
                self.failures[event.failure.value] += 1
            case VariantRejected():
                self.counts[f"rejected:{event.failure.value}"] += 1
            case TaskRetired():
                self.retire_reasons[event.reason.value] += 1

    def seed_reward(self, epoch: int) -> float | None:
        """Mean over the human seeds of their mean progress reward in one epoch."""
        return mean(value for (e, task), value in self.seed_means.items() if e == epoch and task in self.seeds)

    def zones(self) -> Counter:
        """Active tasks by zone of their last observation."""
        if self.pool.last_epoch < 0:
            return Counter()
        order = self.pool.epochs[self.pool.last_epoch].order
        seen = [self.pool.observations.get(task_id, ()) for task_id in order]
        return Counter(observations[-1].zone.value if observations else "unknown" for observations in seen)

    def num_injected(self) -> int:
        """Variants that entered training."""
        return sum(len(plan.injected) for plan in self.pool.epochs.values())


def fork_of(started: RunStarted | None) -> dict | None:
    """Whose past a run shares, up to which step and how; ``None`` for a run of its own.

    A ``retrain`` learned the shared steps from the parent's rollouts: it is ``off_policy`` there.
    """
    if started is None or not started.parent_run_id:
        return None
    return {
        "parent_run_id": started.parent_run_id,
        "at_step": started.forked_at_step,
        "mode": started.fork_mode,
        "off_policy": started.fork_mode == ForkMode.RETRAIN.value,
    }


def fork_text(fork: dict) -> str:
    """Whose past a run shares, in one sentence."""
    how = "learned again from its rollouts, off-policy" if fork["off_policy"] else "taken over with its weights"
    return f"steps 1 to {fork['at_step']} of {fork['parent_run_id']}, {how}"


def summary_of(facts: RunFacts) -> dict:
    """The figures of ``summary.json``; a figure that was not measured is ``None``."""
    observed = [e for seen in facts.pool.observations.values() for e in seen]
    epochs = sorted({epoch for epoch, _ in facts.seed_means})
    tests = [facts.evaluations[step] for step in sorted(facts.evaluations)]
    missing, duplicate = facts.ledger.missing(), facts.ledger.duplicate()
    return {
        "run_id": facts.started.run_id if facts.started else "",
        "fork": fork_of(facts.started),
        "outcome": facts.finished.outcome.value if facts.finished else "unfinished",
        "reward_first": facts.seed_reward(epochs[0]) if epochs else None,
        "reward_last": facts.seed_reward(epochs[-1]) if epochs else None,
        "heldout_reward_first": tests[0].mean_reward if tests else None,
        "heldout_reward_last": tests[-1].mean_reward if tests else None,
        "steps": facts.counts["StepCompleted"],
        "epochs": len(epochs),
        "tasks_seeded": facts.counts["TaskSeeded"],
        "boundary_signals": facts.counts["BoundaryDetected"],
        "tasks_synthesized": facts.counts["TaskSynthesized"],
        "synthesis_failed": facts.counts["SynthesisFailed"],
        "tasks_injected": facts.num_injected(),
        "tasks_retired": facts.counts["TaskRetired"],
        "retire_reasons": dict(sorted(facts.retire_reasons.items())),
        "synthesis_failures": dict(sorted(facts.failures.items())),
        "tasks_waiting": len(queue_of(facts.pool)),
        "generated_active": len(live_generated(facts.pool)),
        "injected_first_reward": mean(
            seen[0].mean
            for plan in facts.pool.epochs.values()
            for task_id in plan.injected
            if (seen := facts.pool.observations.get(task_id))
        ),
        "zone_variance": zone_variance(observed),
        "zones": dict(sorted(facts.zones().items())),
        "dead_letters": facts.counts["DeadLettered"],
        "conservation": {"missing": len(missing), "duplicate": len(duplicate), "details": (missing + duplicate)[:20]},
        "weights_digest": facts.last_step.weights_digest if facts.last_step else "",
    }


def reward_by_epoch(facts: RunFacts) -> list[tuple[int, float | None, EpochPlanned]]:
    """For each planned epoch: number, mean reward of the human seeds, the plan."""
    return [(epoch, facts.seed_reward(epoch), plan) for epoch, plan in sorted(facts.pool.epochs.items())]
