"""`rods run` through a whole curriculum: format rewards, base tasks until nothing moves, everything with synthesis."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.conservation import duplicate, missing
from commands.folder import RunFolder
from schemas.events import (
    BoundaryDetected,
    EvaluationCompleted,
    RewardKind,
    RolloutGroupCompleted,
    RunStarted,
    StageStarted,
    StepCompleted,
    TaskSynthesized,
    TrajectoryRecorded,
)
from streams.archive.segments import ArchiveLog
from streams.log.reader import EventReader
from tests.chaos.harness import only_run
from tests.commands.test_run import rods, run
from trainer.curriculum import configured_name
from trainer.replay.learning import learn_again
from trainer.replay.opening import initial_engine
from trainer.rollouts.groups import rewards_of
from trainer.update.advantage import has_no_signal
from trainer.view import RunView

CONFIG = Path(__file__).parent / "curriculum.toml"
BASE = tuple(f"multi_turn_base_{number}" for number in (144, 133, 13, 45))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list]:
    """A run to its end, and all of its events."""
    folder = tmp_path_factory.mktemp("curriculum")
    code, output = run(folder, "--config", str(CONFIG))
    assert code == 0, output
    found = only_run(folder)
    archive = ArchiveLog(found.archive)
    return found, EventReader(archive, list(archive.partitions), archive.partitions, found.run_id, "test").catch_up()


def of_kind(events: list, kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def steps_of(events: list) -> list[StepCompleted]:
    return sorted(of_kind(events, StepCompleted), key=lambda step: step.step)


def test_the_stages_begin_in_order_each_behind_the_last_step_of_the_one_before(finished) -> None:
    _, events = finished
    stages = of_kind(events, StageStarted)
    assert [stage.stage for stage in stages] == ["format", "base", "base+1", "full"]
    assert [stage.ordinal for stage in stages] == [0, 1, 2, 3]
    assert [(stage.reward, stage.synthesis) for stage in stages] == [
        (RewardKind.FORMAT, False),
        (RewardKind.PROGRESS, False),
        (RewardKind.PROGRESS, False),
        (RewardKind.PROGRESS, True),
    ]
    assert [(stage.first_epoch, stage.num_epochs, stage.first_step) for stage in stages] == [
        (0, 1, 1),
        (1, 1, 3),
        (2, 1, 5),
        (3, 2, 7),
    ]
    assert [stage.task_ids for stage in stages[:3]] == [BASE] * 3 and set(stages[3].task_ids) > set(BASE)
    names = {stage.first_epoch: stage.stage for stage in stages}
    for step in steps_of(events):
        assert step.stage == names[max(epoch for epoch in names if epoch <= step.epoch)]
        assert step.is_last_of_epoch or step.step + 1 not in [stage.first_step for stage in stages]


def test_the_open_stage_ended_because_it_had_converged_and_not_because_its_epochs_were_over(finished) -> None:
    _, events = finished
    steps = [step for step in steps_of(events) if configured_name(step.stage) == "base"]
    measured = {event.step for event in of_kind(events, EvaluationCompleted)}
    assert {step.epoch for step in steps} == {1, 2} and {2, 4, 6} <= measured
    assert sum(step.metrics["num_optimizer_steps"] > 0 for step in steps) >= 3, (
        "the window was full after the second epoch alone"
    )


def test_each_stage_learns_from_its_own_reward_on_top_of_the_last_weights(finished) -> None:
    """One engine that begins with the weights of step 0 arrives at every recorded digest; with other rewards it does not."""
    folder, events = finished
    view = RunView()
    view.hear(events)
    config = folder_config(events)
    engine = initial_engine(folder.checkpoints, config).engine
    assert all(
        step.recorded == step.repeated for step in learn_again(view, lambda groups: view.trajectories, engine, config)
    )
    view.stages = {name: replace(stage, reward=RewardKind.PROGRESS) for name, stage in view.stages.items()}
    engine = initial_engine(folder.checkpoints, config).engine
    others = list(learn_again(view, lambda groups: view.trajectories, engine, config, [1, 2]))
    assert any(step.recorded != step.repeated for step in others)


def folder_config(events: list):
    from commands.config import validated

    return validated(json.loads(of_kind(events, RunStarted)[0].config_json), "RunStarted").trainer


def test_groups_without_a_signal_are_counted_by_the_reward_of_the_stage(finished) -> None:
    _, events = finished
    groups = {group.group_id: group for group in of_kind(events, RolloutGroupCompleted)}
    rewards = {stage.stage: stage.reward for stage in of_kind(events, StageStarted)}
    for step in steps_of(events):
        own = [rewards_of(groups[group_id], rewards[step.stage]) for group_id in step.group_ids]
        assert step.num_zero_variance == sum(has_no_signal(rewards_G) for rewards_G in own)


def test_versions_go_on_from_stage_to_stage_and_every_rollout_is_of_the_newest(finished) -> None:
    _, events = finished
    steps = steps_of(events)
    assert [step.policy_version for step in steps] == [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert all(body.policy_version == body.step - 1 for body in of_kind(events, TrajectoryRecorded))


def test_tasks_are_made_in_the_stage_that_says_so_and_in_no_other(finished) -> None:
    _, events = finished
    signals = of_kind(events, BoundaryDetected)
    full = next(stage for stage in of_kind(events, StageStarted) if stage.stage == "full")
    assert signals and min(signal.epoch for signal in signals) >= full.first_epoch
    assert of_kind(events, TaskSynthesized)


def test_nothing_was_lost_or_counted_twice_and_the_whole_run_replays(finished) -> None:
    folder, _ = finished
    run = folder.facts()
    assert missing(run) == [] == duplicate(run)
    summary = json.loads(folder.summary_file.read_text())
    assert (summary["conservation"]["missing"], summary["conservation"]["duplicate"], summary["outcome"]) == (
        0,
        0,
        "completed",
    )
    process = rods("replay", str(folder.path), "--json")
    output, _ = process.communicate(timeout=240)
    assert set(json.loads(output.splitlines()[-1])["verdicts"].values()) == {"equal"}, output
