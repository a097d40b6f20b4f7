"""From a planned batch to events, and from recorded events to an update.

The update is always made from recorded events, on the live way as well as on resume and in a replay. Rollouts of
a batch are a function of weights, seed, step and tasks: playing a batch again gives the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas import event_id, make
from schemas.events import (
    BatchPlanned,
    FinishReason,
    GroupStatus,
    RewardKind,
    RolloutGroupCompleted,
    Task,
    TrajectoryRecorded,
    VersionSpan,
)
from schemas.packed import pack_ids, pack_logprobs, pack_mask, unpack_ids, unpack_logprobs, unpack_mask
from streams.log.port import MAX_RECORD_BYTES
from streams.pool.settings import PoolConfig
from trainer.rollouts.episodes import NewEpisode, UnplayableTask
from trainer.rollouts.sampler import OnProgress, Rollout, RolloutRequest, Sampler, SamplingParams
from trainer.rollouts.staleness import staleness
from trainer.update.advantage import as_rewards, group_advantages, has_no_signal
from trainer.update.engine import TrainedSequence, UpdateBatch

MIN_VALID_FRAC: float = PoolConfig.model_fields["min_valid_frac"].default
MAX_BYTES_PER_TOKEN = 16
MAX_BODY_BYTES = MAX_RECORD_BYTES - 500_000


@dataclass(frozen=True, slots=True)
class PlayedBy:
    """Who played rollouts, and under what.

    Attributes:
        policy_version: Updates applied to the weights, where the sampler does not say it for each token.
        attempt: 0 for the first try at a group.
        worker: Name of the rollout worker; empty for the trainer itself.
        format_hash: Hash of template, tokenizer and tool schemas.
        sampling_json: Sampling parameters and stop ids as canonical JSON.
    """

    policy_version: int
    attempt: int = 0
    worker: str = ""
    format_hash: str = ""
    sampling_json: str = ""


def play_batch(
    plan: BatchPlanned,
    tasks: Mapping[str, Task],
    group_size: int,
    sampler: Sampler,
    params: SamplingParams,
    new_episode: NewEpisode,
    on_progress: OnProgress | None = None,
    by: PlayedBy | None = None,
) -> list[TrajectoryRecorded]:
    """Play K rollouts of every task of a batch in one go; bodies in plan order, then rollout order.

    Args:
        plan: the batch.
        tasks: task by id; must hold every task of the plan.
        group_size: K.
        sampler: who plays.
        params: how to sample.
        new_episode: a fresh episode of a task.
        on_progress: told how many rollouts have ended.
        by: what is recorded of who plays; the policy after the step before if not given.
    """
    by = by or PlayedBy(plan.step - 1)
    requests, unplayable = requests_for(plan, plan.task_ids, tasks, group_size, new_episode)
    played = {(r.task_id, r.rollout_index): r for r in sampler.rollout(requests, params, on_progress)}
    return [
        unplayed(plan, tasks[task_id], index, unplayable[task_id], by)
        if task_id in unplayable
        else trajectory_of(plan, played[task_id, index], by)
        for task_id in plan.task_ids
        for index in range(group_size)
    ]


def requests_for(
    plan: BatchPlanned, task_ids: Iterable[str], tasks: Mapping[str, Task], group_size: int, new_episode: NewEpisode
) -> tuple[list[RolloutRequest], dict[str, str]]:
    """K requests for each of some tasks of a batch, and what is wrong with the tasks that cannot start."""
    requests: list[RolloutRequest] = []
    unplayable: dict[str, str] = {}
    for task_id in task_ids:
        try:
            episodes = [new_episode(tasks[task_id]) for _ in range(group_size)]
        except UnplayableTask as error:
            unplayable[task_id] = str(error)
            continue
        requests += [
            RolloutRequest(tasks[task_id], episode, index, (plan.step, task_id, index))
            for index, episode in enumerate(episodes)
        ]
    return requests, unplayable


def unplayed(plan: BatchPlanned, task: Task, index: int, detail: str, by: PlayedBy) -> TrajectoryRecorded:
    """The event of a rollout that never was: invalid, without tokens."""
    return make(
        TrajectoryRecorded,
        plan.run_id,
        caused_by=plan.event_id,
        task_id=task.task_id,
        step=plan.step,
        attempt=by.attempt,
        group_id=_group_id(plan, task.task_id, by.attempt),
        rollout_index=index,
        policy_version=by.policy_version,
        token_ids=b"",
        logprobs=b"",
        mask=b"",
        messages=(),
        turn_verdicts=(0,) * len(task.turns),
        reward=None,
        format_reward=None,
        finish_reason=FinishReason.ERROR,
        detail=detail,
        worker=by.worker,
        format_hash=by.format_hash,
        sampling_json=by.sampling_json,
    )


def _group_id(plan: BatchPlanned, task_id: str, attempt: int) -> str:
    return event_id(plan.run_id, "RolloutGroupCompleted", plan.step, task_id, attempt)


def trajectory_of(plan: BatchPlanned, rollout: Rollout, by: PlayedBy) -> TrajectoryRecorded:
    """The event of one rollout."""
    episode = rollout.episode
    error = rollout.error or _too_large(rollout)
    is_valid = not error
    versions = [version for _, version in rollout.version_spans] or [by.policy_version]
    spans = tuple(VersionSpan(first_token=first, policy_version=version) for first, version in rollout.version_spans)
    return make(
        TrajectoryRecorded,
        plan.run_id,
        caused_by=plan.event_id,
        task_id=rollout.task_id,
        step=plan.step,
        attempt=by.attempt,
        group_id=_group_id(plan, rollout.task_id, by.attempt),
        rollout_index=rollout.rollout_index,
        policy_version=min(versions),
        token_ids=pack_ids(rollout.token_ids),
        logprobs=pack_logprobs(rollout.logprobs),
        mask=pack_mask(rollout.mask),
        messages=episode.messages if error == rollout.error else (),
        turn_verdicts=episode.turn_verdicts,
        reward=_finite(episode.reward) if is_valid else None,
        format_reward=_finite(episode.format_reward) if is_valid else None,
        finish_reason=episode.finish_reason if error == rollout.error else FinishReason.ERROR,
        detail=error,
        version_spans=spans if len(spans) > 1 else (),
        worker=by.worker,
        format_hash=by.format_hash,
        sampling_json=by.sampling_json,
    )


def _too_large(rollout: Rollout) -> str:
    """Why a rollout does not fit into a record; empty if it does."""
    said = [
        text for m in rollout.episode.messages for text in (m.text, *m.results, *(c.arguments_json for c in m.calls))
    ]
    num_bytes = sum(len(text.encode()) for text in said) + MAX_BYTES_PER_TOKEN * len(rollout.token_ids)
    if num_bytes <= MAX_BODY_BYTES:
        return ""
    return f"its messages and results have {num_bytes} bytes, a record holds {MAX_BODY_BYTES}"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def groups_of(
    plan: BatchPlanned, trajectories: Sequence[TrajectoryRecorded], min_valid_frac: float = MIN_VALID_FRAC
) -> list[RolloutGroupCompleted]:
    """One group event for each task of the plan, in plan order.

    Args:
        plan: the batch.
        trajectories: all bodies of the batch, in plan order and rollout order.
        min_valid_frac: see :func:`group_status`.
    """
    members: dict[str, list[TrajectoryRecorded]] = {task_id: [] for task_id in plan.task_ids}
    for trajectory in trajectories:
        members[trajectory.task_id].append(trajectory)
    return [group_of(plan, task_id, members[task_id], min_valid_frac=min_valid_frac) for task_id in plan.task_ids]


def group_of(
    plan: BatchPlanned,
    task_id: str,
    members: Sequence[TrajectoryRecorded],
    attempt: int = 0,
    worker: str = "",
    min_valid_frac: float = MIN_VALID_FRAC,
) -> RolloutGroupCompleted:
    """The group event of one task.

    Args:
        plan: the batch.
        task_id: the task.
        members: its K bodies in rollout order.
        attempt: which attempt ends here.
        worker: who ends it; empty for the trainer.
        min_valid_frac: see :func:`group_status`.
    """
    rewards = tuple(member.reward for member in members)
    num_valid = sum(reward is not None for reward in rewards)
    return make(
        RolloutGroupCompleted,
        plan.run_id,
        caused_by=plan.event_id,
        task_id=task_id,
        step=plan.step,
        epoch=plan.epoch,
        attempt=attempt,
        worker=worker,
        status=group_status(num_valid, len(members), min_valid_frac),
        policy_version=min(member.policy_version for member in members),
        num_rollouts=len(members),
        num_valid=num_valid,
        rewards=rewards,
        format_rewards=tuple(member.format_reward for member in members),
        turn_verdicts=tuple(member.turn_verdicts for member in members),
        codes=tuple(tuple(message.code for message in member.messages) for member in members),
        trajectory_ids=tuple(member.trajectory_id for member in members),
        detail="; ".join(dict.fromkeys(member.detail for member in members if member.detail)),
    )


def group_status(num_valid: int, num_rollouts: int, min_valid_frac: float = MIN_VALID_FRAC) -> GroupStatus:
    """completed if every rollout has a reward, failed if fewer than ``min_valid_frac`` of them have one, else partial.

    The share is that of the pool (``pool.min_valid_frac``), so that a group that is learned from is an observation too.
    """
    if num_valid == num_rollouts:
        return GroupStatus.COMPLETED
    return GroupStatus.FAILED if num_valid < min_valid_frac * num_rollouts else GroupStatus.PARTIAL


def rewards_of(group: RolloutGroupCompleted, kind: RewardKind) -> np.ndarray:
    """Rewards of a group, shape (G,), float64; NaN where the rollout is invalid.

    Args:
        group: the group.
        kind: progress (0 to 1), format (0 to 2), or binary: 1 if every turn is right, else 0.
    """
    progress_G = as_rewards(group.rewards)
    if kind is RewardKind.PROGRESS:
        return progress_G
    if kind is RewardKind.FORMAT:
        return np.where(np.isfinite(progress_G), as_rewards(group.format_rewards), np.nan)
    solved_G = np.array([float(all(verdict == 1 for verdict in verdicts)) for verdicts in group.turn_verdicts])
    return np.where(np.isfinite(progress_G), solved_G, np.nan)


def update_batch_from_events(
    step: int,
    groups: Sequence[RolloutGroupCompleted],
    trajectories: Mapping[str, TrajectoryRecorded],
    reward_kind: RewardKind,
    *,
    normalise_std: bool = True,
    leave_one_out: bool = False,
) -> UpdateBatch:
    """What one step learns from, out of recorded events alone.

    Failed groups and invalid rollouts are left out; groups without variance stay, with advantage 0.

    Args:
        step: training step.
        groups: its groups in batch order.
        trajectories: body by trajectory id; must hold every body of the groups.
        reward_kind: which reward drives the update.
        normalise_std: see :func:`trainer.update.advantage.group_advantages`.
        leave_one_out: likewise.
    """
    sequences: list[TrainedSequence] = []
    num_zero_variance = 0
    for number, group in enumerate(groups):
        if group.status is GroupStatus.FAILED:
            continue
        rewards_G = rewards_of(group, reward_kind)
        num_zero_variance += has_no_signal(rewards_G)
        advantages_G = group_advantages(rewards_G, normalise_std=normalise_std, leave_one_out=leave_one_out)
        sequences += [
            _sequence(number, trajectories[trajectory_id], float(advantage))
            for trajectory_id, reward, advantage in zip(group.trajectory_ids, rewards_G, advantages_G, strict=True)
            if np.isfinite(reward)
        ]
    return UpdateBatch(step, tuple(sequences), len(groups), num_zero_variance)


def _sequence(group: int, trajectory: TrajectoryRecorded, advantage: float) -> TrainedSequence:
    return TrainedSequence(
        group,
        unpack_ids(trajectory.token_ids),
        unpack_logprobs(trajectory.logprobs),
        unpack_mask(trajectory.mask),
        advantage,
    )


def batch_metrics(
    groups: Sequence[RolloutGroupCompleted], trajectories: Mapping[str, TrajectoryRecorded]
) -> dict[str, float]:
    """Statistics of the rollouts of one step by name; all finite."""
    bodies = [trajectories[trajectory_id] for group in groups for trajectory_id in group.trajectory_ids]
    rewards = [body.reward for body in bodies if body.reward is not None]
    formats = [body.format_reward for body in bodies if body.format_reward is not None]
    lengths = [len(body.mask) for body in bodies]
    return {
        "reward_mean": _mean(rewards),
        "format_reward_mean": _mean(formats),
        "solved_frac": _mean([float(all(verdict == 1 for verdict in body.turn_verdicts)) for body in bodies]),
        "valid_frac": len(rewards) / max(1, len(bodies)),
        "cut_frac": _mean([float(body.finish_reason.value == "token_limit") for body in bodies]),
        "episode_tokens_mean": _mean(lengths),
        "episode_tokens_max": float(max(lengths, default=0)),
        "episode_messages_mean": _mean([len(body.messages) for body in bodies]),
        "staleness_mean": _mean([staleness(body.step, body.policy_version) for body in bodies]),
        "staleness_max": float(max((staleness(body.step, body.policy_version) for body in bodies), default=0)),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
