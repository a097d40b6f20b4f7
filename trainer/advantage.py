"""Advantages of the rollouts of one group: pure functions of rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-6


def group_advantages(
    rewards_G: Sequence[float | None], *, normalise_std: bool = True, leave_one_out: bool = False
) -> np.ndarray:
    """Group-relative advantages, shape (G,), float64 (GRPO, Shao et al. 2024; leave-one-out: Ahmadian et al. 2024).

    A_k = (R_k - mean) / (std + 1e-6) with the unbiased standard deviation; with ``leave_one_out`` the mean is
    that of the other rollouts. Invalid rewards (None, NaN, infinite) are left out of the statistics and get
    advantage 0. A group whose valid rewards are all equal gets exactly 0; a single valid reward has mean 0
    and std 1.

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
    if len(valid) == 1:
        advantages_G[valid_G] = valid / (1 + EPSILON) if normalise_std else valid
    elif len(valid) and valid.max() > valid.min():
        centred = valid - valid.mean()
        if leave_one_out:
            centred *= len(valid) / (len(valid) - 1)
        advantages_G[valid_G] = centred / (valid.std(ddof=1) + EPSILON) if normalise_std else centred
    return advantages_G


def has_no_signal(rewards_G: Sequence[float | None]) -> bool:
    """Whether a group has zero variance, so that every advantage is 0; a single valid reward still counts as one."""
    rewards = as_rewards(rewards_G)
    valid = rewards[np.isfinite(rewards)]
    return len(valid) != 1 and (len(valid) == 0 or bool(valid.max() == valid.min()))


def as_rewards(rewards_G: Sequence[float | None]) -> np.ndarray:
    """Rewards as float64, shape (G,); null becomes NaN."""
    return np.array([np.nan if reward is None else reward for reward in rewards_G], dtype=np.float64)
