"""Advantages of the rollouts of one group: pure functions of rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EPSILON = 1e-6
TOLERANCE = 1e-9
"""Rewards this close are equal: rewards of this method differ by 1e-3 or more, roundings by 1e-16."""


def group_advantages(
    rewards_G: Sequence[float | None],
    *,
    normalise_std: bool = True,
    leave_one_out: bool = False,
    tolerance: float = TOLERANCE,
) -> np.ndarray:
    """Group-relative advantages, shape (G,), float64 (GRPO, Shao et al. 2024; leave-one-out: Ahmadian et al. 2024).

    A_k = (R_k - mean) / (std + 1e-6) with the unbiased standard deviation; with ``leave_one_out`` the mean is
    that of the other rollouts. Invalid rewards (None, NaN, infinite) are left out of the statistics and get
    advantage 0. A group whose valid rewards are all equal, within ``tolerance``, gets exactly 0; a single valid
    reward is compared with 0, its standard deviation taken as 1.

    >>> group_advantages([0, .5, .5, 1]).round(4).tolist()
    [-1.2247, 0.0, 0.0, 1.2247]
    >>> group_advantages([0, .5, .5, 1], normalise_std=False).tolist()
    [-0.5, 0.0, 0.0, 0.5]
    >>> group_advantages([.3, .3, None]).tolist()
    [0.0, 0.0, 0.0]
    """
    rewards = as_rewards(rewards_G)
    valid_G = np.isfinite(rewards)
    valid = rewards[valid_G]
    advantages_G = np.zeros(len(rewards))
    if len(valid) == 1 and abs(valid[0]) > tolerance:
        advantages_G[valid_G] = valid / (1 + EPSILON) if normalise_std else valid
    elif spread(valid) > tolerance:
        centred = valid - valid.mean()
        if leave_one_out:
            centred *= len(valid) / (len(valid) - 1)
        advantages_G[valid_G] = centred / (valid.std(ddof=1) + EPSILON) if normalise_std else centred
    return advantages_G


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of the valid rewards of a group.

    Attributes:
        num_valid: Rewards that are there and finite.
        mean: Their mean; NaN of none.
        variance: Their unbiased variance; 0 of fewer than two.
        has_signal: Whether any advantage of the group differs from 0: its valid rewards are not all equal, or a single one is not 0.
    """

    num_valid: int
    mean: float
    variance: float
    has_signal: bool


def group_statistics(rewards_G: Sequence[float | None], tolerance: float = TOLERANCE) -> GroupStatistics:
    """Statistics of a group; what is missing, NaN or infinite is left out.

    >>> group_statistics([1, 0, 0, 0, None])
    GroupStatistics(num_valid=4, mean=0.25, variance=0.25, has_signal=True)
    """
    rewards = as_rewards(rewards_G)
    valid = rewards[np.isfinite(rewards)]
    mean = float(valid.mean()) if len(valid) else float("nan")
    variance = float(valid.var(ddof=1)) if len(valid) > 1 else 0.0
    return GroupStatistics(len(valid), mean, variance, bool(group_advantages(rewards, tolerance=tolerance).any()))


def has_no_signal(rewards_G: Sequence[float | None], tolerance: float = TOLERANCE) -> bool:
    """Whether every advantage of a group is 0, under all settings of :func:`group_advantages`: the one test of zero variance."""
    return not group_statistics(rewards_G, tolerance).has_signal


def spread(valid: np.ndarray) -> float:
    """Largest less smallest reward; 0 of none."""
    return float(valid.max() - valid.min()) if len(valid) else 0.0


def as_rewards(rewards_G: Sequence[float | None]) -> np.ndarray:
    """Rewards as float64, shape (G,); null becomes NaN."""
    return np.array([np.nan if reward is None else reward for reward in rewards_G], dtype=np.float64)
