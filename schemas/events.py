"""Typed, frozen event classes. Written by ``python -m schemas.generate``; do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar


class Category(StrEnum):
    """The four kinds of multi-turn task."""

    BASE = "base"
    MISS_FUNC = "miss_func"
    MISS_PARAM = "miss_param"
    LONG_CONTEXT = "long_context"


class DeadLetterReason(StrEnum):
    """Why a record could not be used."""

    UNDECODABLE = "undecodable"
    UNKNOWN_SCHEMA = "unknown_schema"
    UNKNOWN_EVENT = "unknown_event"
    WRONG_TOPIC = "wrong_topic"
    INVALID = "invalid"


class DropReason(StrEnum):
    """Why a group was left out of an update. stale: its oldest weights lag more than max_staleness updates behind; format_mismatch: it was sampled under another template, tokenizer or tool schemas than the run's."""

    STALE = "stale"
    FORMAT_MISMATCH = "format_mismatch"


class FinishReason(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    TOKEN_LIMIT = "token_limit"
    TURN_LIMIT = "turn_limit"
    ERROR = "error"


class GroupStatus(StrEnum):
    """completed: all K rollouts valid; partial: some invalid; failed: fewer than half valid, no observation."""

    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"


class MessageOutcome(StrEnum):
    """What one assistant message turned out to be."""

    CALLS = "calls"
    ANSWER = "answer"
    PARSE_ERROR = "parse_error"


class Origin(StrEnum):
    """Who made a task."""

    HUMAN = "human"
    GENERATED = "generated"


class RetireReason(StrEnum):
    """Why a generated task left the pool."""

    BURN_IN = "burn_in"
    MASTERED = "mastered"
    HARD = "hard"
    STALE = "stale"
    PRUNED = "pruned"
    QUEUE_EXPIRED = "queue_expired"


class RewardKind(StrEnum):
    """Which reward drives the update."""

    FORMAT = "format"
    PROGRESS = "progress"
    BINARY = "binary"


class RunOutcome(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class SynthesisFailure(StrEnum):
    """The twelve failure types of the method, then the gates, guards and the judge."""

    PARAM_GEN_FAILED = "param_gen_failed"
    DECOMPOSE_FAILED = "decompose_failed"
    FUNC_SAMPLE_FAILED = "func_sample_failed"
    VM_EXEC_FAILED = "vm_exec_failed"
    DUPLICATE_FUNC = "duplicate_func"
    QUERY_GEN_FAILED = "query_gen_failed"
    QUERY_VERIFY_FAILED = "query_verify_failed"
    QUERY_VERIFY_NO_TAG = "query_verify_no_tag"
    CONVERSATION_CONSTRUCT_FAILED = "conversation_construct_failed"
    NO_PROMPTS = "no_prompts"
    NO_PATTERN = "no_pattern"
    PIPELINE_EXCEPTION = "pipeline_exception"
    GATE_EXECUTION = "gate_execution"
    GATE_AVAILABILITY = "gate_availability"
    GATE_COMPLEXITY = "gate_complexity"
    GUARD_DUPLICATE = "guard_duplicate"
    GUARD_LEAKAGE = "guard_leakage"
    GUARD_PROVENANCE = "guard_provenance"
    GUARD_GENUINENESS = "guard_genuineness"
    GUARD_PROFILE = "guard_profile"
    JUDGE_REJECTED = "judge_rejected"


class Zone(StrEnum):
    """Where a task stands for the current policy; unknown means too few valid rollouts."""

    UNKNOWN = "unknown"
    HARD = "hard"
    BOUNDARY = "boundary"
    MASTERED = "mastered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call.

    Attributes:
        name: Function name as the tool schema gives it.
        arguments_json: Arguments by name as canonical JSON (sorted keys, no blanks).
    """

    AVRO_NAME: ClassVar[str] = "rods.Call"
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One question to a language model during a synthesis and what came back.

    Attributes:
        attempt: 0-based full attempt of the synthesis.
        role: Who was asked: planner, parameters, query, verifier, rewriter, withholder, judge, classifier, refiner or patcher.
        model: Name of the model that answered; empty when none did.
        prompt_hash: SHA-256 of the messages that were sent.
        prompt: The messages as JSON; empty where the settings leave them out.
        text: The answer, cut at the length the settings allow.
        finish_reason: Why the model stopped, as the server says.
        error: Why there is no answer: refused or unavailable, with the server's words; empty if there is one.
        num_prompt_tokens: Tokens of the prompt as the server counts them.
        num_completion_tokens: Tokens of the answer as the server counts them.
        num_retries: Requests that failed before this one; they do not count as attempts.
        latency_ms: From sending the last request to its answer, milliseconds.
    """

    AVRO_NAME: ClassVar[str] = "rods.Completion"
    attempt: int
    role: str
    model: str
    prompt_hash: str
    prompt: str = ""
    text: str
    finish_reason: str = ""
    error: str = ""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_retries: int = 0
    latency_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a reader had folded one topic partition.

    Attributes:
        topic: Topic name without prefix.
        partition: Partition number.
        next_offset: Offset of the first record not yet folded.
    """

    AVRO_NAME: ClassVar[str] = "rods.Cursor"
    topic: str
    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one completed group says about a task.

    Attributes:
        step: Training step of the group.
        num_rollouts: K, rollouts planned.
        num_valid: Rollouts with a finite reward.
        mean: Mean progress reward over the valid rollouts, 0 to 1.
        variance: Population variance of the progress reward.
        phi: 4 mean (1 - mean), the upper bound on the variance scaled to 1.
        zone: Zone of the mean.
    """

    AVRO_NAME: ClassVar[str] = "rods.Evidence"
    step: int
    num_rollouts: int
    num_valid: int
    mean: float
    variance: float
    phi: float
    zone: Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One assistant message of a rollout and what the environment made of it.

    Attributes:
        turn: 0-based user turn.
        text: The message as its parser reads it: decoded from the sampled tokens, behind the thinking tag if the prompt opened it.
        outcome: What the parser made of it.
        calls: Calls that were executed, in order.
        results: Result string of each call.
        code: -3 parse error, -2 a call failed, -1 calls executed, 0 turn closed wrong, 1 turn closed right.
        detail: Parse error with reason and position, or empty.
    """

    AVRO_NAME: ClassVar[str] = "rods.Message"
    turn: int
    text: str
    outcome: MessageOutcome
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    code: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisStage:
    """How one stage of one attempt ended.

    Attributes:
        attempt: 0-based full attempt of the synthesis.
        stage: plan, execute, rewrite, draft (a whole draft by program), augment, critique (gates, guards, profile), judge, refine or patch.
        passed: Whether the candidate went on.
        failure: Failure type as in SynthesisFailure where it did not pass; empty otherwise.
        detail: In words: what was made, or which call, value or rule refused it.
    """

    AVRO_NAME: ClassVar[str] = "rods.SynthesisStage"
    attempt: int
    stage: str
    passed: bool
    failure: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A multi-turn conversation spec: initial state, user turns and reference calls.

    Attributes:
        task_id: Unique within a run; human seeds keep their data set id.
        environment: Registered name of the environment.
        environment_version: Version of the environment and its data.
        category: Kind of task.
        involved_classes: Tool classes that are live in this task, in order.
        initial_config_json: Initial state by class as JSON; key order is significant.
        turns: User turns in order; its length is N of the progress reward.
        withheld_functions: Functions not offered at the start; each is restored by a later turn.
        excluded_functions: Functions never offered in this task.
        long_context: Whether the simulators run with bulk content added.
        id_seed: Seed of the simulators' random ids; 0 keeps the environment's own constant.
    """

    AVRO_NAME: ClassVar[str] = "rods.Task"
    task_id: str
    environment: str
    environment_version: str
    category: Category
    involved_classes: tuple[str, ...]
    initial_config_json: str
    turns: tuple[Turn, ...]
    withheld_functions: tuple[str, ...] = ()
    excluded_functions: tuple[str, ...] = ()
    long_context: bool = False
    id_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One user turn and what a correct agent does in it.

    Attributes:
        user_text: The user's message; empty in a turn that only restores functions.
        ground_truth: Reference calls in order; empty means the right behaviour is not to call anything.
        restored_functions: Functions that become available at the start of this turn.
    """

    AVRO_NAME: ClassVar[str] = "rods.Turn"
    user_text: str
    ground_truth: tuple[Call, ...]
    restored_functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Consecutive tokens of a rollout that were sampled under one policy version.

    Attributes:
        first_token: Position of the first token of the span; the span ends where the next one begins.
        policy_version: Updates applied to the weights that sampled it.
    """

    AVRO_NAME: ClassVar[str] = "rods.VersionSpan"
    first_token: int
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run began; everything needed to repeat it.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        config_json: The full resolved configuration as canonical JSON.
        seed: Master seed.
        versions: Package and data versions by name.
        template_hash: SHA-256 of the prompt format.
        tokenizer_hash: SHA-256 of the tokenizer.
        tool_schema_hash: SHA-256 of the tool schemas.
        weights_digest: SHA-256 of the initial weights.
        parent_run_id: Run this one was forked from; empty for none.
        forked_at_step: Last step shared with the parent; -1 for none.
        fork_mode: What a fork did with the past: continue, or retrain (off-policy: the rollouts are the parent's); empty for a run of its own.
    """

    AVRO_NAME: ClassVar[str] = "rods.RunStarted"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    config_json: str
    seed: int
    versions: Mapping[str, str]
    template_hash: str
    tokenizer_hash: str
    tool_schema_hash: str
    weights_digest: str
    parent_run_id: str = ""
    forked_at_step: int = -1
    fork_mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """A curriculum stage began.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        stage: Stage name.
        ordinal: 0-based position in the curriculum.
        reward: Reward that drives the update.
        synthesis: Whether boundary tasks are sent to the synthesizer.
        first_step: First training step of the stage.
        first_epoch: First epoch of the stage.
        num_epochs: Planned number of epochs.
        task_ids: Seeds of the stage in seeding order; empty means all.
    """

    AVRO_NAME: ClassVar[str] = "rods.StageStarted"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    stage: str
    ordinal: int
    reward: RewardKind
    synthesis: bool
    first_step: int
    first_epoch: int
    num_epochs: int
    task_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """A run ended.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        outcome: How.
        reason: In words.
        step: Last completed step.
        epoch: Last completed epoch.
        weights_digest: SHA-256 of the final weights.
    """

    AVRO_NAME: ClassVar[str] = "rods.RunFinished"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    outcome: RunOutcome
    reason: str = ""
    step: int
    epoch: int
    weights_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSeeded:
    """A human task entered the run.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        task: The task.
        is_protected: Protected tasks are never retired or pruned.
        position: 0-based position in the seed list.
    """

    AVRO_NAME: ClassVar[str] = "rods.TaskSeeded"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    task: Task
    is_protected: bool = True
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSynthesized:
    """A variant passed every gate and waits for injection.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        signal_id: event_id of the BoundaryDetected that asked for it.
        task: The variant.
        parent_task_id: Seed of this variant.
        root_task_id: Human ancestor.
        generation: Distance from the human ancestor, at least 1.
        seed_step: Training step of the signal.
        seed_rank: Rank of the signal within its step.
        backend: Name of the synthesizer backend.
        num_attempts: Full attempts used.
        fingerprint: SHA-256 over category, config and ground truth.
        seed_profile_json: Structural profile of the seed as JSON.
        variant_profile_json: Structural profile of the variant as JSON.
        stages: Every stage of every attempt in order.
        completions: Every question to a model in order; enough to repeat the synthesis without one.
        prompts_hash: SHA-256 over the prompt texts in use; empty without a model.
        config_patch_json: Accepted changes of the initial state over all attempts, as one JSON object to be merged into it; empty if there are none.
    """

    AVRO_NAME: ClassVar[str] = "rods.TaskSynthesized"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    signal_id: str
    task: Task
    parent_task_id: str
    root_task_id: str
    generation: int
    seed_step: int
    seed_rank: int
    backend: str
    num_attempts: int
    fingerprint: str
    seed_profile_json: str = ""
    variant_profile_json: str = ""
    stages: tuple[SynthesisStage, ...] = ()
    completions: tuple[Completion, ...] = ()
    prompts_hash: str = ""
    config_patch_json: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlanned:
    """The pool of one epoch was fixed.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        epoch: 0-based epoch.
        stage: Curriculum stage.
        first_step: First training step of the epoch, from 1.
        num_steps: Batches in the epoch.
        injected: Generated tasks that enter, in queue order.
        retired: Tasks that leave, in decision order.
        order: Training order of the active pool.
        num_human: Active human tasks.
        num_generated: Active generated tasks.
        num_queued: Generated tasks still waiting.
        input_cursor: What had been folded when this was decided.
    """

    AVRO_NAME: ClassVar[str] = "rods.EpochPlanned"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    epoch: int
    stage: str
    first_step: int
    num_steps: int
    injected: tuple[str, ...]
    retired: tuple[str, ...]
    order: tuple[str, ...]
    num_human: int
    num_generated: int
    num_queued: int
    input_cursor: tuple[Cursor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlanned:
    """The tasks of one training step.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        step: Training step, from 1.
        epoch: 0-based epoch.
        task_ids: Tasks in order.
        is_last_of_epoch: Whether the epoch ends with this step.
        input_cursor: What had been folded when this was decided.
    """

    AVRO_NAME: ClassVar[str] = "rods.BatchPlanned"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    step: int
    epoch: int
    task_ids: tuple[str, ...]
    is_last_of_epoch: bool
    input_cursor: tuple[Cursor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecorded:
    """The heavy body of one rollout.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        trajectory_id: Equal to event_id.
        group_id: event_id of the RolloutGroupCompleted that its attempt leads to; a group that the trainer ended at its deadline lists rollouts of an attempt.
        task_id: Task.
        step: Training step.
        rollout_index: 0 to K-1.
        attempt: 0 for the first try at the group; -1 for a rollout that did not come before the deadline.
        policy_version: Updates applied to the weights that sampled this.
        token_ids: All token ids, little-endian int32.
        logprobs: Log-probability of each token as sampled, little-endian float32; 0 where the mask is 0.
        mask: uint8 per token: 1 where the policy sampled it.
        messages: Assistant messages in order.
        turn_verdicts: 1 right, 0 wrong or not reached, per turn; length N.
        reward: Progress reward, 0 to 1; null if the rollout is invalid.
        format_reward: Stage-1 format reward, 0 to 2.
        finish_reason: Why it ended.
        detail: Error text of an invalid rollout.
        version_spans: Policy version by span of tokens, in order; empty if the whole rollout was sampled under policy_version, which is the oldest of them otherwise.
        worker: Rollout worker that played it; empty for the trainer itself.
        format_hash: SHA-256 over template, tokenizer and tool-schema hash it was sampled under; empty if not recorded.
        sampling_json: Sampling parameters and stop ids as canonical JSON; empty if not recorded.
    """

    AVRO_NAME: ClassVar[str] = "rods.TrajectoryRecorded"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    trajectory_id: str
    group_id: str
    task_id: str
    step: int
    rollout_index: int
    attempt: int = 0
    policy_version: int
    token_ids: bytes
    logprobs: bytes
    mask: bytes
    messages: tuple[Message, ...]
    turn_verdicts: tuple[int, ...]
    reward: float | None
    format_reward: float | None
    finish_reason: FinishReason
    detail: str = ""
    version_spans: tuple[VersionSpan, ...] = ()
    worker: str = ""
    format_hash: str = ""
    sampling_json: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGroupCompleted:
    """All K rollouts of one task in one step have ended.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        group_id: Equal to event_id.
        task_id: Task.
        step: Training step.
        epoch: 0-based epoch.
        attempt: 0 for the first try; -1 where the trainer ended the group at its deadline.
        status: Whether it counts as an observation.
        policy_version: Updates applied to the weights that sampled this.
        num_rollouts: K.
        num_valid: Rollouts with a finite reward.
        rewards: Progress reward per rollout; null where invalid.
        format_rewards: Format reward per rollout; null where invalid.
        turn_verdicts: Per rollout, per turn.
        codes: Per rollout, one code per assistant message.
        trajectory_ids: Bodies in rollout order.
        detail: What went wrong, if anything.
        worker: Rollout worker that ended it; empty for the trainer.
    """

    AVRO_NAME: ClassVar[str] = "rods.RolloutGroupCompleted"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    group_id: str
    task_id: str
    step: int
    epoch: int
    attempt: int = 0
    status: GroupStatus
    policy_version: int
    num_rollouts: int
    num_valid: int
    rewards: tuple[float | None, ...]
    format_rewards: tuple[float | None, ...]
    turn_verdicts: tuple[tuple[int, ...], ...]
    codes: tuple[tuple[int, ...], ...]
    trajectory_ids: tuple[str, ...]
    detail: str = ""
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClaimed:
    """A rollout worker wants to play one attempt at a planned group; the first claim of an attempt in the log has it.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        step: Training step.
        task_id: Task.
        attempt: 0 for the first try at the group.
        worker: Name of the worker.
        policy_version: Updates applied to the weights the worker holds.
    """

    AVRO_NAME: ClassVar[str] = "rods.GroupClaimed"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    step: int
    task_id: str
    attempt: int
    worker: str
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReopened:
    """The trainer heard nothing of an attempt for too long and lets another worker try.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        step: Training step.
        task_id: Task.
        attempt: The attempt that may be claimed now, from 1.
        detail: Which attempt of which worker was given up, and after how long.
    """

    AVRO_NAME: ClassVar[str] = "rods.GroupReopened"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    step: int
    task_id: str
    attempt: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsDropped:
    """The rollouts of a group were left out of the update of their step.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        step: Training step.
        task_id: Task.
        group_id: The group.
        reason: Why.
        num_rollouts: Rollouts that were left out.
        policy_version: Oldest version among the weights that sampled them.
        staleness: Updates between those weights and the ones that would have learned from them.
    """

    AVRO_NAME: ClassVar[str] = "rods.RolloutsDropped"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    step: int
    task_id: str
    group_id: str
    reason: DropReason
    num_rollouts: int
    policy_version: int
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSynced:
    """A version of the weights can be sampled from at a target.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        policy_version: Updates applied to the weights.
        target: Folder that holds them, or address of the server that serves them.
        transport: How they got there: folder, vllm-files or vllm-nccl.
        weights_digest: SHA-256 of the weights.
        probe_gap: Largest difference between the log-probabilities of target and trainer on a probe, nats; null where nothing was asked.
    """

    AVRO_NAME: ClassVar[str] = "rods.WeightsSynced"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    policy_version: int
    target: str
    transport: str
    weights_digest: str
    probe_gap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryDetected:
    """A task is worth synthesizing from.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        signal_id: Equal to event_id.
        task_id: Seed task.
        category: Its category, which the variant keeps.
        step: Training step of the evidence.
        epoch: 0-based epoch.
        evidence: The numbers.
        rank: 0-based rank by phi within its category and step.
        quota: Signals this category may send per step.
        root_task_id: Human ancestor of the seed.
        generation: 0 for a human seed.
        policy_version: Updates applied to the weights behind the evidence.
    """

    AVRO_NAME: ClassVar[str] = "rods.BoundaryDetected"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    signal_id: str
    task_id: str
    category: Category
    step: int
    epoch: int
    evidence: Evidence
    rank: int
    quota: int
    root_task_id: str
    generation: int
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisFailed:
    """A signal ended without a variant.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        signal_id: The signal.
        task_id: Seed task.
        failure: Last failure type.
        detail: In words: which call, value or rule.
        num_attempts: Full attempts used.
        backend: Name of the synthesizer backend.
        failures: Failure of each attempt in order.
        stages: Every stage of every attempt in order.
        completions: Every question to a model in order; enough to repeat the synthesis without one.
        prompts_hash: SHA-256 over the prompt texts in use; empty without a model.
        config_patch_json: Accepted changes of the initial state over all attempts, as one JSON object to be merged into it; empty if there are none.
    """

    AVRO_NAME: ClassVar[str] = "rods.SynthesisFailed"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    signal_id: str
    task_id: str
    failure: SynthesisFailure
    detail: str
    num_attempts: int
    backend: str
    failures: tuple[SynthesisFailure, ...] = ()
    stages: tuple[SynthesisStage, ...] = ()
    completions: tuple[Completion, ...] = ()
    prompts_hash: str = ""
    config_patch_json: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRejected:
    """A candidate was built and refused.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        signal_id: The signal.
        attempt: 0-based attempt.
        candidate: The candidate, whole.
        failure: Gate, guard or judge.
        detail: In words.
    """

    AVRO_NAME: ClassVar[str] = "rods.VariantRejected"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    signal_id: str
    attempt: int
    candidate: Task
    failure: SynthesisFailure
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetired:
    """A generated task left the pool or the queue.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        task_id: Task.
        reason: Why.
        epoch: Epoch whose plan leaves it out.
        evidence: Its last observation, if any.
        num_observations: Observations so far.
        first_mean: First mean reward.
    """

    AVRO_NAME: ClassVar[str] = "rods.TaskRetired"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    task_id: str
    reason: RetireReason
    epoch: int
    evidence: Evidence | None
    num_observations: int
    first_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """One optimizer step was applied.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        step: Training step.
        epoch: 0-based epoch.
        stage: Curriculum stage.
        policy_version: Updates applied after this step.
        weights_digest: SHA-256 of the weights after this step.
        checkpoint: Name of the checkpoint written at this step; empty for none.
        is_last_of_epoch: Whether the epoch ended with this step.
        num_groups: Groups in the batch.
        num_zero_variance: Groups without a learning signal.
        num_trajectories: Rollouts that entered the update.
        num_trained_tokens: Sampled tokens that entered the update.
        group_ids: Groups in batch order.
        metrics: Loss terms and statistics by name.
        timings_ms: Wall time by phase, milliseconds. No decision may read it.
    """

    AVRO_NAME: ClassVar[str] = "rods.StepCompleted"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    step: int
    epoch: int
    stage: str
    policy_version: int
    weights_digest: str
    checkpoint: str = ""
    is_last_of_epoch: bool
    num_groups: int
    num_zero_variance: int
    num_trajectories: int
    num_trained_tokens: int
    group_ids: tuple[str, ...]
    metrics: Mapping[str, float]
    timings_ms: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCompleted:
    """A fixed set of tasks was played by the current policy.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        suite: Name of the task set.
        step: Step after which it was measured.
        policy_version: Updates applied.
        num_tasks: Tasks.
        num_rollouts: Rollouts per task.
        mean_reward: Mean progress reward, 0 to 1.
        accuracy: Share of rollouts with every turn right.
        by_category: Mean progress reward by category.
    """

    AVRO_NAME: ClassVar[str] = "rods.EvaluationCompleted"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    suite: str
    step: int
    policy_version: int
    num_tasks: int
    num_rollouts: int
    mean_reward: float
    accuracy: float
    by_category: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered:
    """A record could not be used; kept for redrive, whole where it fits.

    Attributes:
        event_id: Deterministic id: digest of run, event type and identity fields (see schemas/catalogue.py).
        run_id: The run this event belongs to.
        caused_by: event_id of the event that led to this one; empty for a root.
        occurred_at_ms: Wall clock of the writer, milliseconds since 1970 UTC. No decision may read it.
        topic: Topic without prefix.
        partition: Partition.
        offset: Offset.
        key: Key bytes.
        value: Value bytes, the first of them where num_value_bytes says more.
        reason: Why.
        detail: Error text and what to do.
        consumer: Who refused it.
        num_value_bytes: Length of the record's value; -1 where that is not said.
        value_sha256: SHA-256 of the record's whole value, hexadecimal; empty where that is not said.
    """

    AVRO_NAME: ClassVar[str] = "rods.DeadLettered"
    event_id: str
    run_id: str
    caused_by: str = ""
    occurred_at_ms: int = 0
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: DeadLetterReason
    detail: str
    consumer: str
    num_value_bytes: int = -1
    value_sha256: str = ""


Event = (
    RunStarted
    | StageStarted
    | RunFinished
    | TaskSeeded
    | TaskSynthesized
    | EpochPlanned
    | BatchPlanned
    | TrajectoryRecorded
    | RolloutGroupCompleted
    | GroupClaimed
    | GroupReopened
    | RolloutsDropped
    | WeightsSynced
    | BoundaryDetected
    | SynthesisFailed
    | VariantRejected
    | TaskRetired
    | StepCompleted
    | EvaluationCompleted
    | DeadLettered
)
EVENTS: tuple[type, ...] = (
    RunStarted,
    StageStarted,
    RunFinished,
    TaskSeeded,
    TaskSynthesized,
    EpochPlanned,
    BatchPlanned,
    TrajectoryRecorded,
    RolloutGroupCompleted,
    GroupClaimed,
    GroupReopened,
    RolloutsDropped,
    WeightsSynced,
    BoundaryDetected,
    SynthesisFailed,
    VariantRejected,
    TaskRetired,
    StepCompleted,
    EvaluationCompleted,
    DeadLettered,
)
