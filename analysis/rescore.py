"""What a recorded run would have been under other rewards or detector settings. Pure.

The batches stay as they were; zones, signals, injections and retirements are decided again from the rescored groups. A
variant whose signal would not have been sent is not injected; one that a new signal would have brought does not exist.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from schemas import Event
from schemas.events import EpochPlanned, RolloutGroupCompleted, RunStarted, Zone
from streams.pool.boundary import zone_variance
from streams.pool.decide import due_signals, stage_at
from streams.pool.lifecycle import EpochDecision, plan_epoch
from streams.pool.pool import Pool, apply, initial
from streams.pool.settings import PoolConfig

Rescorer = Callable[[RolloutGroupCompleted], RolloutGroupCompleted]


@dataclass(slots=True)
class Counterfactual:
    """One reading of a run.

    Attributes:
        zones: observations by zone.
        boundary: (step, task id) of every boundary observation.
        variance: mean reward variance by zone.
        mean_reward: over all observations; ``None`` without any.
        signals: (step, task id) of every signal.
        injected: by epoch.
        retired: (task id, reason) of every retirement, first time each.
    """

    zones: Counter = field(default_factory=Counter)
    boundary: set[tuple[int, str]] = field(default_factory=set)
    variance: dict[str, float] = field(default_factory=dict)
    mean_reward: float | None = None
    signals: set[tuple[int, str]] = field(default_factory=set)
    injected: dict[int, tuple[str, ...]] = field(default_factory=dict)
    retired: dict[str, str] = field(default_factory=dict)


def reread(events: Iterable[Event], rescorer: Rescorer, config: PoolConfig | None = None) -> Counterfactual:
    """Fold a run with other groups or settings and decide every step and epoch again.

    Args:
        events: the run's events, in any order across topics.
        rescorer: gives each group its new rewards.
        config: pool settings; the recorded ones if ``None``.
    """
    pool, plans = initial(), []
    for event in events:
        if isinstance(event, RolloutGroupCompleted):
            event = rescorer(event)
        elif isinstance(event, EpochPlanned):
            plans.append(event)
        elif isinstance(event, RunStarted) and config is not None:
            event = started_with(event, config)
        pool = apply(pool, event)
    return _read(pool, plans)


def started_with(event: RunStarted, config: PoolConfig) -> RunStarted:
    """The start of a run as if it had had other pool settings: groups heard before it are read under them too."""
    tree = json.loads(event.config_json) | {"pool": config.model_dump(mode="json")}
    return replace(event, config_json=json.dumps(tree, sort_keys=True))


def _read(pool: Pool, plans: list[EpochPlanned]) -> Counterfactual:
    result = Counterfactual()
    seen = [evidence for observations in pool.observations.values() for evidence in observations]
    result.zones = Counter(evidence.zone.value for evidence in seen)
    result.boundary = {
        (e.step, task_id)
        for task_id, observations in pool.observations.items()
        for e in observations
        if e.zone is Zone.BOUNDARY
    }
    result.variance = zone_variance(seen)
    result.mean_reward = math.fsum(e.mean for e in seen) / len(seen) if seen else None
    bare = pool._replace(signals=type(pool.signals)(), signalled=type(pool.signalled)())
    for step in sorted(pool.steps):
        chosen = due_signals(bare, pool.batches[step])
        for signal in chosen:
            bare = apply(bare, signal)
        result.signals |= {(signal.step, signal.task_id) for signal in chosen}
    for plan in sorted(plans, key=lambda p: p.epoch):
        decision = _decided(pool, plan, result.signals)
        if decision is not None:
            result.injected[plan.epoch] = decision.injected
            for retirement in decision.retired:
                result.retired.setdefault(retirement.task_id, retirement.reason.value)
    return result


def _decided(pool: Pool, plan: EpochPlanned, signals: set[tuple[int, str]]) -> EpochDecision | None:
    """The decision of an epoch from what was known when it was planned, and from the variants of these signals."""
    earlier = {number: event for number, event in pool.epochs.items() if number < plan.epoch}
    known = {task_id: tuple(e for e in seen if e.step < plan.first_step) for task_id, seen in pool.observations.items()}
    gone = {task_id: event for task_id, event in pool.retired.items() if event.epoch < plan.epoch}
    tasks = {task_id: task for task_id, task in pool.tasks.items() if task.position[0] < plan.first_step}
    asked_for = {t: at for t, at in pool.generated.items() if (at[0], pool.tasks[t].parent_task_id) in signals}
    make_map = type(pool.epochs)
    then = pool._replace(
        epochs=make_map(earlier),
        generated=make_map(asked_for),
        observations=make_map({t: seen for t, seen in known.items() if seen}),
        retired=make_map(gone),
        tasks=make_map(tasks),
        last_epoch=max(earlier, default=-1),
        last_step=plan.first_step - 1,
    )
    stage = stage_at(then, plan.epoch)
    return plan_epoch(then, stage, plan.epoch) if stage else None
