"""Checkpoints: whole or not there, wherever the writing was cut."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.trainer.toys import toy_model
from trainer.weights import checkpoint as module
from trainer.weights.checkpoint import (
    BrokenCheckpoint,
    best_step,
    complete_checkpoints,
    latest_complete,
    load_announcement,
    load_training_state,
    load_weights,
    write_checkpoint,
)
from trainer.weights.digest import weights_digest


class PowerCut(BaseException):
    """The machine stops here."""


def write(root, step, keep_last=3, seed=None, keep_step=None):
    state = {"engine": {"step": step, "moments": torch.full((3,), float(step))}}
    model = toy_model(step if seed is None else seed)
    return write_checkpoint(root, step, model, None, state, b"event %d" % step, keep_last, keep_step)


def test_a_checkpoint_gives_back_weights_state_and_announcement(tmp_path):
    write(tmp_path, 4)
    found = latest_complete(tmp_path)
    assert (found.step, found.name) == (4, "step-000004")
    model = toy_model(0)
    load_weights(found, model)
    assert weights_digest(model) == weights_digest(toy_model(4))
    assert load_training_state(found)["engine"]["moments"].tolist() == [4, 4, 4]
    assert load_announcement(found) == b"event 4"


def cut_at(monkeypatch, num_calls):
    """Let the writer do ``num_calls`` file operations and stop the machine at the next one."""
    left = [num_calls]

    def counted(operation):
        def run(*args, **kwargs):
            if left[0] == 0:
                raise PowerCut
            left[0] -= 1
            return operation(*args, **kwargs)

        return run

    for owner, name in (
        (os, "fsync"),
        (os, "rename"),
        (shutil, "rmtree"),
        (torch, "save"),
        (Path, "write_text"),
        (Path, "write_bytes"),
        (Path, "mkdir"),
        (Path, "unlink"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


def test_wherever_the_writing_is_cut_the_newest_whole_checkpoint_is_chosen(tmp_path, monkeypatch):
    root, num_calls, was_old = tmp_path / "checkpoints", 0, []
    while True:
        shutil.rmtree(root, ignore_errors=True)
        write(root, 1)
        with monkeypatch.context() as patch:
            cut_at(patch, num_calls)
            try:
                write(root, 2)
                break
            except PowerCut:
                pass
        found = latest_complete(root)
        model = toy_model(0)
        load_weights(found, model)
        assert weights_digest(model) == weights_digest(toy_model(found.step))
        assert load_announcement(found) == b"event %d" % found.step
        was_old.append(found.step == 1)
        assert write(root, 2).step == latest_complete(root).step == 2
        num_calls += 1
    assert num_calls > 10
    assert was_old == sorted(was_old, reverse=True) and was_old[0]


def test_a_cut_while_a_step_is_written_again_leaves_an_older_one(tmp_path, monkeypatch):
    write(tmp_path, 1)
    write(tmp_path, 2)
    cut_at(monkeypatch, 5)
    with pytest.raises(PowerCut):
        write(tmp_path, 2)
    assert latest_complete(tmp_path).step == 1


@pytest.mark.parametrize("damage", ["no marker", "short file", "no file", "marker is not JSON", "marker is a list"])
def test_a_damaged_checkpoint_is_never_chosen(tmp_path, damage):
    write(tmp_path, 1)
    path = write(tmp_path, 2).path
    weights, marker = path / "model.safetensors", path / module.MARKER
    if damage == "no marker":
        marker.unlink()
    elif damage == "short file":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "no file":
        weights.unlink()
    else:
        marker.write_text("{" if damage == "marker is not JSON" else "[]")
    assert latest_complete(tmp_path).step == 1


def test_only_the_newest_are_kept_and_always_the_one_a_run_started_from(tmp_path):
    for step in (0, 3, 6, 9, 12):
        write(tmp_path, step, keep_last=2, seed=0)
    assert [found.step for found in complete_checkpoints(tmp_path)] == [0, 9, 12]


def test_the_best_is_kept_as_long_as_it_is_the_best(tmp_path):
    rewards = {0: 0.9, 3: 0.4, 6: 0.2, 9: 0.3, 12: 0.7}
    for step in rewards:
        heard = {earlier: reward for earlier, reward in rewards.items() if earlier < step}
        write(tmp_path, step, keep_last=2, seed=0, keep_step=best_step(heard))
    assert [found.step for found in complete_checkpoints(tmp_path)] == [0, 3, 9, 12]
    write(tmp_path, 15, keep_last=2, seed=0, keep_step=best_step(rewards))
    assert [found.step for found in complete_checkpoints(tmp_path)] == [0, 12, 15]
    assert best_step({0: 1.0}) is None and best_step({5: float("nan"), 6: 0.1, 7: 0.1}) == 6


def test_weights_and_tokenizer_are_what_transformers_reads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.policy.loading import PolicyConfig, build_policy

    model, tokenizer = build_policy(PolicyConfig(vocab_size=300, hidden_size=16, num_layers=1), ["some words"])
    path = write_checkpoint(tmp_path, 1, model, tokenizer, {}, b"", 1).path
    assert weights_digest(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)) == weights_digest(model)
    assert AutoTokenizer.from_pretrained(path).encode("some words") == tokenizer.encode("some words")


def test_steps_are_compared_as_numbers(tmp_path):
    write(tmp_path, 999_999, seed=0)
    write(tmp_path, 1_000_000, seed=0)
    assert latest_complete(tmp_path).step == 1_000_000


def test_strange_files_beside_the_checkpoints_are_passed_over(tmp_path):
    assert latest_complete(tmp_path / "nowhere") is None
    (tmp_path / "step-000007").mkdir()
    (tmp_path / "step-x").mkdir()
    (tmp_path / "step-000008").write_text("a file")
    assert latest_complete(tmp_path) is None


def test_weights_of_another_model_are_refused_with_the_path(tmp_path):
    found = write(tmp_path, 1)
    with pytest.raises(BrokenCheckpoint, match="step-000001"):
        load_weights(found, toy_model(hidden_size=16))


def test_loading_the_state_runs_no_code(tmp_path):
    found = write(tmp_path, 1)
    torch.save({"engine": Path("x")}, found.path / module.STATE)
    with pytest.raises(Exception, match="[Ww]eights"):
        load_training_state(found)
