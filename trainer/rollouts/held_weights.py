"""The weights a rollout worker samples with: how it gets from an announced version to a sampler that has it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from schemas.events import WeightsSynced
from trainer.policy.template import Template
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.vllm_engine_sampler import VllmEngineSampler
from trainer.rollouts.vllm_server_sampler import VllmServerSampler
from trainer.weights.checkpoint import BrokenCheckpoint, Checkpoint, load_weights
from trainer.weights.digest import weights_digest
from trainer.weights.sync import version_folder

logger = logging.getLogger("rods.rollout")


class WrongWeights(RuntimeError):
    """Weights that were read are not those that were announced."""


def newest(synced: Sequence[WeightsSynced], transport: str) -> WeightsSynced | None:
    """The newest announced version that came by a transport; of equals the first by target."""
    fitting = [event for event in synced if event.transport == transport]
    return min(fitting, key=lambda event: (-event.policy_version, event.target), default=None)


def load_in_place(path: Path, model: PreTrainedModel) -> None:
    """Put the weights of a transformers folder into a model of the same shape.

    Tensors are copied as they lie; a folder whose tensors have other names than the model's, as some architectures save
    them, is loaded by transformers.

    Raises:
        BrokenCheckpoint: there are none, or not of this shape.
    """
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise BrokenCheckpoint(f"{path} holds no weights")
    try:
        tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
        if tensors.keys() - model.state_dict().keys():
            load_weights(Checkpoint(path, 0), model)
        else:
            model.load_state_dict(tensors, strict=False)
            model.tie_weights()
    except (OSError, RuntimeError, SafetensorError) as error:
        raise BrokenCheckpoint(f"{path}: {error}") from error


class FolderWeights:
    """A transformers model of this process, loaded from the trainer's folder of versions.

    Args:
        model: a model of the policy's shape.
        template: the prompt format.
    """

    def __init__(self, model: PreTrainedModel, template: Template) -> None:
        self.sampler = HFSampler(model, template)
        self._model, self._held = model, None

    def follow(self, synced: Sequence[WeightsSynced]) -> int | None:
        """See :class:`trainer.rollouts.worker.HeldWeights`. A version that is gone already is passed over.

        Raises:
            WrongWeights: what lies there has another digest than was announced.
        """
        wanted = newest(synced, "folder")
        if wanted is None or wanted.policy_version == self._held:
            return self._held
        path = version_folder(Path(wanted.target), wanted.policy_version)
        try:
            load_in_place(path, self._model)
        except BrokenCheckpoint as error:
            logger.warning(
                "version %d cannot be read, a newer one may have replaced it: %s", wanted.policy_version, error
            )
            return self._held
        found = weights_digest(self._model)
        if found != wanted.weights_digest:
            raise WrongWeights(f"{path} holds weights {found}, announced were {wanted.weights_digest}")
        self._held = wanted.policy_version
        return self._held


class ServerWeights:
    """Whatever a vLLM server has; the trainer brings it up to date.

    Args:
        sampler: samples from that server.
    """

    def __init__(self, sampler: VllmServerSampler) -> None:
        self.sampler = sampler

    def follow(self, synced: Sequence[WeightsSynced]) -> int | None:
        """See :class:`trainer.rollouts.worker.HeldWeights`. What the server is labelled with counts, if it was announced.

        A server that was started again, or has not been labelled in this run, holds no version until the trainer brings one.

        Raises:
            VllmError: the server cannot be reached.
        """
        announced = {event.policy_version for event in synced if event.target == self.sampler.url}
        version = self.sampler.version() if announced else None
        return version if version in announced else None


class EngineWeights:
    """vLLM in this process, loaded from the trainer's folder of versions.

    Args:
        sampler: samples with that engine.
    """

    def __init__(self, sampler: VllmEngineSampler) -> None:
        self.sampler = sampler

    def follow(self, synced: Sequence[WeightsSynced]) -> int | None:
        """See :class:`trainer.rollouts.worker.HeldWeights`.

        Raises:
            WeightSyncFailed: the engine did not load a version that is there, or does not score its probe as the trainer did.
        """
        wanted = newest(synced, "folder")
        if wanted is None or wanted.policy_version == self.sampler.version:
            return self.sampler.version
        path = version_folder(Path(wanted.target), wanted.policy_version)
        if not path.exists():
            return self.sampler.version
        self.sampler.load(path, wanted.policy_version)
        return self.sampler.version
