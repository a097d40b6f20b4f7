"""Counts that nothing is lost and nothing counted twice. Pure.

Exactly one terminal fact per dispatched unit: each planned (step, task) of a finished step ends in one group for each
attempt at it that was opened (the first in the log counts), each signal in one outcome, each planned step in one
StepCompleted, and each synthesized task is waiting, active or retired.
"""

from __future__ import annotations

from collections import Counter

from analysis.index import RunIndex
from schemas.events import TaskSynthesized


def num_late(run: RunIndex) -> int:
    """Groups that came after another attempt had ended their task in their step; only the first in the log counts."""
    return sum(len(groups) - 1 for groups in run.groups.values())


def missing(run: RunIndex) -> list[str]:
    """Dispatched units without their end, in words, sorted."""
    planned = [(step, task_id) for step, batch in run.pool.batches.items() for task_id in batch.task_ids]
    lost = [f"group of {task} at step {step}" for step, task in planned if (step, task) not in run.groups]
    lost += [f"outcome of signal {signal}" for signal in run.pool.signals if signal not in run.outcomes]
    lost += [f"completion of step {step}" for step in run.pool.batches if step not in run.steps]
    return sorted(lost)


def duplicate(run: RunIndex) -> list[str]:
    """Units that ended more than once, in words, sorted."""
    retried = {(*place, group.attempt) for place, groups in run.groups.items() for group in groups if group.attempt > 0}
    entered = Counter(task_id for plan in run.pool.epochs.values() for task_id in plan.injected)
    made = {task_id for task_id, event in run.tasks.items() if isinstance(event, TaskSynthesized)}
    twice = [f"group of {task} at step {step}" for step, task, _ in retried - run.reopened]
    twice += [f"outcome of signal {signal}" for signal, ends in run.outcomes.items() if len(ends) > 1]
    twice += [f"injection of {task}" for task, count in entered.items() if count > 1]
    twice += [f"retirement of {task}" for task, events in run.retired.items() if len(events) > 1]
    twice += [f"injection of {task}, which nobody made" for task in entered if task not in made]
    return sorted(twice)
