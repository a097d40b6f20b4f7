"""Plays recorded messages again in fresh simulators: to compare the rewards, or to judge them under another profile.

Needs the recorded texts and the simulators, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from analysis.replay import Divergence, forgery
from environments.episode import Episode
from environments.evaluation import OfficialEpisode
from schemas.events import FinishReason, RolloutGroupCompleted, Task, TrajectoryRecorded
from streams.log.port import LogGap
from trainer.replay.learning import Bodies
from trainer.replay.opening import initial_policy
from trainer.rollouts.episodes import EpisodeMaker, NewEpisode, UnplayableTask
from trainer.rollouts.groups import MIN_VALID_FRAC, group_status
from trainer.view import RunView


def played_again(body: TrajectoryRecorded, task: Task, new_episode: NewEpisode) -> Episode:
    """An episode that heard the recorded messages of a trajectory."""
    episode = new_episode(task)
    for message in body.messages:
        if episode.done:
            break
        episode.step(message.text)
    if not episode.done:
        episode.cut(body.finish_reason)
    return episode


def reward_divergence(body: TrajectoryRecorded, task: Task, new_episode: NewEpisode) -> Divergence | None:
    """The first difference between a recorded rollout and the same messages in a fresh simulator."""
    where = f"trajectory {body.trajectory_id} ({body.task_id}, step {body.step}, rollout {body.rollout_index})"
    if body.finish_reason is FinishReason.ERROR or body.reward is None:
        return None
    try:
        episode = played_again(body, task, new_episode)
    except UnplayableTask as error:
        return Divergence(where, "task", "playable", str(error), task.task_id)
    for number, (old, new) in enumerate(zip(body.messages, episode.messages, strict=False)):
        for name in ("turn", "outcome", "calls", "results", "code"):
            if getattr(old, name) != getattr(new, name):
                return Divergence(
                    where, f"message {number}, {name}", repr(getattr(old, name)), repr(getattr(new, name)), old.text
                )
    sides = (
        ("number of messages", len(body.messages), len(episode.messages)),
        ("turn verdicts", body.turn_verdicts, episode.turn_verdicts),
        ("reward", body.reward, episode.reward),
        ("format reward", body.format_reward, episode.format_reward),
        ("finish reason", body.finish_reason.value, episode.finish_reason.value),
    )
    for what, recorded, repeated in sides:
        if recorded != repeated:
            return Divergence(where, what, repr(recorded), repr(repeated), body.group_id)
    return None


def group_divergence(
    group: RolloutGroupCompleted, bodies: Mapping[str, TrajectoryRecorded], min_valid_frac: float = MIN_VALID_FRAC
) -> Divergence | None:
    """What a group says of its rollouts and its trajectories do not hold."""
    where = f"group {group.group_id} ({group.task_id}, step {group.step})"
    members = [bodies[body] for body in group.trajectory_ids]
    by_rollout = (
        ("reward", group.rewards, [m.reward for m in members]),
        ("format reward", group.format_rewards, [m.format_reward for m in members]),
        ("turn verdicts", group.turn_verdicts, [m.turn_verdicts for m in members]),
        ("codes", group.codes, [tuple(message.code for message in m.messages) for m in members]),
    )
    for what, recorded, repeated in by_rollout:
        if len(recorded) != len(repeated):
            return Divergence(where, f"number of {what}s", str(len(recorded)), str(len(repeated)))
        for index, (ours, theirs) in enumerate(zip(recorded, repeated, strict=True)):
            if ours != theirs:
                return Divergence(
                    where,
                    f"{what} of rollout {index}",
                    repr(ours),
                    repr(theirs),
                    f"trajectory {group.trajectory_ids[index]}",
                )
    num_valid = sum(member.reward is not None for member in members)
    whole = (
        ("num_rollouts", group.num_rollouts, len(members)),
        ("num_valid", group.num_valid, num_valid),
        ("status", group.status.value, group_status(num_valid, len(members), min_valid_frac).value),
        (
            "policy_version",
            group.policy_version,
            min((m.policy_version for m in members), default=group.policy_version),
        ),
    )
    return next(
        (Divergence(where, what, str(ours), str(theirs)) for what, ours, theirs in whole if ours != theirs), None
    )


def rewards_again(
    view: RunView,
    bodies: Bodies,
    new_episode: NewEpisode,
    on_group: Callable[[], None] = lambda: None,
    min_valid_frac: float = MIN_VALID_FRAC,
) -> Divergence | None:
    """Play every recorded rollout again; the first difference, or ``None``.

    Raises:
        LogGap: a body or a task is missing.
    """
    for step, task_id in sorted(view.groups):
        group = view.groups[step, task_id]
        if task_id not in view.tasks:
            raise LogGap(f"the task {task_id} of step {step} is not in the log")
        held = bodies.take([group])
        difference = group_divergence(group, held, min_valid_frac)
        for number in group.trajectory_ids:
            body = held[number]
            difference = (
                difference
                or forgery(body, f"trajectory {number}")
                or reward_divergence(body, view.tasks[task_id], new_episode)
            )
        if difference is not None:
            return difference
        on_group()
    return None


class Judge:
    """Gives groups new rewards.

    Args:
        checkpoints: of the run; they say how its messages are read.
        tasks: task by id.
        bodies: trajectory by id.
        official: the leaderboard's semantics instead of the progress protocol.
    """

    def __init__(
        self, checkpoints: Path, tasks: Mapping[str, Task], bodies: Mapping[str, TrajectoryRecorded], official: bool
    ) -> None:
        kind = OfficialEpisode if official else Episode
        self._new_episode = EpisodeMaker(initial_policy(checkpoints).template.parser, kind)
        self._tasks, self._bodies = tasks, bodies

    def rescored(self, group: RolloutGroupCompleted) -> RolloutGroupCompleted:
        """The group with the rewards and verdicts of this judge; invalid rollouts stay invalid."""
        played = [
            None if reward is None else played_again(self._bodies[body], self._tasks[group.task_id], self._new_episode)
            for reward, body in zip(group.rewards, group.trajectory_ids, strict=True)
        ]
        rewards = tuple(None if episode is None else float(episode.reward) for episode in played)
        verdicts = tuple(
            old if episode is None else episode.turn_verdicts
            for old, episode in zip(group.turn_verdicts, played, strict=True)
        )
        return replace(group, rewards=rewards, turn_verdicts=verdicts)
