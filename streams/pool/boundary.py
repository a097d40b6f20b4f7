"""Where the capability boundary is: evidence of a group, zones, and which tasks become seeds. Pure.

Formulas: RODS (arXiv 2606.19047): zones by the mean progress reward of a group, phi = 4 mean (1 - mean), fixed
quotas per category, cooldown after a signal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.events import Evidence, RolloutGroupCompleted, Zone
from schemas.heads import GroupHead
from streams.pool.settings import PoolConfig


def phi(mean: float) -> float:
    """4 mean (1 - mean): the Bhatia-Davis bound on the variance of a reward in [0, 1], scaled to 1.

    >>> phi(0.5), phi(0.25), round(phi(0.85), 2)
    (1.0, 0.75, 0.51)
    """
    return 4.0 * mean * (1.0 - mean)


def zone_of(mean: float, config: PoolConfig) -> Zone:
    """Zone of a mean reward; the ends of the window belong to the boundary."""
    if mean < config.alpha_low - config.zone_slack:
        return Zone.HARD
    if mean > config.alpha_high + config.zone_slack:
        return Zone.MASTERED
    return Zone.BOUNDARY


def signals_of(group: RolloutGroupCompleted | GroupHead, config: PoolConfig) -> Sequence[float]:
    """The detector's reward of each valid rollout, in rollout order; missing and non-finite rewards are left out."""
    rewards = group.rewards
    if config.signal == "progress":
        whole = None not in rewards and math.isfinite(sum(rewards))
        return rewards if whole else [r for r in rewards if r is not None and math.isfinite(r)]
    chosen, turn_verdicts = [], group.turn_verdicts
    for index, reward in enumerate(rewards):
        if reward is not None and math.isfinite(reward):
            verdicts = turn_verdicts[index] if index < len(turn_verdicts) else ()
            chosen.append(1.0 if verdicts and all(v == 1 for v in verdicts) else 0.0)
    return chosen


def evidence_of(group: RolloutGroupCompleted | GroupHead, config: PoolConfig) -> Evidence | None:
    """What a group says about its task, or ``None`` when too few rollouts are valid.

    The variance is the population variance. A group with fewer than ``min_valid_frac`` of K valid rollouts is no
    observation.
    """
    values = signals_of(group, config)
    if not values or len(values) < config.min_valid_frac * group.num_rollouts:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum([(value - mean) ** 2 for value in values]) / len(values)
    return Evidence(
        step=group.step,
        num_rollouts=group.num_rollouts,
        num_valid=len(values),
        mean=mean,
        variance=variance,
        phi=phi(mean),
        zone=zone_of(mean, config),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that could become a seed."""

    task_id: str
    category: str
    evidence: Evidence
    rested: bool


def selected(candidates: Iterable[Candidate], config: PoolConfig, draw: str) -> list[tuple[Candidate, int]]:
    """Seeds of one step with their rank in their category: rested boundary tasks, best phi first, up to the quota.

    Ties go by task id. Unfilled quota of a category is not given to another.

    Args:
        candidates: tasks with their evidence of this step.
        config: settings.
        draw: text that seeds the order when selection is random.
    """
    fit = [c for c in candidates if c.rested and c.evidence.zone is Zone.BOUNDARY]

    def rank_key(candidate: Candidate) -> tuple:
        if config.selection == "random":
            return (hashlib.sha256(f"{draw}\x1f{candidate.task_id}".encode()).hexdigest(),)
        return (-candidate.evidence.phi, candidate.task_id)

    chosen: list[tuple[Candidate, int]] = []
    for category, quota in config.quota.items():
        ranked = sorted((c for c in fit if c.category == category), key=rank_key)
        chosen += [(candidate, rank) for rank, candidate in enumerate(ranked[:quota])]
    return chosen


def zone_variance(evidence: Sequence[Evidence]) -> dict[str, float]:
    """Mean reward variance of the observations in each zone; zones without observations are left out."""
    means = {}
    for zone in (Zone.HARD, Zone.BOUNDARY, Zone.MASTERED):
        variances = [e.variance for e in evidence if e.zone is zone]
        if variances:
            means[zone.value] = math.fsum(variances) / len(variances)
    return means
