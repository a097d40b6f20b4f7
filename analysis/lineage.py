"""Why a thing is there: the chain from human seed over rollouts, signal and variant to the steps it trained. Pure.

``lineage(chronicle, id)`` answers for a task, a rollout (trajectory id), a group, a signal, a batch or a step (their event
ids, or ``step:12``), as a tree whose children stand in the order in which they came about.
"""

from __future__ import annotations

from analysis.chronicle import Chronicle
from analysis.links import (
    Link,
    group_fact,
    injection,
    learned,
    messages,
    outcome,
    rejections,
    retirement,
    signal_fact,
    task_facts,
    task_says,
    trained,
)
from schemas.events import BoundaryDetected, RolloutGroupCompleted, TaskSynthesized

PREFIXES = ("step:", "batch:")


class UnknownId(LookupError):
    """Nothing in the run has this id."""


def lineage(run: Chronicle, wanted: str) -> Link:
    """The chain of one thing.

    Raises:
        UnknownId: nothing has this id.
    """
    prefix, _, number = wanted.partition(":")
    if f"{prefix}:" in PREFIXES and number.isdecimal() and int(number) in run.batches:
        return step_link(run, int(number))
    if run.step_of.get(wanted) in run.batches:
        return step_link(run, run.step_of[wanted])
    if wanted in run.tasks:
        return task_link(run, wanted)
    if wanted in run.signals:
        return signal_link(run, run.signals[wanted])
    if wanted in run.groups:
        return group_story(run, run.groups[wanted])
    if wanted in run.group_of:
        return rollout_link(run, wanted)
    raise UnknownId(
        f"nothing in this run has the id {wanted!r}: give the id of a task, a trajectory, a group, a signal or a "
        "batch, or step:NUMBER"
    )


def task_link(run: Chronicle, task_id: str) -> Link:
    """A task: where it comes from, what was seen of it, how it left."""
    made = run.tasks[task_id]
    return Link(
        "task", task_id, task_says(run, task_id), task_facts(made.task), (*origin(run, task_id), *life(run, task_id))
    )


def origin(run: Chronicle, task_id: str) -> tuple[Link, ...]:
    """What led to a generated task, back to the human seed; nothing for a human one."""
    made = run.tasks.get(task_id)
    if not isinstance(made, TaskSynthesized):
        return ()
    parent = made.parent_task_id
    earlier = run.tasks.get(parent)
    is_older = not isinstance(earlier, TaskSynthesized) or earlier.generation < made.generation
    seed = Link("seed", parent, task_says(run, parent), causes=origin(run, parent) if is_older else ())
    signal = run.signals.get(made.signal_id)
    told = (signal_fact(run, signal),) if signal else ()
    return (seed, *told, *rejections(run, made.signal_id), outcome(made))


def life(run: Chronicle, task_id: str) -> tuple[Link, ...]:
    """A task's injection, its groups with the steps they trained, the signals it gave, and its retirement."""
    signals = {signal.step: signal for signal in run.signals_of.get(task_id, ())}
    links = [*injection(run, task_id)]
    for group in run.groups_of.get(task_id, ()):
        fact = group_fact(run, group)
        gave = (_gave(run, signals[group.step]),) if group.step in signals else ()
        links.append(Link(fact.kind, fact.id, fact.says, fact.facts, (*learned(run, group), *gave)))
    return (*links, *retirement(run, task_id))


def _gave(run: Chronicle, signal: BoundaryDetected) -> Link:
    """A signal seen from its seed: without the group again, with how it ended."""
    fact = signal_fact(run, signal)
    return Link(fact.kind, fact.id, fact.says, fact.facts, ending(run, signal.signal_id))


def ending(run: Chronicle, signal_id: str) -> tuple[Link, ...]:
    """Rejections and outcome of a signal."""
    ended = run.outcomes.get(signal_id)
    return (*rejections(run, signal_id), outcome(ended) if ended else Link("outcome", "", "not answered yet"))


def signal_link(run: Chronicle, signal: BoundaryDetected) -> Link:
    """A signal: its seed and the group behind it, how it ended, and what became of the variant."""
    fact = signal_fact(run, signal)
    seed = Link("seed", signal.task_id, task_says(run, signal.task_id), causes=origin(run, signal.task_id))
    ended = run.outcomes.get(signal.signal_id)
    after = life(run, ended.task.task_id) if isinstance(ended, TaskSynthesized) else ()
    return Link(fact.kind, fact.id, fact.says, fact.facts, (seed, *fact.causes, *ending(run, signal.signal_id), *after))


def group_story(run: Chronicle, group: RolloutGroupCompleted) -> Link:
    """A group: its task's origin, the step it trained, the signal it gave."""
    fact = group_fact(run, group)
    task = Link(
        "task",
        group.task_id,
        task_says(run, group.task_id),
        causes=(*origin(run, group.task_id), *injection(run, group.task_id)),
    )
    gave = tuple(_gave(run, s) for s in run.signals_of.get(group.task_id, ()) if s.step == group.step)
    return Link(fact.kind, fact.id, fact.says, fact.facts, (task, *learned(run, group), *gave))


def rollout_link(run: Chronicle, trajectory_id: str) -> Link:
    """A rollout: its messages as far as its body was fed, and the story of its group."""
    group, body = run.groups.get(run.group_of[trajectory_id]), run.trajectories.get(trajectory_id)
    heard = tuple(messages(body)) if body else ()
    if group is None:
        task = Link("task", body.task_id, task_says(run, body.task_id), causes=origin(run, body.task_id))
        return Link("rollout", trajectory_id, "rollout whose group is not in the log", causes=(task, *heard))
    index = group.trajectory_ids.index(trajectory_id) if trajectory_id in group.trajectory_ids else -1
    reward = group.rewards[index] if 0 <= index < len(group.rewards) else None
    says = (
        f"rollout {index + 1} of {group.num_rollouts} of {group.task_id} at step {group.step}: "
        f"{'invalid' if reward is None else f'reward {reward:.3f}'}"
    )
    facts = {"reward": reward, "step": group.step, "task_id": group.task_id, "policy_version": group.policy_version}
    if body:
        facts |= {"finish_reason": body.finish_reason.value, "num_tokens": len(body.mask), "detail": body.detail}
    return Link("rollout", trajectory_id, says, facts, (*heard, group_story(run, group)))


def step_link(run: Chronicle, step: int) -> Link:
    """A step: the plan behind its batch, then each task with its origin, its group, and the update."""
    batch, plan = run.batches[step], run.epochs.get(run.batches[step].epoch)
    planned = ()
    if plan is not None:
        says = (
            f"epoch {plan.epoch} of stage {plan.stage}: {plan.num_human} human and {plan.num_generated} generated "
            f"tasks, {len(plan.injected)} injected, {len(plan.retired)} retired"
        )
        planned = (
            Link(
                "batch",
                batch.event_id,
                says,
                {"plan_id": plan.event_id, "injected": list(plan.injected), "retired": list(plan.retired)},
            ),
        )
    tasks = tuple(_task_at(run, task_id, step) for task_id in batch.task_ids)
    done = trained(run, step)
    head = done[0] if done else Link("step", str(step), f"step {step} is planned and not trained yet")
    facts = {**head.facts, "step": step, "epoch": batch.epoch, "task_ids": list(batch.task_ids)}
    return Link("step", str(step), head.says, facts, (*planned, *tasks))


def _task_at(run: Chronicle, task_id: str, step: int) -> Link:
    groups = tuple(group_fact(run, g) for g in run.groups_of.get(task_id, ()) if g.step == step)
    gave = tuple(_gave(run, s) for s in run.signals_of.get(task_id, ()) if s.step == step)
    return Link(
        "task",
        task_id,
        task_says(run, task_id),
        causes=(*origin(run, task_id), *injection(run, task_id), *groups, *gave),
    )
