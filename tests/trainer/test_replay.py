"""Learning and playing a recorded run again: equal to the bit as recorded, and each altered field is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commands.roles.train import ASSET
from schemas import Undecodable
from schemas.events import RolloutGroupCompleted, TrajectoryRecorded
from streams.archive.scan import Scanned
from streams.log.port import LogGap, MemoryLog, Record
from tests.trainer.test_loop import CONFIG, RUN, events_of, new_log, reader_of, setup_of
from tests.trainer.toys import ToyEpisode, toy_model
from trainer.config import TrainerConfig
from trainer.loop import train
from trainer.replay.learning import Bodies, learn_again, step_divergence, weights_divergence
from trainer.replay.opening import NoWeights, initial_engine, initial_policy, largest_difference, make_checkpoint
from trainer.replay.playing import group_divergence, rewards_again
from trainer.update.torch_engine import TorchEngine
from trainer.view import TOPICS, RunView
from trainer.weights.digest import weights_digest


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    """A run of four steps."""
    recorded = new_log()
    train(setup_of(recorded, tmp_path_factory.mktemp("run")))
    return recorded


def view_of(log: MemoryLog, **changes: dict) -> RunView:
    """What the run said, with fields of the first event of a type changed."""
    view, left = RunView(), dict(changes)
    for event in reader_of(log, [t for t in TOPICS if t != "trajectories"]).catch_up():
        name = type(event).__name__
        view.hear([replace(event, **left.pop(name)) if name in left else event])
    return view


def scanned(log: MemoryLog) -> list[Scanned]:
    nowhere = Record("trajectories", 0, 0, 1, None, None)
    return [Scanned(nowhere, body) for body in events_of(log, TrajectoryRecorded)]


def learned(log: MemoryLog, view: RunView | None = None, items: list[Scanned] | None = None) -> list:
    view = view or view_of(log)
    bodies = Bodies(iter(items if items is not None else scanned(log)), RUN)
    return list(learn_again(view, bodies.take, TorchEngine(toy_model(), CONFIG), CONFIG))


def altered(log: MemoryLog, **values: object) -> list[Scanned]:
    first, *rest = scanned(log)
    return [replace(first, event=replace(first.event, **values)), *rest]


def test_learning_again_gives_every_step_to_the_bit_with_every_number_of_it(log: MemoryLog) -> None:
    view = view_of(log)
    steps = learned(log)
    assert [step.step for step in steps] == [1, 2, 3, 4] and all(step.recorded == step.repeated for step in steps)
    assert [weights_divergence(step, view) or step_divergence(step, view) for step in steps] == [None] * 4
    shared = view.steps[1].metrics.keys() & steps[0].metrics.keys()
    assert {"loss", "grad_norm", "reward_mean", "logprob_gap_mean"} <= shared


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"num_trained_tokens": 3}, "num_trained_tokens"),
        ({"num_zero_variance": 9}, "num_zero_variance"),
        ({"policy_version": 7}, "policy_version"),
        ({"is_last_of_epoch": True}, "is_last_of_epoch"),
        ({"stage": "x"}, "stage"),
        ({"metrics": {"loss": 0.5}}, "metric loss"),
    ],
)
def test_another_number_in_a_completed_step_is_named(log: MemoryLog, values: dict, what: str) -> None:
    view = view_of(log, StepCompleted=values)
    difference = step_divergence(learned(log)[0], view)
    assert difference.what == f"{what} of StepCompleted {view.steps[1].event_id}" and difference.where == "step 1"


def test_another_weights_digest_is_named_with_the_groups_of_its_step(log: MemoryLog) -> None:
    view = view_of(log, StepCompleted={"weights_digest": "0" * 64})
    first, second = learned(log, view)[:2]
    assert weights_divergence(first, view).recorded == "0" * 64 and weights_divergence(second, view) is None
    assert view.steps[1].group_ids[0] in weights_divergence(first, view).cause


def test_other_log_probabilities_give_other_weights_from_their_step_on(log: MemoryLog) -> None:
    items = altered(log, logprobs=b"\0" * len(scanned(log)[0].event.logprobs))
    steps = learned(log, items=items)
    assert [step.recorded == step.repeated for step in steps] == [False] * 4


def test_tokens_that_no_policy_has_are_refused_with_the_step(log: MemoryLog) -> None:
    wild = b"\xff\xff\xff\x7f" * (len(scanned(log)[0].event.token_ids) // 4)
    with pytest.raises(LogGap, match="step 1: its recorded rollouts cannot be learned"):
        learned(log, items=altered(log, token_ids=wild))


def test_a_plan_or_a_group_that_is_missing_is_named(log: MemoryLog) -> None:
    view = view_of(log)
    del view.plans[2]
    with pytest.raises(LogGap, match="BatchPlanned or StepCompleted of step 2"):
        learned(log, view)
    view = view_of(log)
    del view.groups[3, view.plans[3].task_ids[0]]
    with pytest.raises(LogGap, match=f"step 3: the group of {view.plans[3].task_ids[0]}"):
        learned(log, view)


def test_bodies_take_the_first_of_two_leave_out_other_runs_and_name_what_is_missing(log: MemoryLog) -> None:
    items, group = scanned(log), events_of(log, RolloutGroupCompleted)[0]
    other = replace(items[0], event=replace(items[0].event, reward=0.123))
    foreign = replace(items[0], event=replace(items[0].event, run_id="other", reward=0.456))
    broken = Scanned(Record("trajectories", 1, 5, 1, None, None), None, Undecodable("spoilt"))
    held = Bodies(iter([foreign, items[0], other, broken, *items[1:]]), RUN).take([group])
    assert held[items[0].event.trajectory_id] == items[0].event
    gone = group.trajectory_ids[1]
    left = [item for item in items if item.event.trajectory_id != gone]
    with pytest.raises(
        LogGap, match=rf"1 trajectories are not in the log, first {gone}; cannot be read: trajectories-1@5 \(spoilt\)"
    ):
        Bodies(iter([*left, broken]), RUN).take([group])


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"rewards": (9.0, None, None)}, "reward of rollout 0"),
        ({"rewards": ()}, "number of rewards"),
        ({"format_rewards": (9.0, None, None)}, "format reward of rollout 0"),
        ({"codes": ((9,), (), ())}, "codes of rollout 0"),
        ({"turn_verdicts": ((9,), (), ())}, "turn verdicts of rollout 0"),
        ({"num_valid": 1}, "num_valid"),
        ({"num_rollouts": 8}, "num_rollouts"),
        ({"policy_version": 5}, "policy_version"),
    ],
)
def test_what_a_group_says_must_be_what_its_trajectories_hold(log: MemoryLog, values: dict, what: str) -> None:
    group = events_of(log, RolloutGroupCompleted)[0]
    held = {item.event.trajectory_id: item.event for item in scanned(log)}
    assert group_divergence(group, held) is None
    difference = group_divergence(replace(group, **values), held)
    assert difference.what == what and group.group_id in difference.where


def rewards_of(log: MemoryLog, items: list[Scanned], view: RunView | None = None) -> object:
    heard: list[int] = []
    difference = rewards_again(view or view_of(log), Bodies(iter(items), RUN), ToyEpisode, lambda: heard.append(1))
    assert difference is not None or len(heard) == 8
    return difference


def test_playing_again_gives_every_reward(log: MemoryLog) -> None:
    assert rewards_of(log, scanned(log)) is None


def test_an_altered_trajectory_is_named_by_what_was_altered(log: MemoryLog) -> None:
    first = sorted(
        (b for b in events_of(log, TrajectoryRecorded) if b.step == 1), key=lambda b: (b.task_id, b.rollout_index)
    )[0]
    items = [item for item in scanned(log) if item.event != first]
    for values, what in (({"step": 77}, "event_id of TrajectoryRecorded"), ({"reward": 0.875}, "reward of rollout 0")):
        difference = rewards_of(log, [*items, Scanned(items[0].record, replace(first, **values))])
        assert difference.what == what and first.trajectory_id in difference.where + difference.cause


def test_a_task_that_is_missing_is_named(log: MemoryLog) -> None:
    view = view_of(log)
    del view.tasks["base_1"]
    with pytest.raises(LogGap, match="the task base_1 of step 1 is not in the log"):
        rewards_of(log, scanned(log), view)


def test_the_initial_policy_is_the_first_checkpoint_else_the_configured_model(tmp_path: Path) -> None:
    from_model = initial_engine(None, TrainerConfig(), model=str(ASSET))
    assert from_model.initial_digest == weights_digest(from_model.policy.model) == from_model.engine.digest()
    with pytest.raises(NoWeights, match="step-000000 is missing or incomplete"):
        initial_policy(tmp_path)
    with pytest.raises(NoWeights, match="no folder of checkpoints"):
        initial_policy(None, "not/a/folder")
    with pytest.raises(LogGap, match="step-000003 is missing"):
        initial_engine(tmp_path, TrainerConfig(), 3, str(ASSET))


def test_a_run_of_another_engine_is_learned_again_with_that_engine() -> None:
    pytest.importorskip("deepspeed")
    opened = initial_engine(None, TrainerConfig(engine="deepspeed", zero_stage=1), model=str(ASSET))
    try:
        assert type(opened.engine).__name__ == "DeepSpeedEngine"
    finally:
        opened.engine.close()


def test_the_largest_difference_leaves_the_model_as_it_is(log: MemoryLog, tmp_path: Path) -> None:
    setup = setup_of(new_log(), tmp_path)
    train(setup)
    model, before = setup.engine.model, setup.engine.digest()
    assert largest_difference(model, tmp_path, 4) == 0.0
    assert largest_difference(model, tmp_path, 3) > 0.0 and setup.engine.digest() == before
    assert largest_difference(model, tmp_path, 1) is None and largest_difference(model, None, 4) is None


def test_a_fork_of_a_run_without_checkpoints_is_refused_by_the_folder_and_the_step(tmp_path):
    with pytest.raises(NoWeights, match=r"run/checkpoints holds no complete checkpoint of step 3 or before"):
        make_checkpoint(tmp_path / "run" / "checkpoints", tmp_path / "fork", 3, TrainerConfig(), [], None)
