"""The vLLM sampler in this process: vLLM's engine is stepped here, every live episode has one request in it.

An episode whose message has ended gets its next request at once, while the others go on. The engine's answer names the
prompt it continued, which must be the tokens of the episode.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from transformers import PreTrainedModel

from trainer.policy.serving_copy import write_serving_copy
from trainer.policy.template import Template
from trainer.rollouts.live_episode import LiveEpisode, NotWhatWasAsked, logprobs_misfit
from trainer.rollouts.sampler import OnProgress, OnRollout, Rollout, RolloutRequest, SamplingParams
from trainer.rollouts.vllm_client import VllmError
from trainer.weights.proof import PROMPT_TOKENS, probe_gap, takes_weights
from trainer.weights.sync import PROBE_FILE, Synced, WeightSyncFailed
from trainer.weights.transfer import within

T = TypeVar("T")


class VllmEngineSampler:
    """Samples with a ``vllm.LLM`` of this process.

    Args:
        llm: the engine.
        template: the prompt format.
        folder: where weights are laid for the engine to load; in memory, for this engine alone.
        tolerance: largest difference of log-probabilities on the probe, nats.
        deadline_s: longest wait for weights to be loaded and proven, seconds.

    Attributes:
        version: policy version of the engine's weights; ``None`` before the first update.
    """

    def __init__(
        self, llm: object, template: Template, folder: Path, tolerance: float = 1e-3, deadline_s: float = 120.0
    ) -> None:
        self._llm, self._template, self._folder = llm, template, folder
        self._tolerance, self._deadline_s = tolerance, deadline_s
        self._config = llm.llm_engine.vllm_config.model_config
        self.version: int | None = None

    def rollout(
        self,
        requests: Sequence[RolloutRequest],
        params: SamplingParams,
        on_progress: OnProgress | None = None,
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
                self._llm.llm_engine.add_request(
                    name, {"prompt_token_ids": list(episode.ids)}, self._asked(episode, params)
                )
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
            max_tokens=episode.room,
            seed=episode.seed,
            temperature=0.0 if params.greedy else params.temperature,
            top_p=1.0 if params.greedy else params.top_p,
            top_k=-1,
            min_p=0.0,
            repetition_penalty=1.0,
            ignore_eos=True,
            stop_token_ids=sorted(self._template.stop_ids),
            logprobs=0,
            detokenize=False,
        )

    def prove_way(self, model: PreTrainedModel) -> None:
        """Send marked weights and see that the engine samples with them; it holds no version afterwards.

        Raises:
            WeightSyncFailed: it does not.
        """
        self.version = None
        is_taken = self._proven(
            lambda: takes_weights(lambda: self._lay_and_read(model), self._ask, model), "marked weights"
        )
        if not is_taken:
            raise WeightSyncFailed("vLLM in process said it took marked weights and does not sample with them")

    def load(self, folder: Path, version: int) -> None:
        """Load weights from a version folder, forget what was cached under the old ones, and compare with its probe.

        Raises:
            WeightSyncFailed: they are not there, only half, or not those of the folder; the version counts as before.
        """
        self._check(version, self._proven(lambda: self._read_folder(folder), f"version {version}"))
        self.version = version

    def sync(self, model: PreTrainedModel, version: int, digest: str) -> Synced:
        """See :class:`trainer.weights.sync.WeightSync`."""

        def work() -> float:
            self._lay_and_read(model)
            return probe_gap(self._ask, model)

        gap = self._proven(work, f"version {version}")
        self._check(version, gap)
        self.version = version
        return Synced("in process", "vllm-files", gap)

    def _check(self, version: int, gap: float) -> None:
        if not gap <= self._tolerance:
            raise WeightSyncFailed(
                f"version {version}: vLLM in process is up to {gap:.3g} nats from the trainer, "
                f"{self._tolerance:g} are allowed"
            )

    def _proven(self, work: Callable[[], T], what: str) -> T:
        """Do something with the engine's weights, within the deadline."""
        try:
            return within(self._deadline_s, f"{what}: vLLM in process", work)
        except (VllmError, NotWhatWasAsked) as error:
            raise WeightSyncFailed(str(error)) from error

    def _lay_and_read(self, model: PreTrainedModel) -> None:
        try:
            write_serving_copy(model, self._folder)
            self._read(self._folder)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _read_folder(self, folder: Path) -> float:
        """Load a version folder; the largest difference on its probe, nats."""
        probe = json.loads((folder / PROBE_FILE).read_text())
        self._read(folder)
        return float(np.abs(np.array(self._scored(probe["token_ids"])) - probe["logprobs"]).max())

    def _read(self, folder: Path) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("it kept its prefix cache")

    def _ask(self, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        output = self._llm.generate([{"prompt_token_ids": prompt}], self._probed(num_tokens), use_tqdm=False)[0]
        _, ids, logprobs, _ = message_of(output)
        return ids, logprobs

    def _scored(self, ids: list[int]) -> list[float]:
        """Log-probabilities of a probe's last tokens."""
        output = self._llm.generate([{"prompt_token_ids": ids}], self._probed(1, prompt_logprobs=0), use_tqdm=False)[0]
        scored = zip(ids[PROMPT_TOKENS:], output.prompt_logprobs[PROMPT_TOKENS:], strict=True)
        return [position[id_].logprob for id_, position in scored]

    def _probed(self, num_tokens: int, **asked: object) -> object:
        from vllm import SamplingParams as VllmParams

        return VllmParams(
            max_tokens=num_tokens, temperature=1.0, seed=0, ignore_eos=True, logprobs=0, detokenize=False, **asked
        )


def message_of(output: object) -> tuple[list[int], list[int], list[float], str]:
    """Prompt ids, message ids and log-probabilities of a finished request, and how it ended."""
    completion = output.outputs[0]
    ids = list(completion.token_ids)
    logprobs = [position[id_].logprob for id_, position in zip(ids, completion.logprobs, strict=True)]
    return list(output.prompt_token_ids), ids, logprobs, str(completion.finish_reason)


def vllm_engine(path: Path, arguments: dict[str, object]) -> object:
    """A ``vllm.LLM`` over a folder of :mod:`trainer.policy.serving_copy`, in float32 unless told otherwise.

    Raises:
        ImportError: vLLM is not installed here.
    """
    from vllm import LLM

    return LLM(model=str(path), generation_config="vllm", **{"dtype": "float32", **arguments})
