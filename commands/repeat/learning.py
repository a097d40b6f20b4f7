"""The trainer's part of ``rods replay``: learn again from the recorded rollouts, play them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.progress import Progress

from analysis.fork import ForkMode
from analysis.replay import Divergence
from commands.config import ConfigError
from commands.repeat.report import DIFFERS, TOLERANCE, Report
from commands.repeat.source import ReplaySource
from commands.roles.train import installed_versions, policy_folder
from streams.log.port import LogGap
from trainer.policy.loading import tokenizer_digest
from trainer.replay.learning import WEIGHTS, Bodies, learn_again, step_divergence, weights_divergence
from trainer.replay.opening import NoWeights, Opened, initial_engine, initial_policy, largest_difference
from trainer.replay.playing import rewards_again
from trainer.rollouts.episodes import EpisodeMaker
from trainer.update.engine import Engine
from trainer.update.engines import EngineUnavailable
from trainer.view import RunView

WEIGHT_TOLERANCE = 1e-4
"""Largest absolute difference of a weight that another machine may make."""


def view_of(source: ReplaySource) -> RunView:
    """Everything the trainer heard, without bodies."""
    view = RunView()
    view.hear(item.event for item in source.run.scanned.values())
    return view


def learning(source: ReplaySource, report: Report, progress: Progress) -> None:
    """Every update from the recorded trajectories, from the recorded initial weights.

    Raises:
        LogGap: something that was learned from is not in the log.
        ConfigError: the engine of the run is not installed.
    """
    view, start = view_of(source), inherited_steps(source)
    steps = steps_of(source, view, start)
    task = progress.add_task("learning", total=len(steps))
    try:
        opened = initial_engine(
            source.checkpoints,
            source.config.trainer,
            start,
            policy_folder(source.config),
            **source.config.policy.spoken,
        )
    except NoWeights as error:
        report.skip("learning", f"{error}; say where with --checkpoints")
        return
    except EngineUnavailable as error:
        raise ConfigError(f"learning cannot be repeated: {error}") from error
    difference, gaps = start_divergence(source, opened), {}
    if difference is None:
        difference, gaps = updates_again(source, view, opened.engine, steps, lambda: progress.advance(task))
    opened.engine.close()
    difference = difference or end_divergence(source, view)
    report.set("learning", difference, len(steps), "" if difference else f"bit for bit, {_threads(source)}")
    if difference is not None and difference.what == WEIGHTS:
        judge(source, report, gaps)


def _threads(source: ReplaySource) -> str:
    return f"{source.config.trainer.num_threads} torch thread(s)"


def inherited_steps(source: ReplaySource) -> int:
    """Steps that a continuing fork took over with their weights; 0 for a run of its own."""
    return source.started.forked_at_step if source.started.fork_mode == ForkMode.CONTINUE.value else 0


def steps_of(source: ReplaySource, view: RunView, start: int) -> list[int]:
    """The steps to learn again: all behind those that were taken over.

    Raises:
        LogGap: one that must have been completed is not in the log.
    """
    last = source.run.finished.step if source.run.pool.finished else 0
    steps = list(range(start + 1, max([start, last, *view.steps]) + 1))
    absent = [step for step in steps if step not in view.steps]
    if absent:
        raise LogGap(f"StepCompleted of step {', '.join(map(str, absent[:10]))} is not in the log")
    return steps


def start_divergence(source: ReplaySource, opened: Opened) -> Divergence | None:
    """What RunStarted says of the initial policy and the one at hand is not."""
    policy, started = opened.policy, source.started
    sides = (
        ("weights_digest", opened.initial_digest),
        ("template_hash", policy.template.digest),
        ("tokenizer_hash", tokenizer_digest(policy.tokenizer)),
    )
    for name, here in sides:
        if getattr(started, name) != here:
            return Divergence(
                source.started_at,
                f"{name} of RunStarted",
                getattr(started, name),
                here,
                f"initial policy in {policy.model.name_or_path}",
            )
    return None


def end_divergence(source: ReplaySource, view: RunView) -> Divergence | None:
    """What RunFinished says of the last step and StepCompleted does not."""
    finished, last = source.run.finished, max(view.steps, default=0)
    if not source.run.pool.finished or not last:
        return None
    done = view.steps[last]
    sides = (
        ("weights_digest", finished.weights_digest, done.weights_digest),
        ("step", finished.step, done.step),
        ("epoch", finished.epoch, done.epoch),
    )
    return next(
        (
            Divergence(
                source.run.scanned[finished.event_id].where,
                f"{name} of RunFinished",
                str(said),
                str(was),
                f"StepCompleted {done.event_id}",
            )
            for name, said, was in sides
            if said != was
        ),
        None,
    )


def updates_again(
    source: ReplaySource, view: RunView, engine: Engine, steps: Sequence[int], on_step: Callable[[], None]
) -> tuple[Divergence | None, dict[int, float]]:
    """Learn all steps again, also behind a difference of weights.

    Returns:
        The first difference, and by step the largest difference of a weight to each kept checkpoint from there on.

    Raises:
        LogGap: something that was learned from is not in the log.
    """
    first, gaps = None, {}
    bodies = Bodies(source.bodies(), source.run_id)
    try:
        for learned in learn_again(view, bodies.take, engine, source.config.trainer, steps):
            on_step()
            if learned.recorded == learned.repeated:
                found = step_divergence(learned, view) if source.config.trainer.num_processes == 1 else None
                if found is not None:
                    return first or found, gaps
                continue
            first = first or weights_divergence(learned, view)
            gap = largest_difference(engine.model, source.checkpoints, learned.step)
            if gap is not None:
                gaps[learned.step] = gap
    except LogGap:
        if first is None:
            raise
    return first, gaps


def judge(source: ReplaySource, report: Report, gaps: Mapping[int, float]) -> None:
    """Other weights: within the tolerance at every kept checkpoint is as good as it gets on another machine, and no better
    than any other difference on the same one."""
    other = circumstances(source)
    gap, at = max(gaps.values(), default=None), ", ".join(map(str, gaps))
    within = gap is not None and gap <= WEIGHT_TOLERANCE
    size = (
        f"largest weight difference {gap:.1e} at the kept checkpoints of step {at}, tolerance {WEIGHT_TOLERANCE:.0e}"
        if gap is not None
        else "no checkpoint behind it is kept to measure the difference by"
    )
    where = (
        f"recorded -> here: {'; '.join(other)}"
        if other
        else (
            f"CPU ({source.started.versions.get('cpu')}) and packages are those of the run, {_threads(source)}: equal bits are asked for"
        )
    )
    report.verdicts["learning"] = TOLERANCE if within and other else DIFFERS
    report.notes["learning"] = f"{size}; {where}"


def circumstances(source: ReplaySource) -> list[str]:
    """What is not here as it was when the run was recorded: CPU, packages, number of processes."""
    here, there = installed_versions(source.config.tasks.environment), source.started.versions
    names = sorted(here.keys() | there.keys(), key=lambda name: (name != "cpu", name))
    found = [
        f"{name} {there.get(name, 'not recorded')} -> {here.get(name, 'unknown')}"
        for name in names
        if here.get(name) != there.get(name)
    ]
    processes = source.config.trainer.num_processes
    return [*found, f"{processes} processes -> 1"] if processes > 1 else found


def rewards(source: ReplaySource, report: Report, progress: Progress) -> None:
    """Every recorded call in fresh simulators.

    Raises:
        LogGap: a group, task or trajectory is not in the log.
    """
    view = view_of(source)
    task = progress.add_task("rewards", total=len(view.groups))
    try:
        policy = initial_policy(source.checkpoints, policy_folder(source.config), **source.config.policy.spoken)
    except NoWeights as error:
        report.skip("rewards", f"{error}; say where with --checkpoints")
        return
    bodies = Bodies(source.bodies(), source.run_id)
    new_episode, share = EpisodeMaker(policy.template.parser), source.config.pool.min_valid_frac
    difference = rewards_again(view, bodies, new_episode, lambda: progress.advance(task), share)
    report.set("rewards", difference, len(view.groups))
