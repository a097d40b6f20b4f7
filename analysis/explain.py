"""Why a task was or was not a seed, injected or retired at a step, by the same functions that decided it. Pure.

The pool is folded to what the agent had heard when it decided after the step: the inputs before the cursor of the plan
that follows, and the decisions up to it. Plans of a fork's shared past carry no cursor, for offsets are other ones there:
the inputs that concern the steps so far are folded then, a variant as soon as its signal was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.index import RunIndex
from analysis.replay import decisions_of, inputs_of
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    EpochPlanned,
    Event,
    Evidence,
    Origin,
    StageStarted,
    TaskRetired,
    TaskSynthesized,
    Zone,
)
from streams.archive.scan import Scanned
from streams.pool.boundary import Candidate, selected, zone_of
from streams.pool.decide import candidate_at, stage_at
from streams.pool.lifecycle import drift_reason, live_generated, num_to_inject, plan_epoch, queue_of
from streams.pool.pool import Pool, apply, initial


class UnknownMoment(LookupError):
    """The run has no such step or task; the text says what there is."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question about a task at a step.

    Attributes:
        question: seed, injected or retired.
        verdict: yes or no.
        because: the reason in one sentence, with its numbers.
        numbers: everything the decision looked at.
    """

    question: str
    verdict: bool
    because: str
    numbers: Mapping[str, object] = field(default_factory=dict)


def pool_at(run: RunIndex, step: int) -> Pool:
    """The pool from which was decided after a step.

    Raises:
        UnknownMoment: the step was never planned.
    """
    plans = run.pool.batches
    if step not in plans:
        raise UnknownMoment(f"step {step} was not planned; the run has steps 1 to {max(plans, default=0)}")
    after, pool = plans.get(step + 1), initial()
    for lane in inputs_of(run).values():
        for item in lane:
            if after is None or _was_heard(item, after):
                pool = apply(pool, item.event)
    for item in decisions_of(run).values():
        if _was_decided(item.event, plans[step]):
            pool = apply(pool, item.event)
    return pool


def _was_heard(item: Scanned, after: BatchPlanned) -> bool:
    """Whether an input had been heard when a plan was made: it lies before its cursor, or concerns the steps before it."""
    if after.input_cursor:
        ends = {(c.topic, c.partition): c.next_offset for c in after.input_cursor}
        return item.record.offset < ends.get((item.record.topic, item.record.partition), 0)
    match item.event:
        case StageStarted():
            return item.event.first_step <= after.step
        case TaskSynthesized():
            return item.event.seed_step < after.step
    return getattr(item.event, "step", 0) < after.step


def _was_decided(event: Event, batch: BatchPlanned) -> bool:
    """Whether a decision was made before the one that follows a step. Signals of the step itself belong to it."""
    match event:
        case BatchPlanned() | BoundaryDetected():
            return event.step <= batch.step
        case EpochPlanned() | TaskRetired():
            return event.epoch <= batch.epoch
    return False


def explain(run: RunIndex, task_id: str, step: int) -> tuple[Answer, Answer, Answer]:
    """Was the task a seed, injected, retired at this step, and why.

    Args:
        run: with bodies, and fed with the records of its decision topics.
        task_id: a task of the run.
        step: training step; the answers are those of the decisions that follow it.

    Raises:
        UnknownMoment: the step was never planned, or nobody had heard of the task then.
    """
    pool = pool_at(run, step)
    if task_id not in pool.tasks:
        raise UnknownMoment(
            f"task {task_id!r} was not known when step {step} was decided on; `rods why {task_id}` shows when it came"
        )
    return seed_answer(pool, task_id, step), injected_answer(pool, task_id, step), retired_answer(pool, task_id, step)


def seed_answer(pool: Pool, task_id: str, step: int) -> Answer:
    """Whether a task became a seed of a step."""
    batch, config = pool.batches[step], pool.config
    seen = next((e for e in pool.observations.get(task_id, ()) if e.step == step), None)
    numbers = _evidence_numbers(seen) | {
        "alpha_low": config.alpha_low,
        "alpha_high": config.alpha_high,
        "quota": config.quota[pool.tasks[task_id].category.value],
        "cooldown": config.cooldown,
        "cooldown_unit": config.cooldown_unit,
        "generation": pool.tasks[task_id].generation,
        "max_generation": config.max_generation,
    }
    reason = _no_seed_at_all(pool, task_id, batch, seen)
    if reason:
        return Answer("seed", False, reason, numbers)
    fit = _rivals(pool, task_id, batch)
    ahead = [c.task_id for c in fit if c.task_id != task_id]
    chosen = {c.task_id: rank for c, rank in selected(fit, config, draw=f"{pool.seed}\x1f{step}")}
    numbers |= {"num_rivals": len(ahead), "chosen": list(chosen)}
    if task_id in chosen:
        return Answer(
            "seed",
            True,
            f"mean {seen.mean:.3f} is boundary, phi {seen.phi:.3f} is rank {chosen[task_id] + 1} of "
            f"{len(fit)} rested boundary tasks of its category, quota {numbers['quota']}",
            numbers,
        )
    return Answer(
        "seed",
        False,
        f"phi {seen.phi:.3f} was not among the best {numbers['quota']} (quota) of {len(fit)} rested "
        f"boundary tasks of its category; {', '.join(chosen)} went ahead",
        numbers,
    )


def _evidence_numbers(seen: Evidence | None) -> dict[str, object]:
    if seen is None:
        return {}
    return {
        "mean": seen.mean,
        "variance": seen.variance,
        "phi": seen.phi,
        "zone": seen.zone.value,
        "num_valid": seen.num_valid,
        "num_rollouts": seen.num_rollouts,
    }


def _no_seed_at_all(pool: Pool, task_id: str, batch: BatchPlanned, seen: Evidence | None) -> str:
    """Why a task cannot be a seed whatever the others are, or an empty text."""
    config, stage, task = pool.config, stage_at(pool, batch.epoch), pool.tasks[task_id]
    if task_id not in batch.task_ids:
        last = [e.step for e in pool.observations.get(task_id, ())]
        return f"it is not in the batch of step {batch.step}; " + (
            f"last observed at step {last[-1]}" if last else "never observed"
        )
    if seen is None:
        return (
            "its group ended with too few valid rollouts, or has not ended"
            if batch.step in pool.steps
            else "the step is not finished"
        )
    if config.static_pool:
        return "the pool is static (pool.static_pool): nothing is synthesized"
    if stage is None or not stage.synthesis:
        return f"stage {stage.stage if stage else '?'} sends no signals"
    if stage_at(pool, batch.epoch + 1) is None:
        return f"epoch {batch.epoch} is the last one planned for: no later epoch could take a variant in"
    if seen.zone is not Zone.BOUNDARY:
        zone = zone_of(seen.mean, config).value
        return f"mean {seen.mean:.3f} is {zone}, outside of [{config.alpha_low}, {config.alpha_high}]"
    candidate = candidate_at(pool, task_id, batch)
    if candidate is None:
        return (
            f"generation {task.generation} may not be a seed (max_generation {config.max_generation}, "
            f"seed_from_generated {config.seed_from_generated})"
        )
    if not candidate.rested:
        last = [s for s in pool.signalled[task_id] if s < batch.step][-1]
        return f"it rests: last signal at step {last}, cooldown {config.cooldown} {config.cooldown_unit}"
    return ""


def _rivals(pool: Pool, task_id: str, batch: BatchPlanned) -> list[Candidate]:
    """Rested boundary tasks of the same category in the batch, the task included."""
    found = [c for other in batch.task_ids if (c := candidate_at(pool, other, batch)) is not None]
    category = pool.tasks[task_id].category.value
    return [c for c in found if c.rested and c.category == category and c.evidence.zone is Zone.BOUNDARY]


def injected_answer(pool: Pool, task_id: str, step: int) -> Answer:
    """Whether a task was in training after a step, and what kept it out."""
    batch = pool.batches[step]
    if pool.tasks[task_id].origin is Origin.HUMAN:
        return Answer(
            "injected", False, "it is a human seed: it is in the pool from its stage on and is never injected"
        )
    earlier = [plan for _, plan in sorted(pool.epochs.items()) if task_id in plan.injected]
    if earlier:
        return Answer(
            "injected",
            True,
            f"injected into epoch {earlier[0].epoch}, from step {earlier[0].first_step}, as number "
            f"{earlier[0].injected.index(task_id) + 1} of {len(earlier[0].injected)}",
            _plan_numbers(earlier[0]),
        )
    if task_id in pool.retired:
        return Answer(
            "injected",
            False,
            f"it left the queue before epoch {pool.retired[task_id].epoch}: {pool.retired[task_id].reason.value}",
        )
    queue = queue_of(pool)
    numbers = {"position": queue.index(task_id) + 1, "num_queued": len(queue)}
    if not batch.is_last_of_epoch:
        plan = pool.epochs[batch.epoch]
        return Answer(
            "injected",
            False,
            f"it waits as number {numbers['position']} of {len(queue)}: epochs are planned after their last "
            f"step, {plan.first_step + plan.num_steps - 1}",
            numbers,
        )
    return _injection_due(pool, task_id, batch, numbers)


def _plan_numbers(plan: EpochPlanned) -> dict[str, object]:
    return {
        "epoch": plan.epoch,
        "num_human": plan.num_human,
        "num_generated": plan.num_generated,
        "num_queued": plan.num_queued,
        "num_injected": len(plan.injected),
    }


def _injection_due(pool: Pool, task_id: str, batch: BatchPlanned, numbers: dict[str, object]) -> Answer:
    """The decision of the epoch that follows a last step."""
    epoch, config = batch.epoch + 1, pool.config
    stage = stage_at(pool, epoch)
    decision = plan_epoch(pool, stage, epoch) if stage else None
    if decision is None:
        return Answer("injected", False, f"no stage plans epoch {epoch}: it waits for ever", numbers)
    gone = {r.task_id: r.reason.value for r in decision.retired}
    if task_id in gone:
        return Answer("injected", False, f"it leaves the queue before epoch {epoch}: {gone[task_id]}", numbers)
    num_active = decision.num_human + decision.num_generated - len(decision.injected)
    live = decision.num_generated - len(decision.injected)
    queue = [other for other in queue_of(pool) if other not in gone]
    cap = num_to_inject(len(queue), num_active, live, pool)
    numbers |= {
        "epoch": epoch,
        "position": queue.index(task_id) + 1,
        "num_queued": len(queue),
        "num_active": num_active,
        "num_live_generated": live,
        "injection_frac": config.injection_frac,
        "max_generated": config.max_generated,
        "num_injected": cap,
    }
    verdict = task_id in decision.injected
    return Answer(
        "injected",
        verdict,
        f"number {numbers['position']} in the queue; epoch {epoch} takes min(queue {len(queue)}, "
        f"{config.injection_frac} of {num_active} active, {config.max_generated} - {live} live) = {cap}",
        numbers,
    )


def retired_answer(pool: Pool, task_id: str, step: int) -> Answer:
    """Whether a task had left or leaves after a step."""
    batch, config = pool.batches[step], pool.config
    means = [e.mean for e in pool.observations.get(task_id, ())]
    numbers = {
        "means": means,
        "alpha_low": config.alpha_low,
        "alpha_retire": config.alpha_retire,
        "burn_in_observations": config.burn_in_observations,
        "hard_observations": config.hard_observations,
        "mastered_observations": config.mastered_observations,
        "num_live_generated": len(live_generated(pool)),
        "max_generated": config.max_generated,
    }
    if task_id in pool.retired:
        event = pool.retired[task_id]
        return Answer("retired", True, f"it left before epoch {event.epoch}: {event.reason.value}", numbers)
    task = pool.tasks[task_id]
    if not config.retirement or (task.origin is Origin.HUMAN and (config.protect_seeds or task.is_protected)):
        return Answer(
            "retired", False, "retirement is off" if not config.retirement else "human seeds are protected", numbers
        )
    if not batch.is_last_of_epoch:
        reason = drift_reason(pool.observations.get(task_id, ()), pool, batch.epoch + 1)
        because = (
            f"who leaves is decided after the last step of epoch {batch.epoch}; means so far: {_shown(means)}; "
            f"they would say {reason.value if reason else 'stay'}"
        )
        return Answer("retired", False, because, numbers)
    return _retirement_due(pool, task_id, batch, numbers)


def _shown(means: Sequence[float]) -> str:
    return ", ".join(f"{mean:.3f}" for mean in means) or "none"


def _retirement_due(pool: Pool, task_id: str, batch: BatchPlanned, numbers: dict[str, object]) -> Answer:
    """The decision of the epoch that follows a last step."""
    epoch, config, means = batch.epoch + 1, pool.config, [e.mean for e in pool.observations.get(task_id, ())]
    stage = stage_at(pool, epoch)
    decision = plan_epoch(pool, stage, epoch) if stage else None
    if decision is None:
        return Answer("retired", False, f"no epoch follows step {batch.step}", numbers)
    reason = {r.task_id: r.reason for r in decision.retired}.get(task_id)
    if reason is not None:
        return Answer("retired", True, f"leaves before epoch {epoch}: {reason.value}; means {_shown(means)}", numbers)
    if not means:
        return Answer("retired", False, "it was not observed yet and its signal is young enough", numbers)
    because = (
        f"means {_shown(means)}: neither below {config.alpha_low} nor above {config.alpha_retire} often enough, "
        "and the pool is not over its limit"
    )
    return Answer("retired", False, because, numbers)
