"""From settings to samplers."""

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands.config import ConfigError, RunConfig, validated
from commands.roles import sampling
from commands.roles.sampling import of_trainer, of_worker, served, server_of, server_syncs
from tests.trainer.test_vllm_engine_sampler import Engine
from tests.trainer.toys import ToyTemplate, toy_model
from trainer.policy.loading import load_policy
from trainer.policy.players import ASSET
from trainer.rollouts.held_weights import EngineWeights, FolderWeights, ServerWeights
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.vllm_server_sampler import VllmServerSampler
from trainer.weights.sync import FolderSync, VllmSync, WeightSyncFailed

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def policy():
    return load_policy(ASSET)


def config_of(**trainer) -> RunConfig:
    return validated({"trainer": trainer}, "test")


def test_by_default_the_trainer_samples_with_its_own_weights_and_brings_them_nowhere(policy, tmp_path):
    sampler, syncs = of_trainer(config_of(), "run", tmp_path, policy)
    assert isinstance(sampler, HFSampler) and syncs == ()


def test_with_workers_weights_are_laid_in_the_runs_folder(policy, tmp_path):
    config = config_of(rollouts="workers")
    _, syncs = of_trainer(config, "run", tmp_path, policy)
    assert [type(sync) for sync in syncs] == [FolderSync]
    synced = syncs[0].sync(policy.model, 0, "d")
    assert synced.target == str(tmp_path / "weights")
    assert isinstance(of_worker(config, "run", "rollout-0", str(ASSET), policy.template), FolderWeights)


def test_with_servers_each_gets_weights_and_each_worker_has_its_own(policy, tmp_path):
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    config = config_of(rollouts="workers", sampler="vllm_server", vllm={"urls": urls, "transport": "nccl"})
    sampler, syncs = of_trainer(config, "run", tmp_path, policy)
    assert isinstance(sampler, VllmServerSampler) and [type(sync) for sync in syncs] == [VllmSync, VllmSync]
    held = [of_worker(config, "run", f"rollout-{number}", str(ASSET), policy.template) for number in range(3)]
    assert all(isinstance(weights, ServerWeights) for weights in held)
    assert [weights.sampler.url for weights in held] == [urls[0], urls[1], urls[0]]
    own = of_worker(config, "run", "rollout-0", str(ASSET), policy.template, "http://other:3")
    assert own.sampler.url == "http://other:3"


@pytest.fixture
def engine(monkeypatch):
    """An engine in memory instead of vLLM, and a toy policy."""
    engine, toy = Engine(), SimpleNamespace(model=toy_model(seed=3), tokenizer=None, template=ToyTemplate())
    asked = lambda **values: SimpleNamespace(**{"stop_token_ids": [], **values})  # noqa: E731
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=asked))
    monkeypatch.setattr(sampling, "vllm_engine", lambda folder, arguments: engine)
    monkeypatch.setattr(sampling, "load_policy", lambda path, **options: toy)
    return engine


def test_a_worker_with_vllm_in_process_is_shown_to_take_weights_and_holds_none_yet(engine, tmp_path):
    config = config_of(rollouts="workers", sampler="vllm_engine", vllm={"weights_folder": str(tmp_path)})
    held = of_worker(config, "run", "rollout-0", "toy", ToyTemplate())
    assert isinstance(held, EngineWeights) and held.follow([]) is None and list(tmp_path.iterdir()) == []
    engine._server.model, engine.collective_rpc = toy_model(seed=3), lambda method, kwargs: None
    with pytest.raises(WeightSyncFailed, match="does not sample with them"):
        of_worker(config, "run", "rollout-0", "toy", ToyTemplate())


def test_in_a_run_every_message_of_a_server_must_have_a_version(policy):
    assert served(config_of(), policy.template, "http://a:1")._needs_version


def test_a_run_that_samples_from_servers_must_name_them(policy):
    with pytest.raises(ConfigError, match="trainer.vllm.urls is empty"):
        server_syncs(config_of(sampler="vllm_server"), "run")


@pytest.mark.parametrize(
    ("worker", "url"), [("rollout-0", "a"), ("rollout-1", "b"), ("rollout-12", "a"), ("gpu", "a"), ("7", "b")]
)
def test_a_workers_number_chooses_its_server(worker, url):
    assert server_of(("a", "b"), worker) == url


def test_the_alert_of_drift_fires_where_the_trainer_raises_its_alarm():
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    assert f'rods_logprob_gap{{stat="mean"}} > {config_of().trainer.logprob_gap_alarm:g}\n' in rules
    shipped = [
        tomllib.loads(path.read_text())
        for path in (*ROOT.glob("commands/configs/*.toml"), ROOT / "deploy" / "gpu.toml")
    ]
    assert {config.get("trainer", {}).get("logprob_gap_alarm", 0.1) for config in shipped} == {0.1}


def test_settings_of_workers_and_servers_are_refused_with_their_key():
    for wrong in (
        {"workers": {"num_local": -1}},
        {"vllm": {"transport": "carrier pigeon"}},
        {"stale_policy": "hope"},
        {"max_staleness": -1},
        {"workers": {"typo": 1}},
    ):
        with pytest.raises(ConfigError, match="trainer"):
            config_of(**wrong)


def test_the_recorded_settings_are_those_a_worker_reads_back():
    config = config_of(rollouts="workers", max_staleness=2, vllm={"urls": ["http://a:1"]})
    assert validated(json.loads(config.as_json()), "RunStarted") == config
