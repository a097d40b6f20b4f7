"""The trainer's main loop: hear a planned batch, play it, record it, learn from the record, announce the step.

Rollouts are in the log before the update and the update is made from the log, so a restart goes the same way: from the last
complete checkpoint (``trainer.resume``) it learns the recorded steps again without playing, compares every digest with the
one in the log, and goes on. Only the newest weights are brought to where they are sampled from. Steps count from 1; step 0
stands for the weights the run started from. Where workers play, the trainer waits for their groups instead
(``trainer.collect``); nothing else differs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from schemas import encode, make
from schemas.events import BatchPlanned, RolloutGroupCompleted, RunOutcome, StepCompleted
from streams.log.port import LogGap
from trainer.curriculum import end_of_run
from trainer.held_out import evaluate_if_due
from trainer.resume import announce, restore, save, save_if_best
from trainer.rollouts.collect import collect, health, left_in, sync_weights
from trainer.rollouts.groups import batch_metrics, groups_of, play_batch, update_batch_from_events
from trainer.setup import DigestMismatch, NothingCame, TrainerSetup
from trainer.update.engine import UpdateBatch
from trainer.view import RunView
from trainer.weights.checkpoint import checkpoint_name

POLL_S = 0.5


def train(setup: TrainerSetup) -> RunOutcome:
    """Train to the end of the last epoch, from wherever the checkpoints and the log say the run stands.

    Raises:
        DigestMismatch: a recorded step cannot be repeated.
        LogGap: the log does not hold what the checkpoint was made from, or the rollouts of a completed step.
        NothingCame: no plan, or no group of a worker, came within the patience.
        WeightSyncFailed: a version of the weights did not get to where it is sampled from.
    """
    view = RunView()
    view.hear(setup.reader.catch_up())
    step = restore(setup, view)
    while not view.is_finished:
        if step >= max(view.steps, default=0):
            sync_weights(setup, view, step)
        done = view.steps.get(step)
        ends_stage = done is not None and done.is_last_of_epoch and done.epoch + 1 >= view.num_epochs
        evaluate_if_due(setup, view, step, ends_stage)
        save_if_best(setup, view, step)
        if ends_stage and not _open_next_stage(setup, view, done):
            _finish(setup, view, done)
            break
        plan = _next_plan(setup, view, step + 1)
        if plan is None:
            return RunOutcome.INTERRUPTED
        started_s = time.perf_counter()
        groups = _rollouts(setup, view, plan)
        if groups is None:
            return RunOutcome.INTERRUPTED
        played_s = time.perf_counter()
        groups = left_in(setup, view, plan, groups)
        batch, metrics = _learn(setup, view, plan, groups)
        timings_ms = {"rollout": 1e3 * (played_s - started_s), "update": 1e3 * (time.perf_counter() - played_s)}
        _complete(setup, view, plan, groups, batch, metrics, timings_ms)
        step = plan.step
    return RunOutcome.COMPLETED


def _next_plan(setup: TrainerSetup, view: RunView, step: int) -> BatchPlanned | None:
    """The plan of a step once it, its tasks and its epoch are known; None if asked to stop meanwhile."""
    patience_s = setup.patience_s + setup.synthesis_wait_s
    give_up_s = time.monotonic() + patience_s
    while not setup.should_stop():
        if step in view.plans and not view.missing_for(view.plans[step]):
            return view.plans[step]
        if time.monotonic() > give_up_s:
            missing = view.missing_for(view.plans[step]) if step in view.plans else f"BatchPlanned of step {step}"
            raise NothingCame(
                f"run {setup.run_id}: {missing} did not come within {patience_s:.0f} s; is the streams worker running?"
            )
        view.hear(setup.reader.poll(POLL_S))
    return None


def _rollouts(setup: TrainerSetup, view: RunView, plan: BatchPlanned) -> list[RolloutGroupCompleted] | None:
    """The groups of a batch: out of the log if all are there, else played and recorded, bodies first.

    Where workers play, those they write; ``None`` if asked to stop while waiting for them.
    """
    recorded = view.recorded_groups(plan)
    if recorded is not None:
        return recorded
    if plan.step in view.steps:
        raise LogGap(
            f"step {plan.step} is completed in the log but its rollouts are not all there; restore the log "
            "from the archive"
        )
    if setup.config.rollouts == "workers":
        return collect(setup, view, plan)
    trajectories = play_batch(
        plan,
        view.tasks,
        setup.config.group_size,
        setup.sampler,
        setup.sampling,
        setup.new_episode,
        lambda finished, total: setup.on_progress("rollouts", finished, total),
        setup.by(plan.step - 1),
    )
    setup.log.append([body for body in trajectories if body.trajectory_id not in view.trajectories])
    view.hear(trajectories)
    groups = groups_of(plan, [view.trajectories[body.trajectory_id] for body in trajectories])
    setup.log.append([group for group in groups if (plan.step, group.task_id) not in view.groups])
    view.hear(groups)
    return [view.groups[plan.step, group.task_id] for group in groups]


def _learn(
    setup: TrainerSetup, view: RunView, plan: BatchPlanned, groups: list[RolloutGroupCompleted]
) -> tuple[UpdateBatch, dict[str, float]]:
    """Update the weights from recorded events."""
    config = setup.config
    batch = update_batch_from_events(
        plan.step,
        groups,
        view.trajectories,
        view.reward_of(plan.epoch, config.reward),
        normalise_std=config.normalise_std,
        leave_one_out=config.leave_one_out,
    )
    metrics = {**batch_metrics(groups, view.trajectories), **setup.engine.update(batch)}
    metrics |= health(setup, view, plan, groups, metrics)
    return batch, metrics


def _complete(
    setup: TrainerSetup,
    view: RunView,
    plan: BatchPlanned,
    groups: list[RolloutGroupCompleted],
    batch: UpdateBatch,
    metrics: Mapping[str, float],
    timings_ms: Mapping[str, float],
) -> None:
    """Compare with the log if the step is in it, write the checkpoint if one is due, then announce the step."""
    is_due = plan.is_last_of_epoch or plan.step % setup.config.checkpoint_every_steps == 0
    done = make(
        StepCompleted,
        setup.run_id,
        caused_by=plan.event_id,
        step=plan.step,
        epoch=plan.epoch,
        stage=view.stage_of(plan.epoch),
        policy_version=plan.step,
        weights_digest=setup.engine.digest(),
        checkpoint=checkpoint_name(plan.step) if is_due else "",
        is_last_of_epoch=plan.is_last_of_epoch,
        num_groups=batch.num_groups,
        num_zero_variance=batch.num_zero_variance,
        num_trajectories=len(batch.sequences),
        num_trained_tokens=batch.num_trained_tokens,
        group_ids=tuple(group.group_id for group in groups),
        metrics=dict(metrics),
        timings_ms=dict(timings_ms),
    )
    recorded = view.steps.get(plan.step)
    if recorded is not None and recorded.weights_digest != done.weights_digest:
        raise DigestMismatch(
            f"step {plan.step}: the log says weights {recorded.weights_digest}, learning it again "
            f"gave {done.weights_digest}; same packages, machine and settings as before?"
        )
    if is_due:
        save(setup, view, plan.step, encode(recorded or done))
    announce(setup, view, done)
    view.forget_before(plan.step + 1)


def _open_next_stage(setup: TrainerSetup, view: RunView, done: StepCompleted) -> bool:
    """Say what begins behind the last step of a stage; False if nothing does."""
    stage = setup.next_stage(done, view)
    if stage is not None and not view.knows_stage(stage.stage):
        setup.log.append([stage])
        view.hear([stage])
    return stage is not None


def _finish(setup: TrainerSetup, view: RunView, done: StepCompleted) -> None:
    end = end_of_run(done, RunOutcome.COMPLETED, f"all {view.num_epochs} epochs trained")
    setup.log.append([end])
    view.hear([end])
