"""The vLLM sampler in this process: vLLM's engine is stepped here, every live episode has one request in it.

An episode whose message has ended gets its next request at once, while the others go on. The engine's answer names the
prompt it continued, which must be the tokens of the episode.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from trainer.live_episode import LiveEpisode, NotWhatWasAsked, logprobs_misfit
from trainer.sampler import OnProgress, OnRollout, Rollout, RolloutRequest, SamplingParams
from trainer.serving_copy import write_serving_copy
from trainer.template import Template
from trainer.weight_sync import Synced, WeightSyncFailed, own_logprobs, probe_ids


class VllmEngineSampler:
    """Samples with a ``vllm.LLM`` of this process.

    Args:
        llm: the engine.
        template: the prompt format.
        folder: where weights are laid for the engine to load; in memory, for this engine alone.
        tolerance: largest difference of log-probabilities on the probe, nats.

    Attributes:
        version: policy version of the engine's weights; ``None`` before the first update.
    """

    def __init__(self, llm: object, template: Template, folder: Path, tolerance: float = 1e-3) -> None:
        self._llm, self._template, self._folder, self._tolerance = llm, template, folder, tolerance
        self._config = llm.llm_engine.vllm_config.model_config
        self.version: int | None = None

    def rollout(
        self, requests: Sequence[RolloutRequest], params: SamplingParams, on_progress: OnProgress | None = None,
        on_rollout: OnRollout | None = None,
    ) -> list[Rollout]:
        """Play every request to its end; results in the order of the requests.

        Raises:
            NotWhatWasAsked: the engine samples something else than it was asked for.
        """
        misfit = logprobs_misfit(str(self._config.logprobs_mode), params)
        if misfit:
            raise NotWhatWasAsked(f"vLLM in process: {misfit}")
        episodes = [LiveEpisode(request, self._template, params, self._config.max_model_len) for request in requests]
        live: dict[str, LiveEpisode] = {}
        num_finished = 0

        def go_on(number: int, episode: LiveEpisode) -> None:
            nonlocal num_finished
            if not episode.is_over:
                name = f"{number}-{episode.num_messages}"
                live[name] = episode
                self._llm.llm_engine.add_request(name, {"prompt_token_ids": list(episode.ids)}, self._asked(episode, params))
                return
            num_finished += 1
            if on_rollout is not None:
                on_rollout(episode.rollout())
            if on_progress is not None:
                on_progress(num_finished, len(episodes))

        for number, episode in enumerate(episodes):
            go_on(number, episode)
        while live:
            for output in self._llm.llm_engine.step():
                if output.finished:
                    episode = live.pop(output.request_id)
                    episode.accept(*message_of(output), self.version)
                    go_on(int(output.request_id.partition("-")[0]), episode)
        return [episode.rollout() for episode in episodes]

    def _asked(self, episode: LiveEpisode, params: SamplingParams) -> object:
        from vllm import SamplingParams as VllmParams

        return VllmParams(
            max_tokens=episode.room, seed=episode.seed, temperature=0.0 if params.greedy else params.temperature,
            top_p=1.0 if params.greedy else params.top_p, top_k=-1, min_p=0.0, repetition_penalty=1.0, ignore_eos=True,
            stop_token_ids=sorted(self._template.stop_ids), logprobs=0, detokenize=False,
        )

    def load(self, folder: Path, version: int) -> None:
        """Load weights from a transformers folder and forget what was cached under the old ones.

        Raises:
            WeightSyncFailed: they are not there, or only half; the version counts as before.
        """
        try:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        except (RuntimeError, ValueError, OSError) as error:
            raise WeightSyncFailed(f"version {version}: vLLM in process did not load {folder}: {error}") from error
        if not self._llm.reset_prefix_cache():
            raise WeightSyncFailed(f"version {version}: vLLM in process kept its prefix cache")
        self.version = version

    def sync(self, model: PreTrainedModel, version: int, digest: str) -> Synced:
        """See :class:`trainer.weight_sync.WeightSync`."""
        before = self.version
        try:
            write_serving_copy(model, self._folder)
            self.load(self._folder, version)
            gap = self._probe_gap(model)
        except OSError as error:
            raise WeightSyncFailed(f"version {version}: cannot be laid in {self._folder}: {error}") from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        if not gap <= self._tolerance:
            self.version = before
            raise WeightSyncFailed(f"version {version}: vLLM in process is up to {gap:.3g} nats from the trainer, "
                                   f"{self._tolerance:g} are allowed")
        return Synced("in process", "vllm-files", gap)

    def _probe_gap(self, model: PreTrainedModel) -> float:
        prompt = probe_ids(model.config.vocab_size)
        output = self._llm.generate([{"prompt_token_ids": prompt}], self._probed(), use_tqdm=False)[0]
        _, ids, logprobs = message_of(output)
        own = own_logprobs(model, prompt, ids, 1.0)
        return float(max(abs(mine - theirs) for mine, theirs in zip(own, logprobs, strict=True)))

    def _probed(self) -> object:
        from vllm import SamplingParams as VllmParams

        return VllmParams(max_tokens=8, temperature=1.0, seed=0, ignore_eos=True, logprobs=0, detokenize=False)


def message_of(output: object) -> tuple[list[int], list[int], list[float]]:
    """Prompt ids, message ids and log-probabilities of a finished request."""
    completion = output.outputs[0]
    ids = list(completion.token_ids)
    logprobs = [position[id_].logprob for id_, position in zip(ids, completion.logprobs, strict=True)]
    return list(output.prompt_token_ids), ids, logprobs


def vllm_engine(path: Path, arguments: dict[str, object]) -> object:
    """A ``vllm.LLM`` over a folder of :mod:`trainer.serving_copy`, in float32 unless told otherwise.

    Raises:
        ImportError: vLLM is not installed here.
    """
    from vllm import LLM

    return LLM(model=str(path), generation_config="vllm", **{"dtype": "float32", **arguments})
