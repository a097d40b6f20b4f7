"""Learns a recorded run again: from the initial weights and the log, without sampler or simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.replay import Divergence
from schemas.events import RolloutGroupCompleted, TrajectoryRecorded
from streams.archive.scan import Scanned
from streams.log.port import LogGap
from trainer.config import TrainerConfig
from trainer.rollouts.groups import batch_metrics, update_batch_from_events
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
