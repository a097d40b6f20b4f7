"""Figures of an evaluation with their uncertainty. Pure: equal results give equal figures.

Intervals are at 95 %. A share of tasks solved in one rollout each has a Wilson interval (Wilson 1927), which is honest
at 0 and at 1. Everything else has a percentile bootstrap over tasks (Efron 1979), for rollouts of one task are not
independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from environments.actions import TurnAction, summarize

Z_95 = 1.959963984540054
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Played:
    """One rollout of a held-out task.

    Attributes:
        task_id: The task.
        category: Its category.
        reward: Progress reward, 0 to 1; 0 for a rollout that broke.
        is_right: Whether every turn was right.
        actions: What was done in each turn.
        error: What broke it; empty if nothing did.
    """

    task_id: str
    category: str
    reward: float
    is_right: bool
    actions: tuple[TurnAction, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Value and ends, six digits."""
        return {"value": round(self.value, 6), "low": round(self.low, 6), "high": round(self.high, 6)}


def wilson(num_right: int, num: int) -> Estimate:
    """The share of ``num_right`` in ``num`` independent trials.

    >>> wilson(8, 10).as_dict()
    {'value': 0.8, 'low': 0.490162, 'high': 0.943318}
    """
    if num == 0:
        return Estimate(math.nan, 0.0, 1.0)
    share, z2 = num_right / num, Z_95**2
    centre = (share + z2 / (2 * num)) / (1 + z2 / num)
    half = Z_95 * math.sqrt(share * (1 - share) / num + z2 / (4 * num**2)) / (1 + z2 / num)
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))


def bootstrap(values_B: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of one value per task."""
    values = np.asarray(values_B, np.float64)
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (NUM_RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))


def pass_at_k(num_rollouts: int, num_right: int, k: int) -> float:
    """Unbiased probability that at least one of ``k`` rollouts is right (Chen et al. 2021): 1 - C(n-c, k) / C(n, k).

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4), pass_at_k(4, 0, 4)
    (0.25, 1.0, 0.0)
    """
    if not 1 <= k <= num_rollouts:
        raise ValueError(f"pass@{k} needs at least {k} rollouts, got {num_rollouts}")
    return 1.0 - math.comb(num_rollouts - num_right, k) / math.comb(num_rollouts, k)


def by_task(played: Iterable[Played]) -> dict[str, list[Played]]:
    """Rollouts of each task, tasks in the order they first appear."""
    found: dict[str, list[Played]] = {}
    for each in played:
        found.setdefault(each.task_id, []).append(each)
    return found


def figures(played: Sequence[Played], k: int) -> dict[str, object]:
    """Accuracy, mean reward and pass@k of some rollouts, with intervals."""
    tasks = list(by_task(played).values())

    def over_tasks(figure: Callable[[list[Played]], float]) -> Estimate:
        return bootstrap([figure(rollouts) for rollouts in tasks])

    alone = all(len(rollouts) == 1 for rollouts in tasks)
    accuracy = (
        wilson(sum(each.is_right for each in played), len(played))
        if alone
        else over_tasks(lambda rollouts: float(np.mean([each.is_right for each in rollouts])))
    )
    found: dict[str, object] = {
        "num_tasks": len(tasks),
        "num_errors": sum(bool(each.error) for each in played),
        "accuracy": accuracy.as_dict(),
        "mean_reward": over_tasks(lambda rollouts: float(np.mean([each.reward for each in rollouts]))).as_dict(),
    }
    if k > 1:
        found[f"pass_at_{k}"] = over_tasks(
            lambda rollouts: pass_at_k(len(rollouts), sum(each.is_right for each in rollouts), k)
        ).as_dict()
    return found


def report(played: Sequence[Played], k: int = 1) -> dict[str, object]:
    """All figures: over all tasks, per category, action classes, and how the intervals were made.

    Args:
        played: all rollouts, equally many of every task.
        k: the k of pass@k; 1 leaves it out.
    """
    names = dict.fromkeys(each.category for each in played)
    categories: Mapping[str, list[Played]] = {
        name: [each for each in played if each.category == name] for name in names
    }
    parts = {name: figures(rollouts, k) for name, rollouts in categories.items()}
    alone = len(played) == len(by_task(played))
    return {
        "overall": figures(played, k),
        "category_mean_accuracy": round(float(np.mean([part["accuracy"]["value"] for part in parts.values()])), 6)
        if parts
        else math.nan,
        "categories": parts,
        "actions": {name: actions_of(rollouts) for name, rollouts in (("all", played), *categories.items())},
        "intervals": {
            "level": 0.95,
            "accuracy": "Wilson" if alone else "bootstrap over tasks, percentile",
            "mean_reward": "bootstrap over tasks, percentile",
            "num_resamples": NUM_RESAMPLES,
        },
    }


def actions_of(played: Iterable[Played]) -> dict[str, object]:
    """Turns by action class, and how turns without anything to call ended."""
    found = summarize(action for each in played for action in each.actions)
    return {
        "num_turns": found.num_turns,
        **found.num_by_action,
        "num_no_call_turns": found.num_no_call_turns,
        "num_no_call_class_right": found.num_no_call_class_right,
        "num_no_call_silent": found.num_no_call_silent,
        "num_right_verdict_wrong_class": found.num_right_verdict_wrong_class,
    }
