"""What a run looks like over its epochs and steps: the series behind report, dashboard and metrics. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.index import RunIndex, mean
from analysis.summary import is_human
from schemas.events import EpochPlanned, Evidence, Origin
from streams.pool.boundary import zone_variance
from streams.pool.pool import Pool
from streams.pool.rows import PoolRow, row_of

ZONES = ("hard", "boundary", "mastered", "unknown")
ORIGINS = (Origin.HUMAN.value, Origin.GENERATED.value)


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One planned epoch.

    Attributes:
        epoch: 0-based.
        num_human, num_generated, num_queued: tasks in training by origin, and variants that still wait.
        zones: tasks in training by (origin, zone of the last observation up to this epoch's end).
        human_reward, generated_reward: mean over tasks of their mean progress reward in this epoch, 0 to 1.
        num_injected: variants that entered with this plan.
        first_means: mean reward of the first observation of each of them that has one.
        num_signals, num_variants, num_failed, num_open: boundary signals of this epoch and how they ended.
        retired: tasks that left with this plan, by reason.
    """

    epoch: int
    num_human: int
    num_generated: int
    num_queued: int
    zones: Mapping[tuple[str, str], int]
    human_reward: float | None
    generated_reward: float | None
    num_injected: int
    first_means: tuple[float, ...]
    num_signals: int
    num_variants: int
    num_failed: int
    num_open: int
    retired: Mapping[str, int]


def zones_in(pool: Pool, plan: EpochPlanned) -> Counter:
    """Tasks of a plan by (origin, zone of the last observation up to the end of that epoch)."""
    found: Counter = Counter()
    for task_id in plan.order:
        task, seen = pool.tasks.get(task_id), pool.observations.get(task_id, ())
        so_far = [e for e in seen if e.step not in pool.batches or pool.batches[e.step].epoch <= plan.epoch]
        origin = task.origin.value if task else Origin.HUMAN.value
        found[origin, so_far[-1].zone.value if so_far else "unknown"] += 1
    return found


def epoch_rows(run: RunIndex) -> list[EpochRow]:
    """Every planned epoch in order."""
    rewards = run.rewards()
    return [_row(run, plan, rewards.get(epoch, {})) for epoch, plan in sorted(run.pool.epochs.items())]


def _row(run: RunIndex, plan: EpochPlanned, rewards: Mapping[str, float]) -> EpochRow:
    pool = run.pool
    signals = [signal.signal_id for signal in pool.signals.values() if signal.epoch == plan.epoch]
    ended = [pool.answered[signal_id] for signal_id in signals if signal_id in pool.answered]
    seen = (pool.observations.get(task_id, ()) for task_id in plan.injected)
    return EpochRow(
        epoch=plan.epoch,
        num_human=plan.num_human,
        num_generated=plan.num_generated,
        num_queued=plan.num_queued,
        zones=zones_in(pool, plan),
        human_reward=mean(value for task_id, value in rewards.items() if is_human(run, task_id)),
        generated_reward=mean(value for task_id, value in rewards.items() if not is_human(run, task_id)),
        num_injected=len(plan.injected),
        first_means=tuple(observed[0].mean for observed in seen if observed),
        num_signals=len(signals),
        num_variants=sum(map(bool, ended)),
        num_failed=sum(not task_id for task_id in ended),
        num_open=len(signals) - len(ended),
        retired=Counter(event.reason.value for event in pool.retired.values() if event.epoch == plan.epoch),
    )


def evidence_by_step(pool: Pool) -> dict[int, list[Evidence]]:
    """Observations by training step, steps ascending, tasks in id order."""
    found: dict[int, list[Evidence]] = {}
    for task_id in sorted(pool.observations):
        for evidence in pool.observations[task_id]:
            found.setdefault(evidence.step, []).append(evidence)
    return dict(sorted(found.items()))


def reward_by_step(pool: Pool) -> list[tuple[int, float, dict[str, float]]]:
    """(step, mean reward over its tasks, the same by zone) of each step with observations."""
    rows = []
    for step, seen in evidence_by_step(pool).items():
        zones = {zone: mean(e.mean for e in seen if e.zone.value == zone) for zone in ZONES}
        rows.append(
            (step, mean(e.mean for e in seen), {zone: value for zone, value in zones.items() if value is not None})
        )
    return rows


def variance_table(pool: Pool) -> tuple[dict[str, float], dict[str, int], float | None]:
    """Mean reward variance by zone, observations by zone, and boundary over all others (``None`` if undefined)."""
    seen = [evidence for observed in pool.observations.values() for evidence in observed]
    others = mean(e.variance for e in seen if e.zone.value != "boundary")
    means = zone_variance(seen)
    ratio = means["boundary"] / others if others and "boundary" in means else None
    return means, dict(Counter(e.zone.value for e in seen)), ratio


def family(pool: Pool, task_id: str) -> list[PoolRow]:
    """A task's whole lineage: its human ancestor and everything made from it, oldest generation first.

    An unknown id gives an empty list.
    """
    if task_id not in pool.tasks:
        return []
    root = pool.tasks[task_id].root_task_id
    members = [task for task in pool.tasks.values() if task.root_task_id == root]
    ordered = sorted(members, key=lambda task: (task.generation, task.position))
    return [row_of(pool, task.task_id) for task in ordered]


def busiest_task(pool: Pool) -> str:
    """The human task with the most descendants, the first seeded among equals; empty without tasks."""
    sizes = Counter(task.root_task_id for task in pool.tasks.values())
    human = sorted((t for t in pool.tasks.values() if t.origin is Origin.HUMAN), key=lambda t: t.position)
    return max(human, key=lambda task: sizes[task.task_id]).task_id if human else ""
