"""What the trainer has heard so far, by the keys it looks things up with.

Hearing is idempotent and the first version of a fact wins, so the order of topics and repeated events change
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.events import (
    BatchPlanned,
    EpochPlanned,
    EvaluationCompleted,
    Event,
    GroupClaimed,
    GroupReopened,
    RewardKind,
    RolloutGroupCompleted,
    RolloutsDropped,
    RunFinished,
    RunOutcome,
    RunStarted,
    StageStarted,
    StepCompleted,
    Task,
    TaskSeeded,
    TaskSynthesized,
    TrajectoryRecorded,
    WeightsSynced,
)
from trainer.curriculum import planned_epochs
from trainer.rollouts.dispatch import Dispatch
from trainer.weights.checkpoint import best_step

TOPICS = ("runs", "tasks", "batches", "trajectories", "rollouts", "steps")
"""Topics from which a run is learned."""
LIVE_TOPICS = (*TOPICS, "dispatches")
"""Topics a trainer follows whose rollouts are played by workers."""
WORKER_TOPICS = ("runs", "tasks", "batches", "rollouts", "steps", "dispatches")
"""Topics a rollout worker follows: no bodies."""


class RunView:
    """Facts of one run.

    Attributes:
        tasks: Task by id.
        epochs: Planned epoch by number.
        plans: Planned batch by step.
        groups: Group by (step, task id); the first in the log.
        dispatch: Who plays what.
        dropped: Ids of groups that were left out of their update.
        started: RunStarted, if it was heard.
        trajectories: Body by trajectory id; bodies of forgotten steps are gone.
        steps: Completed step by step.
        stages: Begun stage by name.
        evaluations: Evaluation by (suite, step).
        is_finished: Whether the run was completed.
        weights_digest: Digest of the weights the run started from; empty if RunStarted was not heard.
    """

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.epochs: dict[int, EpochPlanned] = {}
        self.plans: dict[int, BatchPlanned] = {}
        self.groups: dict[tuple[int, str], RolloutGroupCompleted] = {}
        self.trajectories: dict[str, TrajectoryRecorded] = {}
        self.steps: dict[int, StepCompleted] = {}
        self.is_finished = False
        self.started: RunStarted | None = None
        self.weights_digest = ""
        self.dispatch = Dispatch()
        self.dropped: set[str] = set()
        self._ended: dict[tuple[int, str], str] = {}
        self._late: set[str] = set()
        self.stages: dict[str, StageStarted] = {}
        self.evaluations: dict[tuple[str, int], EvaluationCompleted] = {}
        self._first_step = 0

    def hear(self, events: Iterable[Event]) -> None:
        """Take in events; types the trainer does not need are passed over."""
        for event in events:
            match event:
                case TaskSeeded() | TaskSynthesized():
                    self.tasks.setdefault(event.task.task_id, event.task)
                case BatchPlanned():
                    self.plans.setdefault(event.step, event)
                case TrajectoryRecorded() if event.step >= self._first_step:
                    self.trajectories.setdefault(event.trajectory_id, event)
                case RolloutGroupCompleted():
                    self._hear_group(event)
                case GroupClaimed() | GroupReopened() | WeightsSynced():
                    self.dispatch.hear(event)
                case RolloutsDropped():
                    self.dropped.add(event.group_id)
                case StepCompleted():
                    self.steps.setdefault(event.step, event)
                case EpochPlanned():
                    self.epochs.setdefault(event.epoch, event)
                case StageStarted():
                    self.stages.setdefault(event.stage, event)
                case EvaluationCompleted():
                    self.evaluations.setdefault((event.suite, event.step), event)
                case RunStarted():
                    self.started, self.weights_digest = event, event.weights_digest
                case RunFinished():
                    self.is_finished = self.is_finished or event.outcome is RunOutcome.COMPLETED

    def _hear_group(self, group: RolloutGroupCompleted) -> None:
        key = (group.step, group.task_id)
        if self._ended.setdefault(key, group.event_id) != group.event_id:
            self._late.add(group.event_id)
        elif group.step >= self._first_step:
            self.groups.setdefault(key, group)

    @property
    def num_late_groups(self) -> int:
        """Groups that came after their task had ended in their step."""
        return len(self._late)

    @property
    def signs_of_life(self) -> tuple[int, ...]:
        """What changes whenever something new is heard of rollouts that are not forgotten."""
        return len(self.trajectories), len(self.groups), *self.dispatch.size

    @property
    def cursor(self) -> dict[str, int]:
        """How many different events were heard of each kind that whoever wrote it keeps, and that is never forgotten here.

        Plans are left out: the pool decides those again that a broker lost.
        """
        return {
            "TaskSeeded and TaskSynthesized": len(self.tasks),
            "StageStarted": len(self.stages),
            "StepCompleted": len(self.steps),
            "EvaluationCompleted": len(self.evaluations),
        }

    @property
    def next_step(self) -> int:
        """The first step that is not completed."""
        return max(self.steps, default=0) + 1

    def is_taken_over(self, step: int) -> bool:
        """Whether a step's rollouts are those of the run that this one was forked from, sampled as that one said."""
        return self.started is not None and bool(self.started.parent_run_id) and step <= self.started.forked_at_step

    def forget_before(self, step: int) -> None:
        """Let go of the rollouts of all steps before ``step``."""
        self._first_step = step
        self.groups = {key: group for key, group in self.groups.items() if group.step >= step}
        self.trajectories = {key: body for key, body in self.trajectories.items() if body.step >= step}
        self.dispatch.forget_before(step)

    def stage_of(self, epoch: int) -> str:
        """Curriculum stage of an epoch; empty if its plan was not heard."""
        return self.epochs[epoch].stage if epoch in self.epochs else ""

    def knows_stage(self, stage: str) -> bool:
        """Whether the start of a curriculum stage was heard."""
        return stage in self.stages

    def reward_of(self, epoch: int, default: RewardKind) -> RewardKind:
        """Reward that drives the updates of an epoch; ``default`` if the epoch belongs to no stage."""
        stage = self.stages.get(self.stage_of(epoch))
        return stage.reward if stage is not None else default

    def has_evaluation(self, suite: str, step: int) -> bool:
        """Whether a suite was measured after a step."""
        return (suite, step) in self.evaluations

    @property
    def num_epochs(self) -> int:
        """Epochs of the stages that have begun."""
        return planned_epochs(tuple(self.stages.values()))

    def best_step(self, suite: str) -> int | None:
        """The step after which a suite went best; ``None`` before a trained policy was measured."""
        return best_step({step: e.mean_reward for (name, step), e in self.evaluations.items() if name == suite})

    def missing_for(self, plan: BatchPlanned) -> str:
        """What must still be heard before a batch can be played, in words; empty if nothing."""
        if plan.epoch not in self.epochs:
            return f"EpochPlanned of epoch {plan.epoch}"
        stage = self.stage_of(plan.epoch)
        if stage and not self.knows_stage(stage):
            return f"StageStarted of stage {stage!r}"
        absent = [task_id for task_id in plan.task_ids if task_id not in self.tasks]
        return f"the task {absent[0]} of step {plan.step}" if absent else ""

    def bodies_of(self, step: int, task_id: str) -> list[TrajectoryRecorded]:
        """Known bodies of a task in a step, of every attempt, by attempt and rollout."""
        bodies = [body for body in self.trajectories.values() if (body.step, body.task_id) == (step, task_id)]
        return sorted(bodies, key=lambda body: (body.attempt, body.rollout_index))

    def recorded_groups(self, plan: BatchPlanned) -> list[RolloutGroupCompleted] | None:
        """The groups of a batch in plan order if all of them and all their bodies are known, else None."""
        groups = [self.groups.get((plan.step, task_id)) for task_id in plan.task_ids]
        if not all(group and all(body in self.trajectories for body in group.trajectory_ids) for group in groups):
            return None
        return groups
