"""Learns a recorded run again, and plays its recorded messages again: the trainer's part of a replay.

Learning again needs the initial weights and the log, no sampler and no simulator. Playing again needs the simulators and
the recorded texts, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from environments.episode import Episode
from schemas.events import FinishReason, RolloutGroupCompleted, Task, TrajectoryRecorded
from streams.log import LogGap
from streams.observer import Observer
from streams.replay import Divergence
from trainer.config import TrainerConfig
from trainer.engine import Engine
from trainer.episodes import NewEpisode, UnplayableTask
from trainer.rollouts import update_batch_from_events
from trainer.view import RunView

Take = Callable[[Iterable[RolloutGroupCompleted]], Mapping[str, TrajectoryRecorded]]
"""Bodies of some groups by trajectory id."""


class Bodies:
    """Trajectories out of a log, read as far as they are needed and dropped after their step.

    Args:
        reader: follows the trajectories of one run from the beginning.
    """

    def __init__(self, reader: Observer) -> None:
        self._reader = reader
        self._held: dict[str, TrajectoryRecorded] = {}

    def take(self, groups: Iterable[RolloutGroupCompleted]) -> dict[str, TrajectoryRecorded]:
        """Bodies of some groups by trajectory id.

        Raises:
            LogGap: a body is not in the log; the text names it.
        """
        wanted = {body for group in groups for body in group.trajectory_ids}
        while not wanted <= self._held.keys():
            events = self._reader.poll(0.0)
            if not events:
                missing = sorted(wanted - self._held.keys())
                raise LogGap(f"{len(missing)} trajectories are not in the log, first {missing[0]}; "
                             f"read up to {dict(self._reader.cursor)}")
            self._held.update((event.trajectory_id, event) for event in events)
        return {body: self._held.pop(body) for body in wanted}


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """One step learned again.

    Attributes:
        step: training step.
        recorded: weights digest in the log.
        repeated: weights digest now.
    """

    step: int
    recorded: str
    repeated: str


def learn_again(
    view: RunView, take: Take, engine: Engine, config: TrainerConfig, steps: Sequence[int] | None = None
) -> Iterator[LearnedStep]:
    """Apply the update of completed steps again, in order.

    Args:
        view: what was heard of the run.
        take: bodies of some groups by trajectory id.
        engine: holds the weights before the first of the steps.
        config: settings of the updates.
        steps: which steps; every completed one if ``None``.

    Raises:
        LogGap: a plan, group or body of a completed step is missing.
    """
    for step in sorted(view.steps) if steps is None else steps:
        plan = view.plans.get(step)
        if plan is None or step not in view.steps:
            raise LogGap(f"BatchPlanned or StepCompleted of step {step} is not in the log")
        absent = [task_id for task_id in plan.task_ids if (step, task_id) not in view.groups]
        if absent:
            raise LogGap(f"step {step}: the group of {absent[0]} is not in the log")
        learned = set(view.steps[step].group_ids)
        groups = [group for task_id in plan.task_ids if (group := view.groups[step, task_id]).group_id in learned]
        batch = update_batch_from_events(
            step, groups, take(groups), view.reward_of(plan.epoch, config.reward),
            normalise_std=config.normalise_std, leave_one_out=config.leave_one_out)
        engine.update(batch)
        yield LearnedStep(step, view.steps[step].weights_digest, engine.digest())


def weights_divergence(learned: LearnedStep, view: RunView) -> Divergence | None:
    """The difference between recorded and repeated weights of a step."""
    if learned.recorded == learned.repeated:
        return None
    return Divergence(f"step {learned.step}", "weights digest", learned.recorded, learned.repeated,
                      f"groups {', '.join(view.steps[learned.step].group_ids)}")


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
                return Divergence(where, f"message {number}, {name}", repr(getattr(old, name)), repr(getattr(new, name)), old.text)
    sides = (
        ("number of messages", len(body.messages), len(episode.messages)),
        ("turn verdicts", body.turn_verdicts, episode.turn_verdicts), ("reward", body.reward, episode.reward),
        ("format reward", body.format_reward, episode.format_reward),
    )
    for what, recorded, repeated in sides:
        if recorded != repeated:
            return Divergence(where, what, repr(recorded), repr(repeated), body.group_id)
    return None


def copied_rewards_divergence(
    group: RolloutGroupCompleted, bodies: Mapping[str, TrajectoryRecorded]
) -> Divergence | None:
    """A reward of a group that is not the one its trajectory holds."""
    for index, (reward, body) in enumerate(zip(group.rewards, group.trajectory_ids, strict=True)):
        if reward != bodies[body].reward:
            return Divergence(f"group {group.group_id} ({group.task_id}, step {group.step})", f"reward of rollout {index}",
                              repr(reward), repr(bodies[body].reward), f"trajectory {body}")
    return None


def rewards_again(
    view: RunView, bodies: Bodies, new_episode: NewEpisode, on_group: Callable[[], None] = lambda: None
) -> Divergence | None:
    """Play every recorded rollout again; the first difference, or ``None``.

    Raises:
        LogGap: a body is missing.
    """
    for step, task_id in sorted(view.groups):
        group = view.groups[step, task_id]
        held = bodies.take([group])
        difference = copied_rewards_divergence(group, held)
        for body in group.trajectory_ids:
            difference = difference or reward_divergence(held[body], view.tasks[task_id], new_episode)
        if difference is not None:
            return difference
        on_group()
    return None
