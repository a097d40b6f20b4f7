"""Plays the toy run's tasks with vLLM in process, in vLLM's own virtual environment: ``python -m tests.trainer.engine_probe``.

Prints one JSON object: log-probability gaps to the model in this process, before and after updates of the weights, by the
trainer's way and by that of a worker that loads version folders.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from tests.trainer.toys import ToyEpisode, toy_task
from trainer.policy.causal_lm import halves
from trainer.policy.loading import load_policy
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.rollouts.vllm_engine_sampler import VllmEngineSampler, vllm_engine
from trainer.update.logprobs import padded, score
from trainer.weights.sync import FolderSync, WeightSyncFailed, version_folder
from trainer.weights.transfer import vllm_source

PARAMS = SamplingParams(seed=3, max_message_tokens=24, max_episode_tokens=200)


def requests_of(num_tasks: int = 4, group_size: int = 3) -> list[RolloutRequest]:
    """A few groups."""
    tasks = [toy_task(f"base_{number}", 1 + number % 3) for number in range(num_tasks)]
    return [
        RolloutRequest(task, ToyEpisode(task), k, (1, task.task_id, k)) for task in tasks for k in range(group_size)
    ]


def gap_of(model, rollouts) -> float:
    """Largest difference between recorded log-probabilities and a model's."""
    batch = padded([r.token_ids for r in rollouts], [r.mask for r in rollouts], torch.device("cpu"))
    with torch.no_grad():
        own_N = score(halves(model), batch).logprobs_N.numpy()
    return float(np.abs(np.concatenate([r.logprobs[r.mask == 1] for r in rollouts]) - own_N).max())


def transfer_parts(model) -> list[object]:
    """What our side of the NCCL transfer gives to vLLM's, without a GPU to send it from."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine as Engine

    init = NCCLTrainerInitInfo(master_address="127.0.0.1", master_port=29_600, world_size=2, rank=0)
    source = vllm_source(model)
    described = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    held = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source]
    return [init.backend, init.is_sender, described == held, len(held), callable(Engine.send_weights)]


def followed(sampler, models, root) -> list[object]:
    """Gaps after each version that a worker loads from the trainer's folder, and what is said of a folder with a wrong probe."""
    syncs, said = FolderSync(root, None, 8), []
    for version, model in enumerate(models, 7):
        syncs.sync(model, version, str(version))
        sampler.load(version_folder(root, version), version)
        said.append(gap_of(model, sampler.rollout(requests_of(2), PARAMS)))
    shutil.copy(version_folder(root, 7) / "probe.json", version_folder(root, 8) / "probe.json")
    try:
        sampler.load(version_folder(root, 8), 8)
    except WeightSyncFailed as error:
        said.append(str(error))
    return said


def main() -> None:
    """Play, update, play."""
    folder, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    policy = load_policy(folder)
    policy.model.config.tie_word_embeddings = True
    policy.model.tie_weights()
    sampler = VllmEngineSampler(
        vllm_engine(folder, {"enforce_eager": True, "max_model_len": 1024, "disable_log_stats": True}),
        policy.template,
        scratch,
    )
    ended: list[object] = []
    found: dict[str, object] = {"gaps": [], "cross": [], "versions": []}
    models = [policy.model]
    for version in (1, 2):
        torch.manual_seed(version)
        models.append(copy.deepcopy(policy.model))
        with torch.no_grad():
            for parameter in models[-1].parameters():
                parameter.add_(0.03 * version * torch.randn_like(parameter))
    for version, model in enumerate(models):
        synced = sampler.sync(model, version, "")
        rollouts = sampler.rollout(requests_of(), PARAMS, None, ended.append)
        found["gaps"].append([synced.probe_gap, gap_of(model, rollouts)])
        found["cross"].append(gap_of(models[version - 1], rollouts))
        found["versions"].append(sorted({v for r in rollouts for _, v in r.version_spans}))
    sampler.prove_way(policy.model)
    found["unproven"] = sampler.version
    found["followed"] = followed(sampler, models[1:], scratch.with_name("versions"))
    found["transfer"] = transfer_parts(policy.model)
    found["num_ended"], found["all_done"] = len(ended), all(r.episode.done and not r.error for r in ended)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
