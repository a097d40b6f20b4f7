"""From a planned batch to events, and from recorded events to an update.

The update is always made from recorded events, on the live way as well as on resume and in a replay. Rollouts of
a batch are a function of weights, seed, step and tasks: playing a batch again gives the same events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
)
from schemas.packed import pack_ids, pack_logprobs, pack_mask, unpack_ids, unpack_logprobs, unpack_mask
from trainer.advantage import as_rewards, group_advantages, has_no_signal
from trainer.engine import TrainedSequence, UpdateBatch
from trainer.episodes import NewEpisode, UnplayableTask
from trainer.sampler import OnProgress, Rollout, RolloutRequest, Sampler, SamplingParams

FIRST_ATTEMPT = 0


def play_batch(
    plan: BatchPlanned, tasks: Mapping[str, Task], group_size: int, sampler: Sampler, params: SamplingParams,
    new_episode: NewEpisode, on_progress: OnProgress | None = None,
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
    """
    requests: list[RolloutRequest] = []
    unplayable: dict[str, str] = {}
    for task_id in plan.task_ids:
        try:
            episodes = [new_episode(tasks[task_id]) for _ in range(group_size)]
        except UnplayableTask as error:
            unplayable[task_id] = str(error)
            continue
        requests += [
            RolloutRequest(tasks[task_id], episode, index, (plan.step, task_id, index))
            for index, episode in enumerate(episodes)
        ]
    played = {(r.task_id, r.rollout_index): r for r in sampler.rollout(requests, params, on_progress)}
    return [
        _unplayed(plan, tasks[task_id], index, unplayable[task_id]) if task_id in unplayable
        else trajectory_of(plan, played[task_id, index])
        for task_id in plan.task_ids for index in range(group_size)
    ]


def _unplayed(plan: BatchPlanned, task: Task, index: int, detail: str) -> TrajectoryRecorded:
    """The event of a rollout whose episode cannot even start: invalid, without tokens."""
    return make(
        TrajectoryRecorded, plan.run_id, caused_by=plan.event_id, task_id=task.task_id, step=plan.step,
        group_id=_group_id(plan, task.task_id), rollout_index=index, policy_version=plan.step - 1, token_ids=b"",
        logprobs=b"", mask=b"", messages=(), turn_verdicts=(0,) * len(task.turns), reward=None, format_reward=None,
        finish_reason=FinishReason.ERROR, detail=detail,
    )


def _group_id(plan: BatchPlanned, task_id: str) -> str:
    return event_id(plan.run_id, "RolloutGroupCompleted", plan.step, task_id, FIRST_ATTEMPT)


def trajectory_of(plan: BatchPlanned, rollout: Rollout) -> TrajectoryRecorded:
    """The event of one rollout. It was sampled by the policy after the step before."""
    episode = rollout.episode
    is_valid = not rollout.error
    return make(
        TrajectoryRecorded, plan.run_id, caused_by=plan.event_id, task_id=rollout.task_id, step=plan.step,
        group_id=_group_id(plan, rollout.task_id),
        rollout_index=rollout.rollout_index, policy_version=plan.step - 1, token_ids=pack_ids(rollout.token_ids),
        logprobs=pack_logprobs(rollout.logprobs), mask=pack_mask(rollout.mask), messages=episode.messages,
        turn_verdicts=episode.turn_verdicts, reward=_finite(episode.reward) if is_valid else None,
        format_reward=_finite(episode.format_reward) if is_valid else None, finish_reason=episode.finish_reason,
        detail=rollout.error,
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def groups_of(plan: BatchPlanned, trajectories: Sequence[TrajectoryRecorded]) -> list[RolloutGroupCompleted]:
    """One group event for each task of the plan, in plan order.

    Args:
        plan: the batch.
        trajectories: all bodies of the batch, in plan order and rollout order.
    """
    members: dict[str, list[TrajectoryRecorded]] = {task_id: [] for task_id in plan.task_ids}
    for trajectory in trajectories:
        members[trajectory.task_id].append(trajectory)
    return [_group(plan, task_id, members[task_id]) for task_id in plan.task_ids]


def _group(plan: BatchPlanned, task_id: str, members: Sequence[TrajectoryRecorded]) -> RolloutGroupCompleted:
    rewards = tuple(member.reward for member in members)
    num_valid = sum(reward is not None for reward in rewards)
    return make(
        RolloutGroupCompleted, plan.run_id, caused_by=plan.event_id, task_id=task_id, step=plan.step, epoch=plan.epoch,
        status=group_status(num_valid, len(members)), policy_version=plan.step - 1, num_rollouts=len(members),
        num_valid=num_valid, rewards=rewards, format_rewards=tuple(member.format_reward for member in members),
        turn_verdicts=tuple(member.turn_verdicts for member in members),
        codes=tuple(tuple(message.code for message in member.messages) for member in members),
        trajectory_ids=tuple(member.trajectory_id for member in members),
        detail="; ".join(dict.fromkeys(member.detail for member in members if member.detail)),
    )


def group_status(num_valid: int, num_rollouts: int) -> GroupStatus:
    """completed if every rollout has a reward, failed if fewer than half have one, else partial."""
    if num_valid == num_rollouts:
        return GroupStatus.COMPLETED
    return GroupStatus.FAILED if 2 * num_valid < num_rollouts else GroupStatus.PARTIAL


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
    step: int, groups: Sequence[RolloutGroupCompleted], trajectories: Mapping[str, TrajectoryRecorded],
    reward_kind: RewardKind, *, normalise_std: bool = True, leave_one_out: bool = False,
) -> UpdateBatch:
    """What one step learns from, out of recorded events alone.

    Failed groups and invalid rollouts are left out; groups without variance stay, with advantage 0.

    Args:
        step: training step.
        groups: its groups in batch order.
        trajectories: body by trajectory id; must hold every body of the groups.
        reward_kind: which reward drives the update.
        normalise_std: see :func:`trainer.advantage.group_advantages`.
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
        group, unpack_ids(trajectory.token_ids), unpack_logprobs(trajectory.logprobs), unpack_mask(trajectory.mask),
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
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
