"""What a run came to. Pure."""

from __future__ import annotations

from analysis.conservation import duplicate, missing
from analysis.fork import ForkMode
from analysis.index import RunIndex, mean
from schemas import HELDOUT
from schemas.events import EpochPlanned, EvaluationCompleted, Origin, RunStarted
from streams.pool.boundary import zone_variance
from streams.pool.lifecycle import live_generated, queue_of


def tests_of(run: RunIndex) -> list[EvaluationCompleted]:
    """Evaluations on the held-out tasks, by step."""
    return [event for (suite, _), event in sorted(run.evaluations.items()) if suite == HELDOUT]


def human_rewards(run: RunIndex) -> dict[int, float | None]:
    """By epoch: mean over the human seeds of their mean progress reward; ``None`` where no seed has one."""
    return {
        epoch: mean(value for task_id, value in rewards.items() if is_human(run, task_id))
        for epoch, rewards in sorted(run.rewards().items())
    }


def is_human(run: RunIndex, task_id: str) -> bool:
    """Whether a task is a human seed of the run."""
    task = run.pool.tasks.get(task_id)
    return task is not None and task.origin is Origin.HUMAN


def fork_of(started: RunStarted | None) -> dict | None:
    """Whose past a run shares, up to which step and how; ``None`` for a run of its own.

    A ``retrain`` learned the shared steps from the parent's rollouts: it is ``off_policy`` there.
    """
    if started is None or not started.parent_run_id:
        return None
    return {
        "parent_run_id": started.parent_run_id,
        "at_step": started.forked_at_step,
        "mode": started.fork_mode,
        "off_policy": started.fork_mode == ForkMode.RETRAIN.value,
    }


def fork_text(fork: dict) -> str:
    """Whose past a run shares, in one sentence."""
    how = "learned again from its rollouts, off-policy" if fork["off_policy"] else "taken over with its weights"
    return f"steps 1 to {fork['at_step']} of {fork['parent_run_id']}, {how}"


def summary_of(run: RunIndex) -> dict:
    """The figures of ``summary.json``; a figure that was not measured is ``None``."""
    pool, rewards, tests = run.pool, list(human_rewards(run).values()), tests_of(run)
    lost, twice = missing(run), duplicate(run)
    injected = [task_id for plan in pool.epochs.values() for task_id in plan.injected]
    return {
        "run_id": run.started.run_id if run.started else "",
        "fork": fork_of(run.started),
        "outcome": run.finished.outcome.value if run.finished else "unfinished",
        "reward_first": rewards[0] if rewards else None,
        "reward_last": rewards[-1] if rewards else None,
        "heldout_reward_first": tests[0].mean_reward if tests else None,
        "heldout_reward_last": tests[-1].mean_reward if tests else None,
        "steps": run.counts["StepCompleted"],
        "epochs": len(rewards),
        "tasks_seeded": run.counts["TaskSeeded"],
        "boundary_signals": run.counts["BoundaryDetected"],
        "tasks_synthesized": run.counts["TaskSynthesized"],
        "synthesis_failed": run.counts["SynthesisFailed"],
        "tasks_injected": len(injected),
        "tasks_retired": run.counts["TaskRetired"],
        "retire_reasons": dict(sorted(run.retire_reasons.items())),
        "synthesis_failures": dict(sorted(run.failures.items())),
        "tasks_waiting": len(queue_of(pool)),
        "generated_active": len(live_generated(pool)),
        "injected_first_reward": mean(seen[0].mean for task in injected if (seen := pool.observations.get(task))),
        "zone_variance": zone_variance([evidence for seen in pool.observations.values() for evidence in seen]),
        "zones": dict(sorted(run.zones().items())),
        "dead_letters": run.counts["DeadLettered"],
        "conservation": {"missing": len(lost), "duplicate": len(twice), "details": (lost + twice)[:20]},
        "weights_digest": run.last_step.weights_digest if run.last_step else "",
    }


def reward_by_epoch(run: RunIndex) -> list[tuple[int, float | None, EpochPlanned]]:
    """For each planned epoch: number, mean reward of the human seeds, the plan."""
    rewards = human_rewards(run)
    return [(epoch, rewards.get(epoch), plan) for epoch, plan in sorted(run.pool.epochs.items())]
