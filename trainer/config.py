"""Settings of the trainer; every value says what it means and where its default comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.events import RewardKind
from trainer.rollouts.settings import VllmConfig, WorkerConfig
from trainer.rollouts.staleness import StalePolicy


class LossAggregation(StrEnum):
    """How the losses of tokens become one number."""

    TOKEN_MEAN = "token_mean"
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    CONSTANT = "constant"


class ZeroVariance(StrEnum):
    """What becomes of a group whose rewards are all equal."""

    KEEP = "keep"
    DROP = "drop"
    REFILL = "refill"


class TrainerConfig(BaseModel):
    """Rollouts, update, checkpoints and evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # Rollouts
    group_size: int = Field(
        16, ge=2, description="K, rollouts of a task in one step; one alone has nothing to be better than. RODS: 16."
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature. Rollout engines' default, 1.0.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus mass; 1 samples on-policy from the whole distribution.")
    max_message_tokens: int = Field(
        128,
        ge=1,
        description=(
            "Longest assistant message, tokens; a longer one ends its episode early. 999 of 1000 reference "
            "messages in compact form have at most 109. Raise it for chat models."
        ),
    )
    max_episode_tokens: int = Field(
        1536,
        ge=2,
        description=(
            "Longest episode, tokens. 391 of 394 compact reference episodes are shorter (median 636); chat "
            "models need the context length of the model."
        ),
    )

    rollouts: Literal["inline", "workers"] = Field(
        "inline",
        description="Who plays: the trainer itself, exactly repeatable, or workers that take groups from the log.",
    )
    sampler: Literal["hf", "vllm_server", "vllm_engine"] = Field(
        "hf", description="What samples: transformers in this process, a vLLM server, or vLLM in this process."
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="Most updates the weights that sampled a rollout may lag behind when it is learned from. 0: synchronous.",
    )
    stale_policy: StalePolicy = Field(
        StalePolicy.WAIT,
        description="wait: workers begin nothing that would be too old. drop: they never wait, and what is too old is left out.",
    )
    logprob_gap_alarm: float = Field(
        0.1,
        ge=0,
        description="Mean difference of log-probabilities between sampler and trainer, nats, that raises the alarm; 0: never.",
    )
    patience_s: float = Field(
        600.0,
        gt=0,
        description=(
            "How long the trainer waits for a plan, or for any sign of a rollout worker, before it gives up, seconds. For a plan "
            "synthesis.deadline_s is added where pool.await_synthesis lets an epoch wait for the synthesizer."
        ),
    )
    workers: WorkerConfig = WorkerConfig()
    vllm: VllmConfig = VllmConfig()

    # Update
    reward: RewardKind = Field(
        RewardKind.PROGRESS,
        description="Reward that drives the update where the curriculum stage names none. RODS: progress.",
    )
    learning_rate: float = Field(
        0.0005,
        gt=0,
        le=1,
        description=(
            "Peak rate of AdamW. RODS uses 1e-6 for 4B to 8B models; 5e-4 is what moves a model of a million "
            "parameters without collapse (1e-3 collapsed it). AdamW moves every weight by about the rate."
        ),
    )
    warmup_steps: int = Field(
        8, ge=0, description="Optimizer steps of linear warm-up; without it small models collapsed."
    )
    weight_decay: float = Field(0.01, ge=0, description="AdamW weight decay. verl's default.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm clip. EnvTuning: 1.0.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip of the ratio, 1 - 0.2. EnvTuning.")
    clip_high: float = Field(0.28, gt=0, description="Upper clip of the ratio, 1 + 0.28. EnvTuning.")
    dual_clip: float = Field(
        10.0,
        gt=1,
        allow_inf_nan=True,
        description="Bound of the ratio where the advantage is negative. EnvTuning: 10; inf is no bound.",
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        description=(
            "Weight of the KL to the reference model. RODS: 0.01, EnvTuning: 0.1; 0 saves the reference "
            "pass and is the default for small policies."
        ),
    )
    kl_estimator: Literal["k1", "k3"] = Field(
        "k3",
        description=(
            "k3 is never negative and is what EnvTuning uses; k1 is unbiased in value, but its gradient pulls "
            "to no reference where the policy sampled by itself."
        ),
    )
    entropy_coef: float = Field(
        0.0, ge=0, description="Weight of the entropy bonus. EnvTuning: 0.001; 0 for small policies."
    )
    num_minibatches: int = Field(
        2,
        ge=1,
        description=(
            "Optimizer steps in one training step; groups stay whole. EnvTuning takes 1; 2 is what the small "
            "policies were tuned with."
        ),
    )
    loss_aggregation: LossAggregation = Field(
        LossAggregation.TOKEN_MEAN,
        description=(
            "token_mean is what verl 0.4.1 does by default; seq_mean_token_mean is what EnvTuning's config "
            "asks for; constant divides by sequences times loss_constant_tokens (Dr. GRPO)."
        ),
    )
    loss_constant_tokens: int = Field(
        0, ge=0, description="Tokens a sequence counts as under loss_aggregation constant; 0 takes max_episode_tokens."
    )
    zero_variance: ZeroVariance = Field(
        ZeroVariance.KEEP,
        description=(
            "Groups with equal rewards: keep counts their tokens in the mean (EnvTuning has no filter), drop leaves them out, refill "
            "leaves them out and counts groups with a signal again, in batch order, until there are as many groups as planned. It plays "
            "no further task; it keeps the number of optimizer steps where num_minibatches is above 1, else it is like drop."
        ),
    )
    normalise_std: bool = Field(True, description="Divide advantages by the group's standard deviation. GRPO: yes.")
    leave_one_out: bool = Field(
        False, description="Compare a rollout with the mean of the others (RLOO) instead of all."
    )
    recompute_old_logprobs: bool = Field(
        False,
        description=(
            "Take old log-probabilities from the trainer before the update instead of those the sampler "
            "recorded. For samplers of lower precision."
        ),
    )
    importance_cap: float = Field(
        0.0,
        ge=0,
        description=(
            "Weigh each token by trainer over sampler probability, at most this much (truncated importance "
            "sampling, TRL's cap is 3); needs recompute_old_logprobs. 0 weighs nothing."
        ),
    )
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Course of the rate behind the warm-up. EnvTuning: constant."
    )
    lr_decay_steps: int = Field(
        0, ge=0, description="Optimizer step at which a linear or cosine schedule arrives at its final rate."
    )
    lr_final_frac: float = Field(0.1, ge=0, le=1, description="Final rate over peak rate of such a schedule.")

    # Machine
    engine: Literal["torch", "deepspeed"] = Field(
        "torch", description="torch is one device; deepspeed spreads the update over the processes of torchrun."
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        1,
        description=(
            "DeepSpeed: what is spread over the processes. 1 optimizer state, 2 gradients too, 3 weights too."
        ),
    )
    num_processes: int = Field(
        1, ge=1, description="DeepSpeed: processes of the trainer on this machine, one for each GPU."
    )
    offload_optimizer: bool = Field(False, description="DeepSpeed: keep the optimizer's state in main memory.")
    lora_rank: int = Field(0, ge=0, description="Rank of low-rank adapters; 0 trains all weights.")
    lora_alpha: float = Field(32.0, gt=0, description="Adapters count alpha over rank times. PEFT examples: 32.")
    lora_targets: tuple[str, ...] = Field(
        (), description="Names of the linear layers that get adapters; empty takes all but the head."
    )
    packing: bool = Field(
        False,
        description=(
            "Lay sequences end to end in a forward pass instead of padding them side by side. Saves the padding; "
            "padding is faster for small models on a CPU."
        ),
    )
    gradient_checkpointing: bool = Field(
        False, description="Keep only layer inputs and compute the rest again in the backward pass."
    )
    token_budget: int = Field(
        2048,
        ge=1,
        description=(
            "Most tokens, padding included, in one forward pass of the update. 2048 stays in a CPU's cache; "
            "raise it on a GPU."
        ),
    )
    num_threads: int = Field(
        1, ge=1, description="Torch threads. One is fastest beside a broker and workers on few cores."
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16 runs the update under autocast.")

    # Checkpoints and evaluation
    checkpoint_every_steps: int = Field(
        5, ge=1, description="A checkpoint every so many steps. EnvTuning: 5. The end of an epoch always has one."
    )
    keep_checkpoints: int = Field(3, ge=1, description="Complete checkpoints to keep.")
    keep_best: bool = Field(True, description="Keep the checkpoint with the best held-out reward as well.")
    eval_every_steps: int = Field(
        10, ge=0, description="Held-out evaluation every so many steps; 0 only at start and end."
    )
    eval_rollouts: int = Field(1, ge=0, description="Rollouts per held-out task; 0 turns evaluation off.")
    eval_greedy: bool = Field(False, description="Evaluate with the likeliest tokens instead of sampled ones.")
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        ("tensorboard",), description="Who is shown metrics beside the log; one that is not installed is left out."
    )

    @model_validator(mode="after")
    def check_combinations(self) -> TrainerConfig:
        """Settings that mean nothing alone are refused."""
        if self.importance_cap and not self.recompute_old_logprobs:
            raise ValueError("importance_cap weighs trainer against sampler: set recompute_old_logprobs too")
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"learning_rate {self.learning_rate:g} times weight_decay {self.weight_decay:g} is 1 or more: every step "
                "would turn the sign of every weight"
            )
        if self.max_message_tokens >= self.max_episode_tokens:
            raise ValueError(
                f"max_message_tokens {self.max_message_tokens} leaves no room for a prompt in max_episode_tokens "
                f"{self.max_episode_tokens}"
            )
        if self.num_processes > 1 and self.engine != "deepspeed":
            raise ValueError(f"num_processes {self.num_processes} needs engine = deepspeed; torch is one process")
        if self.lr_schedule != "constant" and self.lr_decay_steps <= self.warmup_steps:
            raise ValueError(
                f"lr_schedule {self.lr_schedule} needs lr_decay_steps above warmup_steps "
                f"({self.warmup_steps}), got {self.lr_decay_steps}"
            )
        return self
