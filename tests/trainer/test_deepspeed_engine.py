"""DeepSpeed at every ZeRO stage, in one process and in two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.sequences import batch_of, settings, some_sequences
from tests.trainer.toys import toy_model
from trainer.update.engines import engine_of, is_follower
from trainer.update.ranks import shares
from trainer.update.torch_engine import TorchEngine

pytest.importorskip("deepspeed")
STAGES = (0, 1, 2, 3)
COMMON = {"num_minibatches": 2, "token_budget": 60, "warmup_steps": 4}
PAIRED = (
    {"zero_stage": 0},
    {"zero_stage": 1, "recompute_old_logprobs": True, "importance_cap": 2.0},
    {"zero_stage": 2, "lora_rank": 4},
    {"zero_stage": 3, "kl_coef": 0.1, "entropy_coef": 0.01, "gradient_checkpointing": True, "packing": True},
)


def learned(num_updates=2, **values):
    engine = engine_of(toy_model(), settings(**COMMON, **values), toy_model(3) if values.get("kl_coef") else None)
    metrics = [engine.update(batch_of(some_sequences(toy_model(), seed), seed + 1)) for seed in range(num_updates)]
    return engine, metrics


def assert_agree(weights, metrics, expected, expected_metrics):
    for name, value in expected.model.state_dict().items():
        torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=1e-4, msg=name)
    for own, theirs in zip(metrics, expected_metrics, strict=True):
        assert own == pytest.approx(theirs, abs=1e-4, rel=1e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_agrees_with_plain_torch_and_with_itself(stage):
    engine, metrics = learned(engine="deepspeed", zero_stage=stage)
    assert_agree(engine.model.state_dict(), metrics, *learned())
    again, _ = learned(engine="deepspeed", zero_stage=stage)
    assert again.digest() == engine.digest()


def test_an_optimizer_in_main_memory_gives_the_same_weights():
    engine, metrics = learned(engine="deepspeed", zero_stage=2, offload_optimizer=True)
    assert_agree(engine.model.state_dict(), metrics, *learned())


def test_stage_zero_in_one_process_is_plain_torch_bit_for_bit():
    assert learned(engine="deepspeed", zero_stage=0)[0].digest() == learned()[0].digest()


@pytest.mark.parametrize("stage", STAGES)
def test_a_gradient_that_is_not_finite_is_not_applied_and_the_next_one_is(stage):
    engine, _ = learned(1, engine="deepspeed", zero_stage=stage)
    before = engine.digest()
    metrics = engine.update(batch_of(some_sequences(toy_model(), advantages=(float("inf"), 1.0))))
    assert engine.digest() == before and metrics["num_skipped_updates"] == 2
    assert engine.update(batch_of(some_sequences(toy_model(), advantages=(0.0, 0.0))))["num_optimizer_steps"] == 0
    assert engine.digest() == before
    assert engine.update(batch_of(some_sequences(toy_model())))["num_optimizer_steps"] == 2
    assert engine.digest() != before and all(torch.isfinite(p).all() for p in engine.model.parameters())


@pytest.fixture(scope="module")
def paired(tmp_path_factory):
    """What two processes learned, for each of PAIRED."""
    folder = tmp_path_factory.mktemp("paired")
    root = Path(__file__).parents[2]
    told = [json.dumps({**COMMON, **values}) for values in PAIRED]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--standalone",
            "--local-addr",
            "127.0.0.1",
            str(root / "tests" / "trainer" / "deepspeed_member.py"),
            str(folder),
            *told,
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("number", range(len(PAIRED)))
def test_two_processes_agree_with_plain_torch(paired, number):
    found = torch.load(paired / f"{number}.pt", weights_only=True)
    values = {name: value for name, value in PAIRED[number].items() if name != "zero_stage"}
    assert_agree(found["weights"], found["metrics"], *learned(len(found["metrics"]), **values))
    assert len(found["state"]["shards"]) == 2


@pytest.mark.parametrize("number", range(len(PAIRED)))
def test_two_processes_go_on_from_a_saved_state_bit_for_bit(paired, number):
    whole, resumed = json.loads((paired / f"{number}.json").read_text())
    assert whole == resumed


@pytest.mark.parametrize("number", range(len(PAIRED)))
def test_only_the_first_process_holds_the_optimizer_state_of_all(paired, number):
    (kept, shards), (told, names) = json.loads((paired / f"{number}.follower.json").read_text())
    assert (kept, shards, told) == ("kept", None, "told") and "num_updates" in names and "shards" not in names


def test_one_process_goes_on_from_a_saved_state_bit_for_bit(tmp_path):
    engine, _ = learned(engine="deepspeed", zero_stage=3)
    torch.save(engine.state_dict(), tmp_path / "state.pt")
    weights = {name: value.clone() for name, value in engine.model.state_dict().items()}
    batch = batch_of(some_sequences(toy_model(), 9), 9)
    engine.update(batch)
    second = engine_of(toy_model(5), settings(**COMMON, engine="deepspeed", zero_stage=3))
    second.model.load_state_dict(weights)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second.update(batch)
    assert second.digest() == engine.digest()


def test_a_state_of_another_stage_or_engine_is_refused_with_both_named():
    engine, _ = learned(1, engine="deepspeed", zero_stage=1)
    other, _ = learned(1, engine="deepspeed", zero_stage=2)
    with pytest.raises(ValueError, match=r"\(1, 1\).*\(2, 1\)"):
        other.load_state_dict(engine.state_dict())
    with pytest.raises(ValueError, match="None, 0"):
        other.load_state_dict(TorchEngine(toy_model(), settings()).state_dict())


def test_only_the_first_process_runs_the_loop(monkeypatch):
    config = settings(engine="deepspeed")
    assert not is_follower(config)
    monkeypatch.setenv("RANK", "1")
    assert is_follower(config) and not is_follower(settings())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shares_hold_every_pass_once_and_are_equally_long(size):
    passes = list("abcdefg")
    parts = [shares(passes, rank, size) for rank in range(size)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(each for part in parts for each, is_mine in part if is_mine) == passes
    assert shares([], 0, size) == []
