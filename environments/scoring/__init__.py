"""Scoring: what a correct agent leaves behind (Reference), the checks of one turn, and the rewards made of verdicts."""

from environments.scoring.reference import Reference
from environments.scoring.rewards import binary_reward, format_reward, observed_reward, progress_reward
from environments.scoring.turns import contains_all, same_state

__all__ = [
    "Reference",
    "binary_reward",
    "contains_all",
    "format_reward",
    "observed_reward",
    "progress_reward",
    "same_state",
]
