"""Metrics beside the log."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from schemas.events import EvaluationCompleted, StepCompleted
from streams.log.port import MemoryLog
from tests.trainer.test_curriculum import evaluation_of, step_of
from tests.trainer.test_loop import events_of, new_log, setup_of
from trainer.loop import train
from trainer.trackers import TrackedLog, opened, scalars


class Shown:
    def __init__(self, fails_at=-1):
        self.seen, self.fails_at = [], fails_at

    def show(self, step, values):
        if step == self.fails_at:
            raise OSError("disk full")
        self.seen.append((step, values))

    def close(self):
        self.seen.append("closed")


def test_a_run_shows_every_step_and_evaluation_once_and_is_not_changed_by_it(tmp_path):
    shown, log = Shown(), new_log()
    setup = setup_of(log, tmp_path / "a")
    train(replace(setup, log=TrackedLog(log, [shown])))
    steps = [step for step, values in shown.seen if "train/loss" in values]
    assert steps == [1, 2, 3, 4]
    assert [step for step, values in shown.seen if any(name.startswith("eval/") for name in values)] == [0, 2, 4]
    first = events_of(log, StepCompleted)[0]
    assert shown.seen[1][1]["train/reward_mean"] == first.metrics["reward_mean"]
    plain = new_log()
    train(setup_of(plain, tmp_path / "b"))
    assert [e.weights_digest for e in events_of(plain, StepCompleted)] == [
        e.weights_digest for e in events_of(log, StepCompleted)
    ]


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(caplog):
    failing, working = Shown(fails_at=2), Shown()
    log = TrackedLog(MemoryLog({"steps": 1, "runs": 1}, clock=lambda: 1), [failing, working])
    for step in (1, 2, 3):
        log.append([step_of(step)])
    log.close()
    assert [step for step, _ in failing.seen] == [1] and "disk full" in caplog.text
    assert [each[0] for each in working.seen[:-1]] == [1, 2, 3] and working.seen[-1] == "closed"


def test_only_steps_and_evaluations_are_shown():
    assert scalars(step_of(3))[0] == 3 and scalars(evaluation_of(4, 0.5))[1]["eval/heldout/reward"] == 0.5
    assert scalars(SimpleNamespace(step=1)) is None
    assert isinstance(step_of(3), StepCompleted) and isinstance(evaluation_of(1, 0.1), EvaluationCompleted)


def test_tensorboard_files_hold_the_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = opened(("tensorboard",), tmp_path, "run", {})
    tracker.show(1, {"train/loss": 0.5})
    tracker.show(2, {"train/loss": 0.25})
    tracker.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0})
    read.Reload()
    found = [(e.step, float(e.tensor_proto.float_val[0])) for e in read.Tensors("train/loss")]
    assert found == [(1, 0.5), (2, 0.25)]


def test_what_is_not_installed_is_named_and_left_out(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert opened(("wandb",), tmp_path, "run", {}) == []
    assert "no wandb" in caplog.text


class WandbError(Exception):
    """As in wandb, no kind of RuntimeError."""


def fake_wandb(monkeypatch, run, init=None):
    module = SimpleNamespace(errors=SimpleNamespace(Error=WandbError), init=init or (lambda **kwargs: run))
    monkeypatch.setitem(sys.modules, "wandb", module)


def test_weights_and_biases_gets_the_run_and_its_values(tmp_path, monkeypatch):
    told = []
    run = SimpleNamespace(log=lambda values, step: told.append((step, values)), finish=lambda: told.append("end"))
    fake_wandb(monkeypatch, run, lambda **kwargs: told.append(kwargs["id"]) or run)
    (tracker,) = opened(("wandb",), tmp_path, "run-7", {"a": 1})
    tracker.show(3, {"x": 1.0})
    tracker.close()
    assert told == ["run-7", (3, {"x": 1.0}), "end"]


def breaks(*args, **kwargs):
    raise WandbError("api key not configured")


def test_an_error_of_wandb_at_any_point_leaves_it_out_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    fake_wandb(monkeypatch, None, breaks)
    assert opened(("wandb",), tmp_path, "run-7", {}) == []
    assert "no wandb: WandbError: api key not configured" in caplog.text
    fake_wandb(monkeypatch, SimpleNamespace(log=breaks, finish=lambda: None))
    log = TrackedLog(MemoryLog({"steps": 1, "runs": 1}, clock=lambda: 1), opened(("wandb",), tmp_path, "run-7", {}))
    log.append([step_of(1)])
    assert "WeightsAndBiases is left out from step 1 on: WandbError" in caplog.text
    fake_wandb(monkeypatch, SimpleNamespace(log=lambda values, step: None, finish=breaks))
    TrackedLog(MemoryLog({"steps": 1, "runs": 1}, clock=lambda: 1), opened(("wandb",), tmp_path, "run-7", {})).close()
    assert "WeightsAndBiases did not close: WandbError" in caplog.text
