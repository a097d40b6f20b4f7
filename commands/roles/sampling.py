"""From settings to samplers: what the trainer samples with and brings weights to, and what a rollout worker holds."""

from __future__ import annotations

import re
from pathlib import Path

from commands.config import ConfigError, RunConfig
from trainer.policy.loading import Policy, load_model, load_policy
from trainer.policy.serving_copy import write_serving_copy
from trainer.policy.template import Template
from trainer.rollouts.held_weights import EngineWeights, FolderWeights, ServerWeights
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import Sampler
from trainer.rollouts.vllm_client import VllmClient
from trainer.rollouts.vllm_engine_sampler import VllmEngineSampler, vllm_engine
from trainer.rollouts.vllm_server_sampler import VllmServerSampler
from trainer.rollouts.worker import HeldWeights
from trainer.weights.sync import FolderSync, ServerSettings, VllmSync, WeightSync, by_files
from trainer.weights.transfer import NcclTransfer


def scratch_folder(config: RunConfig, run_id: str, name: str) -> Path:
    """A folder in memory for one engine or server of a run."""
    return Path(config.trainer.vllm.weights_folder) / f"rods-{run_id}-{name}"


def served(config: RunConfig, template: Template, url: str) -> VllmServerSampler:
    """The sampler of one server."""
    vllm = config.trainer.vllm
    return VllmServerSampler(url, template, vllm.message_deadline_s, vllm.max_concurrency, needs_version=True)


def in_process(config: RunConfig, run_id: str, name: str, policy: Policy) -> VllmEngineSampler:
    """vLLM in this process, shown to sample with the weights it is sent; it holds no version yet.

    Raises:
        WeightSyncFailed: it does not sample with them.
    """
    vllm, folder = config.trainer.vllm, scratch_folder(config, run_id, name)
    write_serving_copy(policy.model, folder, policy.tokenizer)
    sampler = VllmEngineSampler(
        vllm_engine(folder, dict(vllm.engine)), policy.template, folder, vllm.probe_tolerance, vllm.sync_deadline_s
    )
    sampler.prove_way(policy.model)
    return sampler


def server_syncs(config: RunConfig, run_id: str) -> tuple[WeightSync, ...]:
    """One way for weights to each configured server.

    Raises:
        ConfigError: no server is configured.
    """
    vllm = config.trainer.vllm
    if not vllm.urls:
        raise ConfigError("trainer.sampler is vllm_server but trainer.vllm.urls is empty: name the servers")
    settings = ServerSettings(vllm.sync_deadline_s, vllm.probe_tolerance, config.trainer.temperature)
    transfers = [
        by_files(scratch_folder(config, run_id, f"server-{number}"))
        if vllm.transport == "files"
        else NcclTransfer(vllm.master_address, vllm.master_port + number)
        for number in range(len(vllm.urls))
    ]
    return tuple(
        VllmSync(VllmClient(url), settings, f"vllm-{vllm.transport}", transfer)
        for url, transfer in zip(vllm.urls, transfers, strict=True)
    )


def of_trainer(config: RunConfig, run_id: str, folder: Path, policy: Policy) -> tuple[Sampler, tuple[WeightSync, ...]]:
    """What the trainer samples with (evaluations too), and where it brings weights to; ``folder`` is the run's.

    Raises:
        ConfigError: no server is configured.
        ImportError: vLLM is not installed here.
    """
    trainer = config.trainer
    if trainer.sampler == "vllm_server":
        return served(config, policy.template, (trainer.vllm.urls or ("",))[0]), server_syncs(config, run_id)
    syncs: tuple[WeightSync, ...] = ()
    if trainer.rollouts == "workers":
        root = Path(trainer.workers.weights_folder or folder / "weights")
        syncs = (FolderSync(root, policy.tokenizer, trainer.max_staleness + 2),)
    if trainer.sampler == "vllm_engine":
        sampler = in_process(config, run_id, "trainer", policy)
        return sampler, (*syncs, sampler)
    return HFSampler(policy.model, policy.template), syncs


def server_of(urls: tuple[str, ...], worker: str) -> str:
    """The server of a worker, by the number at the end of its name.

    >>> server_of(("http://a", "http://b"), "rollout-3"), server_of(("http://a", "http://b"), "rollout")
    ('http://b', 'http://a')
    """
    number = re.search(r"(\d+)$", worker)
    return urls[(int(number[1]) if number else 0) % len(urls)]


def of_worker(config: RunConfig, run_id: str, worker: str, path: str, template: Template, url: str = "") -> HeldWeights:
    """What a rollout worker samples with: the model at ``path``, or a server, its own at ``url`` or one of the configured.

    Raises:
        ConfigError: no server is configured.
        ImportError: vLLM is not installed here.
    """
    trainer = config.trainer
    if trainer.sampler == "hf":
        return FolderWeights(load_model(path), template)
    if trainer.sampler == "vllm_engine":
        return EngineWeights(in_process(config, run_id, worker, load_policy(path, **config.policy.spoken)))
    if not (url or trainer.vllm.urls):
        raise ConfigError("trainer.vllm.urls is empty: name the servers, or this worker's with --url")
    return ServerWeights(served(config, template, url or server_of(trainer.vllm.urls, worker)))
