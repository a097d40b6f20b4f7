"""vLLM in process: against an engine in memory here, and for real in vLLM's own virtual environment."""

import json
import os
import shutil
import subprocess
import threading
from types import SimpleNamespace

import pytest
import torch

from schemas import make
from schemas.events import WeightsSynced
from tests.trainer.engine_probe import gap_of
from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.test_vllm_server import policy_folder as policy_folder
from tests.trainer.test_vllm_server_sampler import PARAMS, requests_of
from tests.trainer.toys import ToyTemplate, toy_model
from tests.trainer.vllm_server import ENVIRONMENT, MISSING, PYTHON, ROOT
from trainer.rollouts.held_weights import EngineWeights
from trainer.rollouts.live_episode import NotWhatWasAsked
from trainer.rollouts.vllm_engine_sampler import VllmEngineSampler
from trainer.weights.digest import weights_digest
from trainer.weights.sync import FolderSync, WeightSyncFailed, version_folder


class Engine:
    """``vllm.LLM`` as far as the sampler knows it: one token for every request at each step."""

    def __init__(self, mode="raw_logprobs"):
        self._server, self._live = FakeVllm(mode), {}
        self.num_steps, self.most_live, self.is_cache_kept = 0, 0, False
        config = SimpleNamespace(model_config=SimpleNamespace(logprobs_mode=mode, max_model_len=256))
        self.llm_engine = SimpleNamespace(vllm_config=config, add_request=self.add, step=self.step)

    def add(self, name, prompt, asked):
        self._live[name] = (prompt["prompt_token_ids"], asked)

    def step(self):
        self.num_steps, self.most_live = self.num_steps + 1, max(self.most_live, len(self._live))
        done = [name for number, name in enumerate(self._live) if number % 2 == self.num_steps % 2]
        return [self.answer(name, *self._live.pop(name)) for name in done]

    def answer(self, name, prompt, asked):
        body = {
            "prompt": prompt,
            "seed": asked.seed,
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "stop_token_ids": asked.stop_token_ids,
        }
        choice = self._server.do_v1_completions(body)["choices"][0]
        logprobs = [
            {id_: SimpleNamespace(logprob=value)}
            for id_, value in zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)
        ]
        completion = SimpleNamespace(
            token_ids=choice["token_ids"], logprobs=logprobs, finish_reason=choice["finish_reason"]
        )
        return SimpleNamespace(finished=True, request_id=name, prompt_token_ids=prompt, outputs=[completion])

    def collective_rpc(self, method, kwargs):
        self._server.is_paused = True
        self._server.do_collective_rpc({"method": method, "kwargs": kwargs})
        self._server.is_paused = False

    def reset_prefix_cache(self):
        return not self.is_cache_kept

    def generate(self, prompts, asked, use_tqdm):
        ids = prompts[0]["prompt_token_ids"]
        answer = self.answer("probe", ids, asked)
        with torch.no_grad():
            all_TV = self._server.model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        answer.prompt_logprobs = [
            None,
            *({id_: SimpleNamespace(logprob=float(all_TV[at, id_]))} for at, id_ in enumerate(ids[1:])),
        ]
        return [answer]


class Sampler(VllmEngineSampler):
    """The sampler with plain objects for vLLM's parameters, which is not installed here."""

    def _asked(self, episode, params):
        return SimpleNamespace(
            seed=episode.seed,
            max_tokens=episode.room,
            temperature=params.temperature,
            stop_token_ids=sorted(self._template.stop_ids),
        )

    def _probed(self, num_tokens, **asked):
        return SimpleNamespace(seed=0, max_tokens=num_tokens, temperature=1.0, stop_token_ids=[], **asked)


def test_every_live_episode_is_in_the_engine_at_once_and_goes_on_as_soon_as_its_message_has_ended(tmp_path):
    engine, ended = Engine(), []
    sampler = Sampler(engine, ToyTemplate(), tmp_path / "w")
    rollouts = sampler.rollout(requests_of(), PARAMS, None, ended.append)
    assert engine.most_live == len(rollouts) == len(ended) == 6
    assert all(r.episode.done and not r.error for r in rollouts)
    assert [(r.task_id, r.rollout_index) for r in rollouts] == [(f"base_{n}", k) for n in range(3) for k in range(2)]


def test_an_update_is_proven_and_its_version_recorded(tmp_path):
    sampler = Sampler(Engine(), ToyTemplate(), tmp_path / "w")
    assert sampler.sync(toy_model(seed=9), 4, "").probe_gap < 1e-4
    rollouts = sampler.rollout(requests_of(1), PARAMS)
    assert {version for r in rollouts for _, version in r.version_spans} == {4} and not (tmp_path / "w").exists()


def test_an_update_that_does_not_arrive_leaves_the_version_as_it_was(tmp_path):
    engine = Engine()
    sampler = Sampler(engine, ToyTemplate(), tmp_path / "w")
    sampler.sync(toy_model(seed=9), 4, "")
    engine.is_cache_kept = True
    with pytest.raises(WeightSyncFailed, match="version 5: .*prefix cache"):
        sampler.sync(toy_model(seed=8), 5, "")
    engine.is_cache_kept, engine.collective_rpc = False, lambda method, kwargs: None
    with pytest.raises(WeightSyncFailed, match="version 5: .*nats from the trainer"):
        sampler.sync(toy_model(seed=7), 5, "")
    assert sampler.version == 4


def announced(folder, version, model):
    """A version as the trainer lays and announces it for workers."""
    FolderSync(folder, None, 8).sync(model, version, weights_digest(model))
    return make(
        WeightsSynced,
        "run-1",
        policy_version=version,
        target=str(folder),
        transport="folder",
        weights_digest=weights_digest(model),
        probe_gap=None,
        caused_by="",
    )


def test_a_worker_with_vllm_in_process_goes_over_to_each_announced_version_and_compares_its_probe(tmp_path):
    sampler = Sampler(Engine(), ToyTemplate(), tmp_path / "w")
    sampler.prove_way(toy_model())
    held = EngineWeights(sampler)
    assert held.follow([]) is None and not (tmp_path / "w").exists()
    for version in (0, 1):
        model = toy_model(seed=20 + version)
        assert held.follow([announced(tmp_path / "v", version, model)]) == version
        rollouts = sampler.rollout(requests_of(1), PARAMS)
        assert {v for r in rollouts for _, v in r.version_spans} == {version} and gap_of(model, rollouts) < 1e-4
    gone = announced(tmp_path / "v", 2, toy_model(seed=22))
    shutil.rmtree(version_folder(tmp_path / "v", 2))
    assert held.follow([gone]) == 1


def test_a_version_folder_with_weights_of_another_version_is_refused_by_its_probe(tmp_path):
    sampler = Sampler(Engine(), ToyTemplate(), tmp_path / "w")
    first, second = announced(tmp_path / "v", 1, toy_model(seed=21)), announced(tmp_path / "v", 2, toy_model(seed=22))
    assert EngineWeights(sampler).follow([first]) == 1
    path = version_folder(tmp_path / "v", 2)
    (path / "probe.json").write_text((version_folder(tmp_path / "v", 1) / "probe.json").read_text())
    with pytest.raises(WeightSyncFailed, match="version 2: vLLM in process is up to .* nats from the trainer"):
        EngineWeights(sampler).follow([second])
    assert sampler.version == 1


def test_an_engine_that_keeps_its_weights_is_found_out_before_anything_is_sampled(tmp_path):
    engine = Engine()
    engine.collective_rpc = lambda method, kwargs: None
    with pytest.raises(WeightSyncFailed, match="said it took marked weights and does not sample with them"):
        Sampler(engine, ToyTemplate(), tmp_path / "w", tolerance=0.5).prove_way(toy_model())


def test_an_engine_that_hangs_while_it_loads_is_given_up_at_the_deadline(tmp_path):
    engine, release = Engine(), threading.Event()
    engine.collective_rpc = lambda method, kwargs: release.wait(30)
    with pytest.raises(WeightSyncFailed, match="version 3: vLLM in process: not done within 0.2 s"):
        Sampler(engine, ToyTemplate(), tmp_path / "w", deadline_s=0.2).sync(toy_model(), 3, "")
    event = announced(tmp_path / "v", 1, toy_model())
    with pytest.raises(WeightSyncFailed, match="version 1: vLLM in process: not done within 0.2 s"):
        EngineWeights(Sampler(engine, ToyTemplate(), tmp_path / "w2", deadline_s=0.2)).follow([event])
    release.set()


def test_a_message_that_the_engine_breaks_off_is_an_invalid_rollout(tmp_path):
    engine = Engine()
    engine._server.change_answer = lambda choice: {**choice, "finish_reason": "abort"}
    rollouts = Sampler(engine, ToyTemplate(), tmp_path / "w").rollout(requests_of(1), PARAMS)
    assert all("broke it off" in r.error for r in rollouts) and len(rollouts) == 2


def test_an_engine_of_other_logprobs_is_refused(tmp_path):
    with pytest.raises(NotWhatWasAsked, match="vLLM in process: .*gives no log-probabilities"):
        Sampler(Engine("raw_logits"), ToyTemplate(), tmp_path).rollout(requests_of(1), PARAMS)


@pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)
@pytest.mark.skipif(
    not any((PYTHON.parent.parent / "lib").glob("python*/site-packages/fastavro")),
    reason="the virtual environment of vLLM has no fastavro: build it again with make vllm",
)
@pytest.mark.timeout(900)
def test_the_real_engine_samples_from_the_weights_it_was_given_last(policy_folder, tmp_path):
    command = [str(PYTHON), "-m", "tests.trainer.engine_probe", str(policy_folder), str(tmp_path / "scratch")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800, env={**os.environ, **ENVIRONMENT}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    found = json.loads(lines[0].removeprefix("RESULT "))
    assert max(gap for pair in found["gaps"] for gap in pair) < 1e-4 < 100 * 1e-4 < min(found["cross"])
    assert found["versions"] == [[0], [1], [2]] and found["num_ended"] == 36 and found["all_done"]
    *gaps, refused = found["followed"]
    assert found["unproven"] is None and len(gaps) == 2 and max(gaps) < 1e-4
    assert refused.startswith("version 8: vLLM in process is up to")
    assert found["transfer"] == ["nccl", True, True, 24, True]
