"""Settings of the replay buffer and of boundary detection, each with its default and why.

"Method" marks a number the method publishes; "choice" marks one it leaves open.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator


class PoolConfig(BaseModel):
    """What the pool agent decides by. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    batch_size: int = Field(
        32, ge=1, description="Tasks per training step. Choice: 400 / 32 = 13 steps an epoch fits the reported latency."
    )
    max_steps: int = Field(
        0,
        ge=0,
        description="Last step of the run, held-out evaluation behind it; 0: as many as the epochs have. For trials and equal budgets.",
    )
    alpha_low: float = Field(0.20, ge=0, le=1, description="Mean reward below this is hard. Method.")
    alpha_high: float = Field(0.85, ge=0, le=1, description="Mean reward above this is mastered. Method.")
    alpha_retire: float = Field(
        0.95, ge=0, le=1, description="Mean reward above this retires a generated task. Method."
    )
    zone_slack: float = Field(
        1e-9,
        ge=0,
        le=0.01,
        description="Window ends are inclusive within this slack. Choice: means of fractions are inexact.",
    )
    min_valid_frac: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of K rollouts that must be valid for an observation. Choice: failures of machines are not failures of the policy.",
    )
    signal: Literal["progress", "binary"] = Field(
        "progress", description="Reward the detector reads. Method: progress; binary is its ablation."
    )
    selection: Literal["phi", "random"] = Field(
        "phi", description="How seeds are ranked. Method: phi; random is its ablation."
    )
    quota: dict[Literal["base", "miss_func", "miss_param", "long_context"], NonNegativeInt] = Field(
        default={"base": 4, "miss_func": 4, "miss_param": 4, "long_context": 4},
        description="Signals per step by category; unfilled quota is not given away. Choice: equal categories, half of a 32-task batch.",
    )
    cooldown: int = Field(13, ge=0, description="A seed rests this long after a signal. Choice: one epoch of 13 steps.")
    cooldown_unit: Literal["steps", "epochs"] = Field(
        "steps", description="Unit of the cooldown. Choice: steps an epoch change as the pool grows."
    )
    seed_from_generated: bool = Field(
        True, description="Whether generated tasks may be seeds. Choice: the boundary moves."
    )
    max_generation: int = Field(
        2, ge=1, description="Deepest lineage of a variant. Choice: limits drift from human tasks."
    )
    max_generated: int = Field(400, ge=0, description="Live generated tasks at most (Pmax). Method.")
    injection_frac: float = Field(
        0.20,
        ge=0,
        le=1,
        description="Injected per epoch at most, of the pool after retirement (beta). Method; base of the share is a choice.",
    )
    queue_order: Literal["fifo", "freshest"] = Field(
        "fifo", description="Order of the waiting queue by step of the signal. Method: FIFO."
    )
    queue_expiry_epochs: int = Field(
        3,
        ge=0,
        description="Waiting tasks whose signal is older leave; 0 keeps them. Choice: an old boundary estimate is stale.",
    )
    retirement: bool = Field(True, description="Whether generated tasks retire. Method; off is its ablation.")
    burn_in_observations: int = Field(
        1,
        ge=0,
        description="A new generated task is dropped when hard in all of its first N observations; 0 turns it off. Choice: 16 rollouts are enough to reject zeros.",
    )
    mastered_observations: int = Field(
        1, ge=1, description="Consecutive observations above alpha_retire that retire. Choice."
    )
    hard_observations: int = Field(
        2,
        ge=1,
        description="Consecutive observations below alpha_low that retire. Choice: one noisy group should not evict.",
    )
    stale_epochs: int = Field(
        0,
        ge=0,
        description="Retire what was not observed for this many epochs; 0 turns it off. Choice: every task is seen each epoch.",
    )
    protect_seeds: bool = Field(
        True, description="Human seeds are never retired or pruned. Choice: 400 + 400 of the method."
    )
    static_pool: bool = Field(False, description="No signals, no injection. Ablation.")
    await_synthesis: bool = Field(
        False,
        description="Whether an epoch waits until every signal is answered. True makes a run repeatable; false never waits for a slow model.",
    )
    shuffle: bool = Field(True, description="Whether the order of an epoch is shuffled by the run's seed.")

    @model_validator(mode="after")
    def check_thresholds(self) -> PoolConfig:
        """Refuse thresholds out of order."""
        if not self.alpha_low < self.alpha_high <= self.alpha_retire:
            raise ValueError(
                f"need alpha_low < alpha_high <= alpha_retire, got {self.alpha_low}, {self.alpha_high}, {self.alpha_retire}"
            )
        return self
