"""Settings of the trainer; every value says what it means and where its default comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.events import RewardKind


class LossAggregation(StrEnum):
    """How the losses of tokens become one number."""

    TOKEN_MEAN = "token_mean"
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"


class TrainerConfig(BaseModel):
    """Rollouts, update, checkpoints and evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Rollouts
    group_size: int = Field(16, ge=1, description="K, rollouts of a task in one step. RODS: 16.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature. Rollout engines' default, 1.0.")
    top_p: float = Field(
        1.0, gt=0, le=1,
        description="Nucleus mass; 1 samples on-policy from the whole distribution.",
    )
    max_message_tokens: int = Field(
        128, ge=1,
        description=(
            "Longest assistant message, tokens; a longer one ends its episode early. 999 of 1000 reference "
            "messages in compact form have at most 109. Raise it for chat models."
        ),
    )
    max_episode_tokens: int = Field(
        1536, ge=2,
        description=(
            "Longest episode, tokens. 391 of 394 compact reference episodes are shorter (median 636); chat "
            "models need the context length of the model."
        ),
    )

    # Update
    reward: RewardKind = Field(
        RewardKind.PROGRESS,
        description="Reward that drives the update where the curriculum stage names none. RODS: progress.",
    )
    learning_rate: float = Field(
        0.0005, gt=0,
        description=(
            "Peak rate of AdamW. RODS uses 1e-6 for 4B to 8B models; 5e-4 is what moves a model of a million "
            "parameters without collapse (1e-3 collapsed it)."
        ),
    )
    warmup_steps: int = Field(
        8, ge=0,
        description="Optimizer steps of linear warm-up; without it small models collapsed.",
    )
    weight_decay: float = Field(0.01, ge=0, description="AdamW weight decay. verl's default.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm clip. EnvTuning: 1.0.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip of the ratio, 1 - 0.2. EnvTuning.")
    clip_high: float = Field(0.28, gt=0, description="Upper clip of the ratio, 1 + 0.28. EnvTuning.")
    dual_clip: float = Field(
        10.0, gt=1,
        description="Bound of the ratio where the advantage is negative. EnvTuning: 10.",
    )
    kl_coef: float = Field(
        0.0, ge=0,
        description=(
            "Weight of the k3 KL to the reference model. RODS: 0.01, EnvTuning: 0.1; 0 saves the reference "
            "pass and is the default for small policies."
        ),
    )
    entropy_coef: float = Field(
        0.0, ge=0,
        description="Weight of the entropy bonus. EnvTuning: 0.001; 0 for small policies.",
    )
    num_minibatches: int = Field(
        2, ge=1,
        description=(
            "Optimizer steps in one training step; groups stay whole. EnvTuning takes 1; 2 is what the small "
            "policies were tuned with."
        ),
    )
    loss_aggregation: LossAggregation = Field(
        LossAggregation.TOKEN_MEAN,
        description=(
            "token_mean is what verl 0.4.1 does by default; seq_mean_token_mean is what EnvTuning's config "
            "asks for."
        ),
    )
    normalise_std: bool = Field(True, description="Divide advantages by the group's standard deviation. GRPO: yes.")
    leave_one_out: bool = Field(
        False,
        description="Compare a rollout with the mean of the others (RLOO) instead of all.",
    )
    recompute_old_logprobs: bool = Field(
        False,
        description=(
            "Take old log-probabilities from the trainer before the update instead of those the sampler "
            "recorded. For samplers of lower precision."
        ),
    )

    # Machine
    token_budget: int = Field(
        2048, ge=1,
        description=(
            "Most tokens, padding included, in one forward pass of the update. 2048 stays in a CPU's cache; "
            "raise it on a GPU."
        ),
    )
    num_threads: int = Field(
        1, ge=1,
        description="Torch threads. One is fastest beside a broker and workers on few cores.",
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16 runs the update under autocast.")

    # Checkpoints and evaluation
    checkpoint_every_steps: int = Field(
        5, ge=1,
        description="A checkpoint every so many steps. EnvTuning: 5. The end of an epoch always has one.",
    )
    keep_checkpoints: int = Field(3, ge=1, description="Complete checkpoints to keep.")
    eval_every_steps: int = Field(
        10, ge=0,
        description="Held-out evaluation every so many steps; 0 only at start and end.",
    )
    eval_rollouts: int = Field(1, ge=0, description="Rollouts per held-out task; 0 turns evaluation off.")
    eval_greedy: bool = Field(False, description="Evaluate with the likeliest tokens instead of sampled ones.")
