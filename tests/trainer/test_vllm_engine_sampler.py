"""vLLM in process: against an engine in memory here, and for real in vLLM's own virtual environment."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest

from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.test_vllm_server import policy_folder as policy_folder
from tests.trainer.test_vllm_server_sampler import PARAMS, requests_of
from tests.trainer.toys import ToyTemplate, toy_model
from tests.trainer.vllm_server import ENVIRONMENT, MISSING, PYTHON, ROOT
from trainer.live_episode import NotWhatWasAsked
from trainer.vllm_engine_sampler import VllmEngineSampler
from trainer.weight_sync import WeightSyncFailed


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
        body = {"prompt": prompt, "seed": asked.seed, "max_tokens": asked.max_tokens, "temperature": asked.temperature,
                "stop_token_ids": asked.stop_token_ids}
        choice = self._server.do_v1_completions(body)["choices"][0]
        logprobs = [{id_: SimpleNamespace(logprob=value)}
                    for id_, value in zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)]
        completion = SimpleNamespace(token_ids=choice["token_ids"], logprobs=logprobs)
        return SimpleNamespace(finished=True, request_id=name, prompt_token_ids=prompt, outputs=[completion])

    def collective_rpc(self, method, kwargs):
        self._server.is_paused = True
        self._server.do_collective_rpc({"method": method, "kwargs": kwargs})
        self._server.is_paused = False

    def reset_prefix_cache(self):
        return not self.is_cache_kept

    def generate(self, prompts, asked, use_tqdm):
        return [self.answer("probe", prompts[0]["prompt_token_ids"], asked)]


class Sampler(VllmEngineSampler):
    """The sampler with plain objects for vLLM's parameters, which is not installed here."""

    def _asked(self, episode, params):
        return SimpleNamespace(seed=episode.seed, max_tokens=episode.room, temperature=params.temperature,
                               stop_token_ids=sorted(self._template.stop_ids))

    def _probed(self):
        return SimpleNamespace(seed=0, max_tokens=8, temperature=1.0, stop_token_ids=[])


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


def test_an_engine_of_other_logprobs_is_refused(tmp_path):
    with pytest.raises(NotWhatWasAsked, match="vLLM in process: .*gives no log-probabilities"):
        Sampler(Engine("raw_logits"), ToyTemplate(), tmp_path).rollout(requests_of(1), PARAMS)


@pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)
@pytest.mark.skipif(
    not any((PYTHON.parent.parent / "lib").glob("python*/site-packages/fastavro")),
    reason="the virtual environment of vLLM has no fastavro: build it again with make vllm")
@pytest.mark.timeout(900)
def test_the_real_engine_samples_from_the_weights_it_was_given_last(policy_folder, tmp_path):
    command = [str(PYTHON), "-m", "tests.trainer.engine_probe", str(policy_folder), str(tmp_path / "scratch")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800,
                          env={**os.environ, **ENVIRONMENT})
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    found = json.loads(lines[0].removeprefix("RESULT "))
    assert max(gap for pair in found["gaps"] for gap in pair) < 1e-4 < 100 * 1e-4 < min(found["cross"])
    assert found["versions"] == [[0], [1], [2]] and found["num_ended"] == 36 and found["all_done"]
    assert found["transfer"] == ["nccl", True, True, 24, True]
