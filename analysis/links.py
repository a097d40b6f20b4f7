"""The links of a causal chain: each event as one sentence with its numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.chronicle import Chronicle
from analysis.fork import ForkMode
from schemas.events import (
    BoundaryDetected,
    Completion,
    RolloutGroupCompleted,
    SynthesisFailed,
    SynthesisStage,
    Task,
    TaskSynthesized,
    TrajectoryRecorded,
    VariantRejected,
)


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

    def as_json(self) -> dict[str, object]:
        """The tree as plain values."""
        return {
            "kind": self.kind,
            "id": self.id,
            "says": self.says,
            "facts": dict(self.facts),
            "causes": [cause.as_json() for cause in self.causes],
        }


def task_says(run: Chronicle, task_id: str) -> str:
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
    return {
        "category": task.category.value,
        "num_turns": len(task.turns),
        "involved_classes": list(task.involved_classes),
    }


def group_fact(run: Chronicle, group: RolloutGroupCompleted) -> Link:
    """A group of rollouts and what it said about its task."""
    numbers = run.evidence(group)
    shown = ", ".join("invalid" if reward is None else f"{reward:.2f}" for reward in group.rewards)
    mean = f", mean {numbers['mean']:.3f} ({numbers['zone']})" if "mean" in numbers else ", no observation"
    says = f"{group.num_rollouts} rollouts of {group.task_id} at step {group.step}{mean}: {shown}"
    return Link(
        "group",
        group.group_id,
        says,
        {
            **numbers,
            "step": group.step,
            "status": group.status.value,
            "rewards": list(group.rewards),
            "trajectory_ids": list(group.trajectory_ids),
            "policy_version": group.policy_version,
        },
    )


def signal_fact(run: Chronicle, signal: BoundaryDetected) -> Link:
    """A signal with its evidence and the group that gave it."""
    numbers = signal.evidence
    says = (
        f"signal at step {signal.step}: mean {numbers.mean:.3f}, phi {numbers.phi:.3f}, {numbers.zone.value}; rank "
        f"{signal.rank + 1} of a quota of {signal.quota} for {signal.category.value}"
    )
    facts = {
        "step": signal.step,
        "epoch": signal.epoch,
        "mean": numbers.mean,
        "variance": numbers.variance,
        "phi": numbers.phi,
        "num_valid": numbers.num_valid,
        "num_rollouts": numbers.num_rollouts,
        "rank": signal.rank,
        "quota": signal.quota,
        "policy_version": signal.policy_version,
        "task_id": signal.task_id,
    }
    groups = [
        g for g in run.groups_of.get(signal.task_id, ()) if g.group_id == signal.caused_by or g.step == signal.step
    ]
    return Link("signal", signal.signal_id, says, facts, tuple(group_fact(run, group) for group in groups[:1]))


def rejections(run: Chronicle, signal_id: str) -> tuple[Link, ...]:
    """Candidates that were built and refused on the way."""

    def link(event: VariantRejected) -> Link:
        return Link(
            "rejection",
            event.event_id,
            f"attempt {event.attempt + 1} refused by {event.failure.value}: {event.detail}",
            {"attempt": event.attempt, "failure": event.failure.value, "candidate": task_facts(event.candidate)},
        )

    return tuple(link(event) for event in run.rejected.get(signal_id, ()))


def synthesis(ended: TaskSynthesized | SynthesisFailed) -> tuple[Link, ...]:
    """The stages of each attempt, then the questions to a model with prompt and answer, as far as recorded."""

    def stage(event: SynthesisStage) -> Link:
        word = "passed" if event.passed else f"ended in {event.failure}"
        return Link(
            "stage",
            "",
            f"attempt {event.attempt + 1}, {event.stage} {word}" + (f": {event.detail}" if event.detail else ""),
            {"attempt": event.attempt, "stage": event.stage, "passed": event.passed, "failure": event.failure},
        )

    def completion(asked: Completion) -> Link:
        answer = asked.error or asked.finish_reason or "answered"
        return Link(
            "completion",
            asked.prompt_hash,
            f"attempt {asked.attempt + 1}, asked the {asked.role} ({asked.model or 'no model'}): {answer}",
            {
                "prompt": asked.prompt,
                "text": asked.text,
                "num_prompt_tokens": asked.num_prompt_tokens,
                "num_completion_tokens": asked.num_completion_tokens,
                "num_retries": asked.num_retries,
            },
        )

    return (*map(stage, ended.stages), *map(completion, ended.completions))


def outcome(ended: TaskSynthesized | SynthesisFailed) -> Link:
    """How a signal ended, with the way there."""
    if isinstance(ended, SynthesisFailed):
        return Link(
            "outcome",
            ended.event_id,
            f"no variant after {ended.num_attempts} attempts: {ended.failure.value}, {ended.detail}",
            {
                "failure": ended.failure.value,
                "num_attempts": ended.num_attempts,
                "backend": ended.backend,
                "failures": [failure.value for failure in ended.failures],
            },
            synthesis(ended),
        )
    says = f"{ended.backend} made variant {ended.task.task_id} in {ended.num_attempts} attempts"
    return Link(
        "outcome",
        ended.event_id,
        says,
        {
            "task_id": ended.task.task_id,
            "num_attempts": ended.num_attempts,
            "backend": ended.backend,
            "fingerprint": ended.fingerprint,
            "seed_profile": ended.seed_profile_json,
            "variant_profile": ended.variant_profile_json,
            "user_texts": [turn.user_text for turn in ended.task.turns],
            "reference_calls": [
                [f"{call.name} {call.arguments_json}" for call in turn.ground_truth] for turn in ended.task.turns
            ],
        },
        synthesis(ended),
    )


def injection(run: Chronicle, task_id: str) -> tuple[Link, ...]:
    """When a generated task entered training, or that it waits; nothing for a human one."""
    if not isinstance(run.tasks.get(task_id), TaskSynthesized):
        return ()
    if task_id not in run.injected_in:
        return () if task_id in run.retired else (Link("injection", "", "waits in the queue"),)
    plan = run.epochs[run.injected_in[task_id]]
    number = f"number {plan.injected.index(task_id) + 1} of {len(plan.injected)}"
    says = f"injected into epoch {plan.epoch} (from step {plan.first_step}) as {number}"
    return (
        Link(
            "injection",
            plan.event_id,
            says,
            {
                "epoch": plan.epoch,
                "first_step": plan.first_step,
                "num_injected": len(plan.injected),
                "num_human": plan.num_human,
                "num_generated": plan.num_generated,
                "num_queued": plan.num_queued,
            },
        ),
    )


def learned(run: Chronicle, group: RolloutGroupCompleted) -> tuple[Link, ...]:
    """The update a group went into, or why it was left out."""
    drop, done = run.dropped.get(group.group_id), run.steps.get(group.step)
    if drop is not None:
        return (
            Link(
                "drop",
                drop.event_id,
                f"left out of step {drop.step}: {drop.reason.value}, {drop.staleness} updates old",
                {"reason": drop.reason.value, "staleness": drop.staleness, "num_rollouts": drop.num_rollouts},
            ),
        )
    if done is not None and done.group_ids and group.group_id not in done.group_ids:
        return (Link("drop", "", f"not among the groups of step {group.step}"),)
    return trained(run, group.step)


def shared_says(run: Chronicle, step: int) -> str:
    """That a step is shared with the run this one was forked from; empty for a step of its own."""
    start = run.fork_at(step)
    if start is None:
        return ""
    how = "off-policy, with the rollouts" if start.fork_mode == ForkMode.RETRAIN.value else "as part"
    return f", {how} of run {start.parent_run_id}"


def shared_facts(run: Chronicle, step: int) -> dict[str, object]:
    """Parent and mode of a fork, for a step that it shares."""
    start = run.fork_at(step)
    return {"parent_run_id": start.parent_run_id, "fork_mode": start.fork_mode} if start else {}


def trained(run: Chronicle, step: int) -> tuple[Link, ...]:
    """The update of a step, if it was applied."""
    done = run.steps.get(step)
    if done is None:
        return ()
    size = f"{done.num_trajectories} rollouts of {done.num_groups} tasks"
    says = f"trained in step {step}{shared_says(run, step)}: {size}, weights {done.weights_digest[:12]}"
    return (
        Link(
            "step",
            str(step),
            says,
            {
                **shared_facts(run, step),
                "step": step,
                "epoch": done.epoch,
                "policy_version": done.policy_version,
                "weights_digest": done.weights_digest,
                "num_trained_tokens": done.num_trained_tokens,
                "metrics": dict(done.metrics),
            },
        ),
    )


def retirement(run: Chronicle, task_id: str) -> tuple[Link, ...]:
    """How a task left, if it did."""
    event = run.retired.get(task_id)
    if event is None:
        return ()
    last = f"last mean {event.evidence.mean:.3f}" if event.evidence else "never observed"
    says = f"retired before epoch {event.epoch}: {event.reason.value}, {last}, {event.num_observations} observations"
    return (
        Link(
            "retirement",
            event.event_id,
            says,
            {
                "reason": event.reason.value,
                "epoch": event.epoch,
                "num_observations": event.num_observations,
                "first_mean": event.first_mean,
                "last_mean": event.evidence.mean if event.evidence else None,
            },
        ),
    )


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
