"""Why a thing is there: the chain from human seed over rollouts, signal and variant to the steps it trained. Pure.

``lineage(run, id)`` answers for a task, a rollout (trajectory id), a group, a signal, a batch or a step (their event
ids, or ``step:12``), as a tree whose children stand in the order in which they came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from analysis.fork import ForkMode
from analysis.index import Outcome, RunIndex
from schemas.events import (
    BoundaryDetected,
    Evidence,
    RolloutGroupCompleted,
    SynthesisFailed,
    Task,
    TaskSynthesized,
    TrajectoryRecorded,
)
from streams.pool.boundary import evidence_of

PREFIXES = ("step:", "batch:")


class UnknownId(LookupError):
    """Nothing in the run has this id."""


@dataclass(frozen=True, slots=True)
class Link:
    """One thing in a chain.

    Attributes:
        kind: task, seed, group, rollout, message, signal, rejection, stage, completion, outcome, injection, step, drop,
            batch or retirement.
        id: its id; the step number for steps.
        says: one sentence.
        facts: the numbers.
        causes: what it goes back to, came with, or led to, in order.
    """

    kind: str
    id: str
    says: str
    facts: Mapping[str, object] = field(default_factory=dict)
    causes: tuple[Link, ...] = ()

    def with_causes(self, *causes: Link) -> Link:
        """The same thing with other links below it."""
        return replace(self, causes=causes)

    def as_json(self) -> dict[str, object]:
        """The tree as plain values."""
        return {
            "kind": self.kind,
            "id": self.id,
            "says": self.says,
            "facts": dict(self.facts),
            "causes": [cause.as_json() for cause in self.causes],
        }


def lineage(run: RunIndex, wanted: str) -> Link:
    """The chain of one thing.

    Args:
        run: with bodies.
        wanted: an id, or ``step:NUMBER``.

    Raises:
        UnknownId: nothing has this id.
    """
    prefix, _, number = wanted.partition(":")
    is_step = f"{prefix}:" in PREFIXES and number.isdecimal()
    step = int(number) if is_step else run.step_of.get(wanted)
    if step in run.pool.batches:
        return step_link(run, step)
    if wanted in run.tasks:
        return task_link(run, wanted)
    if wanted in run.pool.signals:
        return signal_link(run, run.pool.signals[wanted])
    if (group := group_named(run, wanted)) is not None:
        return group_story(run, group)
    if wanted in run.group_of:
        return rollout_link(run, wanted)
    raise UnknownId(
        f"nothing in this run has the id {wanted!r}: give the id of a task, a trajectory, a group, a signal or a "
        "batch, or step:NUMBER"
    )


def group_named(run: RunIndex, group_id: str) -> RolloutGroupCompleted | None:
    """A group by its id."""
    return next((group for groups in run.groups.values() for group in groups if group.group_id == group_id), None)


def signals_of(run: RunIndex, task_id: str, step: int | None = None) -> list[BoundaryDetected]:
    """Signals of a task, of one step or by step."""
    found = (signal for signal in run.pool.signals.values() if signal.task_id == task_id)
    return sorted((s for s in found if step in (None, s.step)), key=lambda signal: signal.step)


def task_link(run: RunIndex, task_id: str) -> Link:
    """A task: where it comes from, what was seen of it, how it left."""
    head = Link("task", task_id, task_says(run, task_id), task_facts(run.tasks[task_id].task))
    return head.with_causes(*origin(run, task_id), *life(run, task_id))


def origin(run: RunIndex, task_id: str) -> tuple[Link, ...]:
    """What led to a generated task, back to the human seed; nothing for a human one."""
    made = run.tasks.get(task_id)
    if not isinstance(made, TaskSynthesized):
        return ()
    parent = made.parent_task_id
    earlier = run.tasks.get(parent)
    is_older = not isinstance(earlier, TaskSynthesized) or earlier.generation < made.generation
    seed = Link("seed", parent, task_says(run, parent), causes=origin(run, parent) if is_older else ())
    signal = run.pool.signals.get(made.signal_id)
    told = (signal_fact(run, signal),) if signal else ()
    return (seed, *told, *rejections(run, made.signal_id), outcome(made))


def life(run: RunIndex, task_id: str) -> tuple[Link, ...]:
    """A task's injection, its groups with the steps they trained, the signals it gave, and its retirement."""
    groups = [
        group_fact(run, group).with_causes(*learned(run, group), *gave(run, task_id, group.step))
        for group in run.groups_of(task_id)
    ]
    return (*injection(run, task_id), *groups, *retirement(run, task_id))


def gave(run: RunIndex, task_id: str, step: int) -> list[Link]:
    """Signals of a task at a step seen from their seed: without the group again, with how they ended."""
    signals = signals_of(run, task_id, step)
    return [signal_fact(run, signal).with_causes(*ending(run, signal.signal_id)) for signal in signals]


def ending(run: RunIndex, signal_id: str) -> tuple[Link, ...]:
    """Rejections and outcome of a signal."""
    ends = run.outcomes.get(signal_id)
    return (*rejections(run, signal_id), outcome(ends[0]) if ends else Link("outcome", "", "not answered yet"))


def signal_link(run: RunIndex, signal: BoundaryDetected) -> Link:
    """A signal: its seed and the group behind it, how it ended, and what became of the variant."""
    fact = signal_fact(run, signal)
    seed = Link("seed", signal.task_id, task_says(run, signal.task_id), causes=origin(run, signal.task_id))
    ended = run.outcomes.get(signal.signal_id, [None])[0]
    after = life(run, ended.task.task_id) if isinstance(ended, TaskSynthesized) else ()
    return fact.with_causes(seed, *fact.causes, *ending(run, signal.signal_id), *after)


def group_story(run: RunIndex, group: RolloutGroupCompleted) -> Link:
    """A group: its task's origin, the step it trained, the signal it gave."""
    task_id = group.task_id
    task = Link("task", task_id, task_says(run, task_id)).with_causes(*origin(run, task_id), *injection(run, task_id))
    return group_fact(run, group).with_causes(task, *learned(run, group), *gave(run, task_id, group.step))


def rollout_link(run: RunIndex, trajectory_id: str) -> Link:
    """A rollout: its messages as far as its body was fed, and the story of its group."""
    group, body = group_named(run, run.group_of[trajectory_id]), run.trajectories.get(trajectory_id)
    heard = messages(body) if body else []
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


def step_link(run: RunIndex, step: int) -> Link:
    """A step: the plan behind its batch, then each task with its origin, its group, and the update."""
    batch = run.pool.batches[step]
    plan, planned = run.pool.epochs.get(batch.epoch), []
    if plan is not None:
        says = (
            f"epoch {plan.epoch} of stage {plan.stage}: {plan.num_human} human and {plan.num_generated} generated "
            f"tasks, {len(plan.injected)} injected, {len(plan.retired)} retired"
        )
        facts = {"plan_id": plan.event_id, "injected": list(plan.injected), "retired": list(plan.retired)}
        planned = [Link("batch", batch.event_id, says, facts)]
    tasks = [
        Link("task", task_id, task_says(run, task_id)).with_causes(
            *origin(run, task_id),
            *injection(run, task_id),
            *(group_fact(run, group) for group in run.groups.get((step, task_id), ())),
            *gave(run, task_id, step),
        )
        for task_id in batch.task_ids
    ]
    head = next(iter(trained(run, step)), Link("step", str(step), f"step {step} is planned and not trained yet"))
    facts = {**head.facts, "step": step, "epoch": batch.epoch, "task_ids": list(batch.task_ids)}
    return Link("step", str(step), head.says, facts, (*planned, *tasks))


def task_says(run: RunIndex, task_id: str) -> str:
    """A task in one sentence."""
    made = run.tasks.get(task_id)
    if made is None:
        return f"task {task_id}, whose origin is not in the log"
    if isinstance(made, TaskSynthesized):
        kind = f"generated {made.task.category.value} task"
        return f"{kind} {task_id}, generation {made.generation}, from {made.parent_task_id}"
    return f"human {made.task.category.value} task {task_id}, number {made.position + 1} of the seeds"


def task_facts(task: Task) -> dict[str, object]:
    """Size and kind of a task."""
    classes = list(task.involved_classes)
    return {"category": task.category.value, "num_turns": len(task.turns), "involved_classes": classes}


def figures(event: object, *names: str) -> dict[str, object]:
    """Some fields of an event."""
    return {name: getattr(event, name) for name in names}


def evidence_facts(evidence: Evidence) -> dict[str, object]:
    """What a group said about its task."""
    numbers = figures(evidence, "mean", "variance", "phi", "num_valid", "num_rollouts")
    return numbers | {"zone": evidence.zone.value}


def group_fact(run: RunIndex, group: RolloutGroupCompleted) -> Link:
    """A group of rollouts and what it said about its task; what was valid alone where it is no observation."""
    evidence = evidence_of(group, run.pool.config)
    numbers = (
        evidence_facts(evidence) if evidence else figures(group, "num_valid", "num_rollouts") | {"zone": "unknown"}
    )
    shown = ", ".join("invalid" if reward is None else f"{reward:.2f}" for reward in group.rewards)
    mean = f", mean {evidence.mean:.3f} ({evidence.zone.value})" if evidence else ", no observation"
    return Link(
        "group",
        group.group_id,
        f"{group.num_rollouts} rollouts of {group.task_id} at step {group.step}{mean}: {shown}",
        {
            **numbers,
            "step": group.step,
            "status": group.status.value,
            "rewards": list(group.rewards),
            "trajectory_ids": list(group.trajectory_ids),
            "policy_version": group.policy_version,
        },
    )


def signal_fact(run: RunIndex, signal: BoundaryDetected) -> Link:
    """A signal with its evidence and the group that gave it."""
    numbers = signal.evidence
    says = (
        f"signal at step {signal.step}: mean {numbers.mean:.3f}, phi {numbers.phi:.3f}, {numbers.zone.value}; rank "
        f"{signal.rank + 1} of a quota of {signal.quota} for {signal.category.value}"
    )
    facts = figures(signal, "step", "epoch", "rank", "quota", "policy_version", "task_id")
    facts |= figures(numbers, "mean", "variance", "phi", "num_valid", "num_rollouts")
    groups = run.groups_of(signal.task_id)
    behind = [g for g in groups if g.group_id == signal.caused_by or g.step == signal.step][:1]
    return Link("signal", signal.signal_id, says, facts, tuple(group_fact(run, group) for group in behind))


def rejections(run: RunIndex, signal_id: str) -> list[Link]:
    """Candidates that were built and refused on the way."""
    return [
        Link(
            "rejection",
            event.event_id,
            f"attempt {event.attempt + 1} refused by {event.failure.value}: {event.detail}",
            {"attempt": event.attempt, "failure": event.failure.value, "candidate": task_facts(event.candidate)},
        )
        for event in run.rejected.get(signal_id, ())
    ]


def synthesis(ended: Outcome) -> Iterable[Link]:
    """The stages of each attempt, then the questions to a model with prompt and answer, as far as recorded."""
    for stage in ended.stages:
        word = "passed" if stage.passed else f"ended in {stage.failure}"
        detail = f": {stage.detail}" if stage.detail else ""
        says = f"attempt {stage.attempt + 1}, {stage.stage} {word}{detail}"
        yield Link("stage", "", says, figures(stage, "attempt", "stage", "passed", "failure"))
    for asked in ended.completions:
        answer = asked.error or asked.finish_reason or "answered"
        says = f"attempt {asked.attempt + 1}, asked the {asked.role} ({asked.model or 'no model'}): {answer}"
        facts = figures(asked, "prompt", "text", "num_prompt_tokens", "num_completion_tokens", "num_retries")
        yield Link("completion", asked.prompt_hash, says, facts)


def outcome(ended: Outcome) -> Link:
    """How a signal ended, with the way there."""
    numbers = figures(ended, "num_attempts", "backend")
    if isinstance(ended, SynthesisFailed):
        says = f"no variant after {ended.num_attempts} attempts: {ended.failure.value}, {ended.detail}"
        facts = {"failure": ended.failure.value, "failures": [failure.value for failure in ended.failures]}
    else:
        turns = ended.task.turns
        says = f"{ended.backend} made variant {ended.task.task_id} in {ended.num_attempts} attempts"
        facts = {
            "task_id": ended.task.task_id,
            "fingerprint": ended.fingerprint,
            "seed_profile": ended.seed_profile_json,
            "variant_profile": ended.variant_profile_json,
            "user_texts": [turn.user_text for turn in turns],
            "reference_calls": [[f"{call.name} {call.arguments_json}" for call in turn.ground_truth] for turn in turns],
        }
    return Link("outcome", ended.event_id, says, numbers | facts, tuple(synthesis(ended)))


def injection(run: RunIndex, task_id: str) -> tuple[Link, ...]:
    """When a generated task entered training, or that it waits; nothing for a human one."""
    if not isinstance(run.tasks.get(task_id), TaskSynthesized):
        return ()
    if task_id not in run.pool.injected:
        return () if task_id in run.retired else (Link("injection", "", "waits in the queue"),)
    plan = run.pool.epochs[run.pool.injected[task_id]]
    number = f"number {plan.injected.index(task_id) + 1} of {len(plan.injected)}"
    says = f"injected into epoch {plan.epoch} (from step {plan.first_step}) as {number}"
    facts = figures(plan, "epoch", "first_step", "num_human", "num_generated", "num_queued")
    return (Link("injection", plan.event_id, says, facts | {"num_injected": len(plan.injected)}),)


def learned(run: RunIndex, group: RolloutGroupCompleted) -> tuple[Link, ...]:
    """The update a group went into, or why it was left out."""
    drop, done = run.dropped.get(group.group_id), run.steps.get(group.step)
    if drop is not None:
        says = f"left out of step {drop.step}: {drop.reason.value}, {drop.staleness} updates old"
        facts = {"reason": drop.reason.value, **figures(drop, "staleness", "num_rollouts")}
        return (Link("drop", drop.event_id, says, facts),)
    if done is not None and done.group_ids and group.group_id not in done.group_ids:
        return (Link("drop", "", f"not among the groups of step {group.step}"),)
    return trained(run, group.step)


def trained(run: RunIndex, step: int) -> tuple[Link, ...]:
    """The update of a step, if it was applied; in a fork with the run it is shared with."""
    done, start = run.steps.get(step), run.parent_at(step)
    if done is None:
        return ()
    shared = ""
    if start is not None:
        how = "off-policy, with the rollouts" if start.fork_mode == ForkMode.RETRAIN.value else "as part"
        shared = f", {how} of run {start.parent_run_id}"
    size = f"{done.num_trajectories} rollouts of {done.num_groups} tasks"
    says = f"trained in step {step}{shared}: {size}, weights {done.weights_digest[:12]}"
    facts = figures(start, "parent_run_id", "fork_mode") if start else {}
    facts |= figures(done, "step", "epoch", "policy_version", "weights_digest", "num_trained_tokens")
    return (Link("step", str(step), says, facts | {"metrics": dict(done.metrics)}),)


def retirement(run: RunIndex, task_id: str) -> tuple[Link, ...]:
    """How a task left, if it did."""
    event = run.retired.get(task_id, [None])[0]
    if event is None:
        return ()
    last = f"last mean {event.evidence.mean:.3f}" if event.evidence else "never observed"
    says = f"retired before epoch {event.epoch}: {event.reason.value}, {last}, {event.num_observations} observations"
    facts = {"reason": event.reason.value, **figures(event, "epoch", "num_observations", "first_mean")}
    facts["last_mean"] = event.evidence.mean if event.evidence else None
    return (Link("retirement", event.event_id, says, facts),)


def messages(body: TrajectoryRecorded) -> list[Link]:
    """What the policy said in a rollout, message by message."""
    return [
        Link(
            "message",
            f"{body.trajectory_id}:{index}",
            f"turn {message.turn + 1}, {message.outcome.value}, code {message.code}",
            {"text": message.text, "results": list(message.results), "detail": message.detail},
        )
        for index, message in enumerate(body.messages)
    ]
