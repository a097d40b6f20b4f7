"""New weights to where they are sampled from: a folder, a vLLM server. Either a version is there, proven, or it is not.

Every step has a deadline, and an error carries the server's own words. A server is paused until its requests have ended,
takes the weights, forgets its prefix cache and goes on. Then it samples a probe, and only if its log-probabilities are the
trainer's is it labelled with the version; until then samplers wait. A server that does not carry the label it was given
last, as at the start of a trainer or when it was started again, is first sent marked weights (:mod:`trainer.weights.proof`);
what was sampled while it had those is told by its label, which names the proof of the way too, and is sampled again.
A server whose weights are in doubt stays paused, and no version is announced.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainer.policy.serving_copy import write_serving_copy
from trainer.rollouts.live_episode import NotWhatWasAsked
from trainer.rollouts.vllm_client import PROVING, UNPROVEN, VllmClient, VllmError
from trainer.rollouts.vllm_server_sampler import COMPLETIONS, message_in
from trainer.weights.proof import PROBE_TOKENS, SEED, Ask, likeliest, own_logprobs, probe_gap, probe_ids, takes_weights

DIGEST_FILE, PROBE_FILE = "weights_digest", "probe.json"


class WeightSyncFailed(RuntimeError):
    """A version of the weights did not get to where it is sampled from; the text says how far it got and why."""


@dataclass(frozen=True, slots=True)
class Synced:
    """A version that arrived.

    Attributes:
        target: Folder or address.
        transport: folder, vllm-files or vllm-nccl.
        probe_gap: Largest difference of log-probabilities on the probe, nats; ``None`` where nothing was asked.
    """

    target: str
    transport: str
    probe_gap: float | None = None


class WeightSync(Protocol):
    """One place that weights are brought to."""

    def sync(self, model: PreTrainedModel, version: int, digest: str) -> Synced:
        """Bring a version there.

        Args:
            model: holds the weights.
            version: updates applied to them.
            digest: their digest.

        Raises:
            WeightSyncFailed: it did not arrive; the version that is there counts as before.
        """
        ...


def version_folder(root: Path, version: int) -> Path:
    """Where a version lies under a folder of versions."""
    return root / f"version-{version:06d}"


class FolderSync:
    """Lays each version as a transformers folder, whole or not at all, and keeps the newest few.

    Args:
        root: folder of the versions.
        tokenizer: laid beside the weights; None lays none.
        keep: versions to keep.
    """

    def __init__(self, root: Path, tokenizer: PreTrainedTokenizerBase | None, keep: int) -> None:
        self._root, self._tokenizer, self._keep = root, tokenizer, keep

    def sync(self, model: PreTrainedModel, version: int, digest: str) -> Synced:
        """See :class:`WeightSync`; the same weights are not written twice."""
        path, draft = version_folder(self._root, version), self._root / f".draft-{version:06d}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not (path / DIGEST_FILE).exists() or (path / DIGEST_FILE).read_text() != digest:
                shutil.rmtree(draft, ignore_errors=True)
                write_serving_copy(model, draft, self._tokenizer)
                (draft / PROBE_FILE).write_text(json.dumps(probe_of(model)))
                (draft / DIGEST_FILE).write_text(digest)
                shutil.rmtree(path, ignore_errors=True)
                os.rename(draft, path)
            for old in sorted(self._root.glob("version-*"))[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise WeightSyncFailed(f"version {version} could not be laid in {self._root}: {error}") from error
        return Synced(str(self._root), "folder")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server is brought up to date.

    Attributes:
        deadline_s: Longest wait for each step, seconds.
        tolerance: Largest difference of log-probabilities on the probe, nats.
        temperature: Temperature of the run; the probe is sampled with it.
    """

    deadline_s: float = 120.0
    tolerance: float = 1e-3
    temperature: float = 1.0


class VllmSync:
    """Brings weights to one vLLM server in developer mode.

    Args:
        client: the server.
        settings: deadlines and tolerance.
        transport: name of the way the weights take.
        transfer: brings the weights of a model to the paused server; raises VllmError or OSError if it cannot.

    Attributes:
        version: the version that is proven to be there; ``None`` before the first.
    """

    def __init__(
        self,
        client: VllmClient,
        settings: ServerSettings,
        transport: str,
        transfer: Callable[[VllmClient, PreTrainedModel, float], None],
    ) -> None:
        self._client, self._settings, self._transport, self._transfer = client, settings, transport, transfer
        self.version: int | None = None
        self._way = ""

    def sync(self, model: PreTrainedModel, version: int, digest: str) -> Synced:
        """See :class:`WeightSync`."""
        if not self._is_as_left(version):
            self._prove_way(model, version)
        self._bring(model, version)
        gap = self._prove(model, version)
        self._label(version)
        self.version = version
        return Synced(self._client.url, self._transport, gap)

    def _is_as_left(self, version: int) -> bool:
        """Whether the server carries the label it was given here last; one that was started again does not."""
        if self.version is None:
            return False
        try:
            return self._client.label(self._settings.deadline_s) == self._label_of(self.version)
        except VllmError as error:
            raise WeightSyncFailed(f"version {version}: not begun: {error}") from error

    def _bring(self, model: PreTrainedModel, version: int) -> None:
        """Weights into the paused server; behind this it samples from them, unlabelled."""
        client, deadline_s = self._client, self._settings.deadline_s
        try:
            client.post("/pause", deadline_s, params={"mode": "wait"})
        except VllmError as error:
            self._attempt("/resume")
            raise WeightSyncFailed(f"version {version}: not begun: {error}") from error
        try:
            client.post("/update_weight_version", deadline_s, {"new_version": PROVING})
            self._transfer(client, model, deadline_s)
            if not client.post("/reset_prefix_cache", deadline_s).get("success"):
                raise VllmError(f"POST /reset_prefix_cache at {client.url}: the server kept its cache")
            client.post("/resume", deadline_s)
        except (VllmError, OSError) as error:
            self._close()
            raise WeightSyncFailed(
                f"version {version}: {error}; {client.url} may hold half of it and stays paused until an update succeeds; "
                "start it again if none does"
            ) from error

    def _prove_way(self, model: PreTrainedModel, version: int) -> None:
        settings, url = self._settings, self._client.url
        try:
            is_taken = takes_weights(
                lambda: self._bring(model, version), asked_of(self._client, settings), model, settings.temperature
            )
        except (VllmError, NotWhatWasAsked) as error:
            self._close()
            raise WeightSyncFailed(f"version {version}: the probe failed: {error}") from error
        if not is_taken:
            self._close()
            raise WeightSyncFailed(
                f"version {version}: {url} said it took marked weights and does not sample with them; it is paused. On a CPU: "
                "embeddings tied to the output head (serve what trainer.serving_copy writes)?"
            )
        self._way = secrets.token_hex(4)

    def _prove(self, model: PreTrainedModel, version: int) -> float:
        settings = self._settings
        try:
            gap = probe_gap(asked_of(self._client, settings), model, settings.temperature)
        except (VllmError, NotWhatWasAsked) as error:
            self._close()
            raise WeightSyncFailed(f"version {version}: the probe failed: {error}") from error
        if not gap <= settings.tolerance:
            self._close()
            raise WeightSyncFailed(
                f"version {version}: {self._client.url} samples the probe with log-probabilities up to {gap:.3g} nats from "
                f"the trainer's, {settings.tolerance:g} are allowed; it is paused. Another precision or --logprobs-mode "
                "than the trainer's?"
            )
        return gap

    def _label_of(self, version: int) -> str:
        return f"{version}/{self._way}"

    def _label(self, version: int) -> None:
        """From here on samplers go on."""
        try:
            self._client.post(
                "/update_weight_version", self._settings.deadline_s, {"new_version": self._label_of(version)}
            )
        except VllmError as error:
            self._close()
            raise WeightSyncFailed(f"version {version}: {error}; {self._client.url} is paused") from error

    def _close(self) -> None:
        """Let nobody sample from weights that are in doubt."""
        self._attempt("/update_weight_version", body={"new_version": UNPROVEN})
        self._attempt("/pause", params={"mode": "abort"})

    def _attempt(self, path: str, **values: object) -> None:
        """Ask once; the error that led here is the one that is told."""
        try:
            self._client.post(path, self._settings.deadline_s, **values)
        except VllmError:
            return


def asked_of(client: VllmClient, settings: ServerSettings) -> Ask:
    """How a server is asked for a probe; raises VllmError if it does not sample, NotWhatWasAsked if its answer lacks something."""

    def ask(prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        answer = client.post(
            COMPLETIONS,
            settings.deadline_s,
            {
                "model": client.facts(settings.deadline_s).model,
                "prompt": prompt,
                "max_tokens": num_tokens,
                "seed": SEED,
                "temperature": settings.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "ignore_eos": True,
                "logprobs": 0,
                "return_token_ids": True,
                "add_special_tokens": False,
            },
        )
        _, ids, logprobs, _ = message_in(answer)
        return ids, logprobs

    return ask


def probe_of(model: PreTrainedModel) -> dict[str, list]:
    """A fixed text, the model's likeliest tokens behind it and their log-probabilities, for whoever loads the weights elsewhere."""
    prompt = probe_ids(model.config.vocab_size)
    ids = likeliest(model, prompt, PROBE_TOKENS)
    return {"token_ids": prompt + ids, "logprobs": own_logprobs(model, prompt, ids).tolist()}


def by_files(folder: Path) -> Callable[[VllmClient, PreTrainedModel, float], None]:
    """The way through files of this machine's memory: the one that works for a server on a CPU.

    Args:
        folder: a folder in memory, for one server alone.
    """

    def transfer(client: VllmClient, model: PreTrainedModel, deadline_s: float) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            write_serving_copy(model, folder)
            client.post(
                "/collective_rpc", deadline_s, {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return transfer
