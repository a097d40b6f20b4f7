"""The figures of a run for a monitoring system, from its index alone. Pure.

Names follow the Prometheus conventions: ``rods_`` first, the unit in the name, ``_total`` for counts that only grow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.index import RunIndex
from analysis.series import ORIGINS, ZONES, reward_by_step
from analysis.summary import tests_of
from schemas.events import Origin
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


Samples = Sequence[tuple[Mapping[str, str], float]]


def measures(run: RunIndex) -> Iterator[Measure]:
    """Every figure of a run."""
    for name, kind, meaning, samples in (*_progress(run), *_pool(run), *_synthesis(run), *_training(run)):
        yield Measure(name, kind, meaning, samples if isinstance(samples, list) else [({}, samples)])


def _by(label: str, tally: Mapping[str, float]) -> Samples:
    """One sample a key, sorted."""
    return [({label: name}, value) for name, value in sorted(tally.items())]


def _progress(run: RunIndex) -> Iterator[tuple]:
    step = run.last_step.step if run.last_step else 0
    yield "rods_events_total", "counter", "Events heard by type.", _by("event", run.counts)
    yield "rods_step", "gauge", "Last completed training step.", step
    yield "rods_epoch", "gauge", "Last planned epoch, from 1; 0 before the first.", run.pool.last_epoch + 1
    yield "rods_finished", "gauge", "1 when the run has ended for good.", float(run.pool.finished)
    yield "rods_dead_letters_total", "counter", "Records nobody could use.", run.counts["DeadLettered"]


def _pool(run: RunIndex) -> Iterator[tuple]:
    pool, tally = run.pool, run.zones()
    total = max(1, sum(tally.values()))
    kinds = Counter((state_of(pool, t.task_id), t.origin.value) for t in pool.tasks.values())
    tasks = [({"state": state, "origin": origin}, kinds[state, origin]) for state in STATES for origin in ORIGINS]
    in_zones = [({"zone": zone}, tally[zone]) for zone in ZONES]
    shares = [({"zone": zone}, tally[zone] / total) for zone in ZONES]
    yield "rods_pool_tasks", "gauge", "Tasks by state and origin.", tasks
    yield "rods_pool_zone_tasks", "gauge", "Tasks in training by zone of their last observation.", in_zones
    yield "rods_pool_zone_share", "gauge", "The same as a share of the pool, 0 to 1.", shares
    num_injected = sum(len(plan.injected) for plan in pool.epochs.values())
    yield "rods_pool_injected_total", "counter", "Variants that entered training.", num_injected
    reasons = _by("reason", run.retire_reasons)
    yield "rods_pool_retired_total", "counter", "Tasks that left, by reason.", reasons


def _synthesis(run: RunIndex) -> Iterator[tuple]:
    outcomes = [({"outcome": "synthesized"}, run.counts["TaskSynthesized"]), *_by("outcome", run.failures)]
    depths = Counter(t.generation for t in run.pool.tasks.values() if t.origin is Origin.GENERATED)
    by_depth = [({"generation": str(depth)}, count) for depth, count in sorted(depths.items())]
    yield ("rods_synthesis_open_signals", "gauge", "Boundary signals without an outcome yet.", run.num_open_signals)
    yield "rods_synthesis_outcomes_total", "counter", "Ended signals: synthesized, or the failure.", outcomes
    refused = _by("reason", run.rejections)
    yield "rods_synthesis_rejected_total", "counter", "Candidates built and refused, by reason.", refused
    yield "rods_lineage_tasks", "gauge", "Variants by generation.", by_depth


def _training(run: RunIndex) -> Iterator[tuple]:
    step = run.last_step
    known = {name: value for name, value in step.metrics.items() if math.isfinite(value)} if step else {}
    gaps = {name.removeprefix("logprob_gap_"): v for name, v in known.items() if name.startswith("logprob_gap_")}
    last_ms = _by("phase", step.timings_ms if step else {})
    phase_ms: Counter = Counter()
    for done in run.steps.values():
        phase_ms.update(done.timings_ms)
    total_s = _by("phase", {phase: ms / 1000 for phase, ms in phase_ms.items()})
    tokens = step.num_trained_tokens if step else 0
    yield "rods_reward_mean", "gauge", "Mean progress reward, last batch or evaluation, 0 to 1.", _rewards(run)
    yield "rods_training_metric", "gauge", "Metrics of the last step.", _by("name", known)
    yield "rods_logprob_gap", "gauge", "Sampler against trainer, absolute, nats a token.", _by("stat", gaps)
    yield "rods_step_time_ms", "gauge", "Wall time of the last step by phase, milliseconds.", last_ms
    yield "rods_step_time_seconds_total", "counter", "Wall time of all steps by phase, seconds.", total_s
    yield "rods_trained_tokens", "gauge", "Sampled tokens in the last update.", tokens


def _rewards(run: RunIndex) -> Samples:
    """Mean reward of the last evaluation and of the last batch, the batch also by zone."""
    rewards = [({"tasks": "heldout", "zone": "all"}, test.mean_reward) for test in tests_of(run)[-1:]]
    for _, value, by_zone in reward_by_step(run.pool)[-1:]:
        rewards.append(({"tasks": "batch", "zone": "all"}, value))
        rewards += [({"tasks": "batch", "zone": zone}, value) for zone, value in by_zone.items()]
    return rewards


def staleness_buckets(run: RunIndex) -> tuple[list[tuple[str, float]], float]:
    """Cumulative histogram of the groups' staleness, updates: (upper bound, groups at most so stale), and the sum."""
    ages = [max(0, g.step - 1 - g.policy_version) for groups in run.groups.values() for g in groups]
    buckets = [(f"{bound}.0", float(sum(age <= bound for age in ages))) for bound in STALENESS_BOUNDS]
    return [*buckets, ("+Inf", float(len(ages)))], float(sum(ages))
