"""Learns a recorded run again, and plays its recorded messages again: the trainer's part of a replay.

Learning again needs the initial weights and the log, no sampler and no simulator. Playing again needs the simulators and
the recorded texts, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.replay import Divergence, forgery
from environments.episode import Episode
from schemas.events import FinishReason, RolloutGroupCompleted, Task, TrajectoryRecorded
from streams.archive.scan import Scanned
from streams.log.port import LogGap
from trainer.config import TrainerConfig
from trainer.rollouts.episodes import NewEpisode, UnplayableTask
from trainer.rollouts.groups import batch_metrics, group_status, update_batch_from_events
from trainer.update.engine import Engine, UpdateBatch
from trainer.view import RunView

Take = Callable[[Iterable[RolloutGroupCompleted]], Mapping[str, TrajectoryRecorded]]
"""Bodies of some groups by trajectory id."""
WEIGHTS = "weights digest"
"""What differs where the weights do."""


class Bodies:
    """Trajectories out of a log, read as far as they are needed and dropped after their step.

    Args:
        records: the trajectories of a log from the beginning.
        run_id: the run; bodies of others are left out.
    """

    def __init__(self, records: Iterator[Scanned], run_id: str) -> None:
        self._records = records
        self._run_id = run_id
        self._held: dict[str, TrajectoryRecorded] = {}
        self._broken: list[str] = []

    def take(self, groups: Iterable[RolloutGroupCompleted]) -> dict[str, TrajectoryRecorded]:
        """Bodies of some groups by trajectory id.

        Raises:
            LogGap: a body is not in the log; the text names it, and the records that could not be read.
        """
        wanted = {body for group in groups for body in group.trajectory_ids}
        while not wanted <= self._held.keys():
            item = next(self._records, None)
            if item is None:
                missing = sorted(wanted - self._held.keys())
                broken = f"; cannot be read: {', '.join(self._broken[:5])}" if self._broken else ""
                raise LogGap(f"{len(missing)} trajectories are not in the log, first {missing[0]}{broken}")
            if item.error is not None:
                self._broken.append(f"{item.where} ({item.error})")
            elif isinstance(item.event, TrajectoryRecorded) and item.event.run_id == self._run_id:
                self._held.setdefault(item.event.trajectory_id, item.event)
        return {body: self._held.pop(body) for body in wanted}


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """One step learned again.

    Attributes:
        step: training step.
        recorded: weights digest in the log.
        repeated: weights digest now.
        batch: what was learned from.
        metrics: of the update and its rollouts.
    """

    step: int
    recorded: str
    repeated: str
    batch: UpdateBatch | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


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
        LogGap: a plan, group or body of a completed step is missing, or a body holds what cannot be learned.
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
        bodies = take(groups)
        try:
            batch = update_batch_from_events(
                step,
                groups,
                bodies,
                view.reward_of(plan.epoch, config.reward),
                normalise_std=config.normalise_std,
                leave_one_out=config.leave_one_out,
            )
            metrics = {**batch_metrics(groups, bodies), **engine.update(batch)}
        except (IndexError, ValueError, RuntimeError) as error:
            raise LogGap(f"step {step}: its recorded rollouts cannot be learned: {error}") from error
        yield LearnedStep(step, view.steps[step].weights_digest, engine.digest(), batch, metrics)


def weights_divergence(learned: LearnedStep, view: RunView) -> Divergence | None:
    """The difference between recorded and repeated weights of a step."""
    if learned.recorded == learned.repeated:
        return None
    return Divergence(f"step {learned.step}", WEIGHTS, learned.recorded, learned.repeated, _rollouts_of(learned, view))


def step_divergence(learned: LearnedStep, view: RunView) -> Divergence | None:
    """The first difference between a recorded StepCompleted and the step learned again; equal weights are taken for granted."""
    done, plan, batch = view.steps[learned.step], view.plans[learned.step], learned.batch
    expected = {
        "epoch": plan.epoch,
        "stage": view.stage_of(plan.epoch),
        "policy_version": learned.step,
        "is_last_of_epoch": plan.is_last_of_epoch,
        "num_groups": batch.num_groups,
        "num_zero_variance": batch.num_zero_variance,
        "num_trajectories": len(batch.sequences),
        "num_trained_tokens": batch.num_trained_tokens,
    }
    sides = [(name, getattr(done, name), value) for name, value in expected.items()]
    sides += [
        (f"metric {name}", done.metrics[name], value) for name, value in learned.metrics.items() if name in done.metrics
    ]
    for name, recorded, repeated in sides:
        if repr(recorded) != repr(repeated):
            return Divergence(
                f"step {learned.step}",
                f"{name} of StepCompleted {done.event_id}",
                repr(recorded),
                repr(repeated),
                _rollouts_of(learned, view),
            )
    return None


def _rollouts_of(learned: LearnedStep, view: RunView) -> str:
    return f"groups {', '.join(view.steps[learned.step].group_ids)}"


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


def group_divergence(group: RolloutGroupCompleted, bodies: Mapping[str, TrajectoryRecorded]) -> Divergence | None:
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
        ("status", group.status.value, group_status(num_valid, len(members)).value),
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
    view: RunView, bodies: Bodies, new_episode: NewEpisode, on_group: Callable[[], None] = lambda: None
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
        difference = group_divergence(group, held)
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
