"""The trainer's main loop: hear a planned batch, play it, record it, learn from the record, announce the step.

Rollouts are in the log before the update and the update is made from the log, so a restart goes the same way: from the last
complete checkpoint (``trainer.resume``) it learns the recorded steps again without playing, compares every digest with the
one in the log, and goes on. Step 0 stands for the weights the run started from. Where workers play, the trainer waits for
their groups instead (``trainer.rollouts.collect``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from schemas import encode, make
from schemas.events import BatchPlanned, RolloutGroupCompleted, RunOutcome, StepCompleted, WeightsSynced
from streams.log.port import LogGap
from trainer.curriculum import end_of_run
from trainer.evaluation import evaluate
from trainer.learning import learn, left_in
from trainer.resume import announce, restore, save, save_if_best
from trainer.rollouts.collect import collect
from trainer.rollouts.groups import groups_of, play_batch
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
        if setup.syncs and step >= max(view.steps, default=0):
            sync_weights(setup, view, step)
        done = view.steps.get(step)
        is_last = 0 < setup.max_steps <= step
        ends_stage = done is not None and (is_last or (done.is_last_of_epoch and done.epoch + 1 >= view.num_epochs))
        _evaluate_if_due(setup, view, step, ends_stage)
        save_if_best(setup, view, step)
        if ends_stage and (is_last or not _open_next_stage(setup, view, done)):
            _finish(setup, view, done)
            break
        if (plan := _next_plan(setup, view, step + 1)) is None:
            return RunOutcome.INTERRUPTED
        started_s = time.perf_counter()
        if (groups := _rollouts(setup, view, plan)) is None:
            return RunOutcome.INTERRUPTED
        played_s = time.perf_counter()
        groups = left_in(setup, view, plan, groups)
        batch, metrics = learn(setup, view, plan, groups)
        timings_ms = {"rollout": 1e3 * (played_s - started_s), "update": 1e3 * (time.perf_counter() - played_s)}
        _complete(setup, view, plan, groups, batch, metrics, timings_ms)
        step = plan.step
    return RunOutcome.COMPLETED


def sync_weights(setup: TrainerSetup, view: RunView, step: int) -> None:
    """Bring the weights that a step left to every place they are sampled from, also after a restart."""
    done = view.steps.get(step)
    digest = done.weights_digest if done else setup.engine.digest()
    for sync in setup.syncs:
        synced = sync.sync(setup.engine.model, step, digest)
        event = make(
            WeightsSynced,
            setup.run_id,
            policy_version=step,
            target=synced.target,
            transport=synced.transport,
            weights_digest=digest,
            probe_gap=synced.probe_gap,
            caused_by=done.event_id if done else "",
        )
        setup.say(view, [event])


def _evaluate_if_due(setup: TrainerSetup, view: RunView, step: int, ends_stage: bool) -> None:
    """Measure the suites that have no result for this step: at the start, at the end of a stage and every M steps."""
    every = setup.config.eval_every_steps
    if not (step == 0 or ends_stage or (every and step % every == 0)):
        return
    params = replace(setup.sampling, greedy=setup.config.eval_greedy)
    cause = view.steps[step].event_id if step in view.steps else ""
    how = (setup.sampler, params, setup.new_episode, cause, partial(setup.on_progress, "evaluation"))
    for suite in setup.suites:
        if suite.wanted and not view.has_evaluation(suite.name, step):
            setup.say(view, [evaluate(setup.run_id, suite, step, *how)])


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
        raise LogGap(f"step {plan.step} is completed, its rollouts are not all in the log: restore it from the archive")
    if setup.config.rollouts == "workers":
        return collect(setup, view, plan)
    how = (setup.sampler, setup.sampling, setup.new_episode, partial(setup.on_progress, "rollouts"))
    trajectories = play_batch(plan, view.tasks, setup.config.group_size, *how, setup.by(plan.step - 1))
    setup.say(view, [body for body in trajectories if body.trajectory_id not in view.trajectories])
    groups = groups_of(plan, [view.trajectories[body.trajectory_id] for body in trajectories], setup.min_valid_frac)
    setup.say(view, [group for group in groups if (plan.step, group.task_id) not in view.groups])
    return [view.groups[plan.step, group.task_id] for group in groups]


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
    is_end = plan.is_last_of_epoch or plan.step == setup.max_steps
    is_due = is_end or plan.step % setup.config.checkpoint_every_steps == 0
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
        both = f"the log says weights {recorded.weights_digest}, learning it again gave {done.weights_digest}"
        raise DigestMismatch(f"step {plan.step}: {both}; same packages, machine and settings as before?")
    if is_due:
        save(setup, view, plan.step, encode(recorded or done))
    announce(setup, view, done)
    view.forget_before(plan.step + 1)


def _open_next_stage(setup: TrainerSetup, view: RunView, done: StepCompleted) -> bool:
    """Say what begins behind the last step of a stage, if anything does."""
    if (stage := setup.next_stage(done, view)) is None:
        return False
    if not view.knows_stage(stage.stage):
        setup.say(view, [stage])
    return True


def _finish(setup: TrainerSetup, view: RunView, done: StepCompleted) -> None:
    reason = (
        f"all {view.num_epochs} epochs trained" if done.step != setup.max_steps else f"pool.max_steps = {done.step}"
    )
    setup.say(view, [end_of_run(done, RunOutcome.COMPLETED, reason)])
