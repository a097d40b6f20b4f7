"""The learning rate of every optimizer step: pure functions of its number."""

from __future__ import annotations

import math
from dataclasses import dataclass


def learning_rate(peak: float, warmup_steps: int, num_updates: int) -> float:
    """The rate of the optimizer step behind ``num_updates`` earlier ones: linear from peak / warmup_steps up to peak.

    >>> [learning_rate(1.0, 4, num_updates) for num_updates in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return peak * min(1.0, (num_updates + 1) / max(1, warmup_steps))


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then constant, linear or cosine down to ``final_frac`` of the peak.

    Attributes:
        peak: Highest rate.
        warmup_steps: Optimizer steps of linear warm-up.
        course: constant, linear or cosine.
        decay_steps: Optimizer step from which the rate stays final.
        final_frac: Final rate over peak.
    """

    peak: float
    warmup_steps: int = 0
    course: str = "constant"
    decay_steps: int = 0
    final_frac: float = 0.0

    def rate(self, num_updates: int) -> float:
        """The rate of the optimizer step behind ``num_updates`` earlier ones.

        >>> [round(Schedule(1.0, 1, "linear", 5, 0.2).rate(num_updates), 3) for num_updates in range(7)]
        [1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
        """
        rate = learning_rate(self.peak, self.warmup_steps, num_updates)
        if self.course == "constant":
            return rate
        gone = min(1.0, max(0, num_updates - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        left = 1.0 - gone if self.course == "linear" else 0.5 * (1.0 + math.cos(math.pi * gone))
        return rate * (self.final_frac + (1.0 - self.final_frac) * left)
