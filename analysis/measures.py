"""The figures of a run for a monitoring system, from its facts alone. Pure.

Names follow the Prometheus conventions: ``rods_`` first, the unit in the name, ``_total`` for counts that only grow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.series import ORIGINS, ZONES, reward_by_step
from analysis.summary import RunFacts
from schemas import Event
from schemas.events import Origin, RolloutGroupCompleted, StepCompleted
from streams.pool.rows import state_of

STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16)
STATES = ("active", "waiting", "retired")


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric of one run.

    Attributes:
        name: metric name.
        kind: ``gauge`` or ``counter``.
        meaning: one sentence with the unit.
        samples: (labels without the run, value).
    """

    name: str
    kind: str
    meaning: str
    samples: Sequence[tuple[Mapping[str, str], float]]


@dataclass(slots=True)
class RunMeter:
    """Facts of one run and the tallies that only monitoring needs; feed it every event once or many times.

    Attributes:
        facts: the run.
        staleness: groups by the number of updates between the weights that sampled them and those they trained.
        phase_ms: wall time by phase over all steps, milliseconds.
    """

    facts: RunFacts = field(default_factory=RunFacts)
    staleness: Counter = field(default_factory=Counter)
    phase_ms: Counter = field(default_factory=Counter)
    _seen: set[str] = field(default_factory=set)

    def add(self, events: Iterable[Event]) -> RunMeter:
        """Fold events; one already seen changes nothing."""
        for event in events:
            if event.event_id in self._seen:
                continue
            self._seen.add(event.event_id)
            self.facts.add([event])
            if isinstance(event, RolloutGroupCompleted):
                self.staleness[max(0, event.step - 1 - event.policy_version)] += 1
            elif isinstance(event, StepCompleted):
                self.phase_ms.update(event.timings_ms)
        return self


def measures(meter: RunMeter) -> Iterator[Measure]:
    """Every figure of a run."""
    yield from _progress(meter.facts)
    yield from _pool(meter.facts)
    yield from _synthesis(meter.facts)
    yield from _training(meter)


def _progress(facts: RunFacts) -> Iterator[Measure]:
    events = [({"event": name}, n) for name, n in sorted(facts.counts.items()) if not name.startswith("rejected:")]
    yield Measure("rods_events_total", "counter", "Events heard by type.", events)
    step = facts.last_step
    yield Measure("rods_step", "gauge", "Last completed training step.", [({}, step.step if step else 0)])
    yield Measure(
        "rods_epoch", "gauge", "Last planned epoch, from 1; 0 before the first.", [({}, facts.pool.last_epoch + 1)]
    )
    yield Measure("rods_finished", "gauge", "1 when the run has ended for good.", [({}, float(facts.pool.finished))])
    yield Measure(
        "rods_dead_letters_total", "counter", "Records nobody could use.", [({}, facts.counts["DeadLettered"])]
    )


def _pool(facts: RunFacts) -> Iterator[Measure]:
    pool = facts.pool
    tally = Counter((state_of(pool, t.task_id), t.origin.value) for t in pool.tasks.values())
    yield Measure(
        "rods_pool_tasks",
        "gauge",
        "Tasks by state and origin.",
        [({"state": state, "origin": origin}, tally[state, origin]) for state in STATES for origin in ORIGINS],
    )
    zones = facts.zones()
    total = max(1, sum(zones.values()))
    yield Measure(
        "rods_pool_zone_tasks",
        "gauge",
        "Tasks in training by zone of their last observation.",
        [({"zone": zone}, zones[zone]) for zone in ZONES],
    )
    yield Measure(
        "rods_pool_zone_share",
        "gauge",
        "The same as a share of the pool, 0 to 1.",
        [({"zone": zone}, zones[zone] / total) for zone in ZONES],
    )
    yield Measure(
        "rods_pool_injected_total", "counter", "Variants that entered training.", [({}, facts.num_injected())]
    )
    yield Measure(
        "rods_pool_retired_total",
        "counter",
        "Tasks that left, by reason.",
        [({"reason": reason}, n) for reason, n in sorted(facts.retire_reasons.items())],
    )


def _synthesis(facts: RunFacts) -> Iterator[Measure]:
    pool = facts.pool
    open_signals = sum(signal_id not in pool.answered for signal_id in pool.signals)
    yield Measure(
        "rods_synthesis_open_signals", "gauge", "Boundary signals without an outcome yet.", [({}, open_signals)]
    )
    made = [({"outcome": "synthesized"}, facts.counts["TaskSynthesized"])]
    yield Measure(
        "rods_synthesis_outcomes_total",
        "counter",
        "Ended signals: synthesized, or the failure.",
        [*made, *(({"outcome": name}, n) for name, n in sorted(facts.failures.items()))],
    )
    refused = [
        (name.removeprefix("rejected:"), n) for name, n in sorted(facts.counts.items()) if name.startswith("rejected:")
    ]
    yield Measure(
        "rods_synthesis_rejected_total",
        "counter",
        "Candidates built and refused, by reason.",
        [({"reason": reason}, n) for reason, n in refused],
    )
    depths = Counter(t.generation for t in pool.tasks.values() if t.origin is Origin.GENERATED)
    yield Measure(
        "rods_lineage_tasks",
        "gauge",
        "Variants by generation.",
        [({"generation": str(depth)}, n) for depth, n in sorted(depths.items())],
    )


def _training(meter: RunMeter) -> Iterator[Measure]:
    step = meter.facts.last_step
    metrics, timings_ms = (step.metrics, step.timings_ms) if step else ({}, {})
    known = [(name, value) for name, value in sorted(metrics.items()) if math.isfinite(value)]
    gaps = [({"stat": n.removeprefix("logprob_gap_")}, v) for n, v in known if n.startswith("logprob_gap_")]
    last_ms = [({"phase": phase}, value) for phase, value in sorted(timings_ms.items())]
    total_s = [({"phase": phase}, value / 1000) for phase, value in sorted(meter.phase_ms.items())]
    tokens = step.num_trained_tokens if step else 0
    yield Measure(
        "rods_reward_mean", "gauge", "Mean progress reward, last batch or evaluation, 0 to 1.", _rewards(meter.facts)
    )
    yield Measure("rods_training_metric", "gauge", "Metrics of the last step.", [({"name": n}, v) for n, v in known])
    yield Measure("rods_logprob_gap", "gauge", "Sampler against trainer, absolute, nats a token.", gaps)
    yield Measure("rods_step_time_ms", "gauge", "Wall time of the last step by phase, milliseconds.", last_ms)
    yield Measure("rods_step_time_seconds_total", "counter", "Wall time of all steps by phase, seconds.", total_s)
    yield Measure("rods_trained_tokens", "gauge", "Sampled tokens in the last update.", [({}, tokens)])


def _rewards(facts: RunFacts) -> list[tuple[Mapping[str, str], float]]:
    """Mean reward of the last evaluation and of the last batch, the batch also by zone."""
    rewards: list[tuple[Mapping[str, str], float]] = []
    if facts.evaluations:
        last = facts.evaluations[max(facts.evaluations)]
        rewards.append(({"tasks": "heldout", "zone": "all"}, last.mean_reward))
    for _, value, zones in reward_by_step(facts.pool)[-1:]:
        rewards.append(({"tasks": "batch", "zone": "all"}, value))
        rewards += [({"tasks": "batch", "zone": zone}, mean) for zone, mean in zones.items()]
    return rewards


def staleness_buckets(meter: RunMeter) -> tuple[list[tuple[str, float]], float]:
    """Cumulative histogram of the groups' staleness, updates: (upper bound, groups at most so stale), and the sum."""
    buckets = [
        (f"{bound}.0", float(sum(n for age, n in meter.staleness.items() if age <= bound)))
        for bound in STALENESS_BOUNDS
    ]
    total = float(sum(meter.staleness.values()))
    return [*buckets, ("+Inf", total)], float(sum(age * n for age, n in meter.staleness.items()))
