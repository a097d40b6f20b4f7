"""Settings of rollout workers and of vLLM; every value says what it means and where its default comes from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class WorkerConfig(BaseModel):
    """Rollouts in processes of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    num_local: int = Field(
        1, ge=0, description="Rollout workers that a run starts on its own machine; 0 leaves it to `rods rollout`."
    )
    groups_at_once: int = Field(
        8,
        ge=1,
        description="Most groups a worker claims and plays at a time. 8 groups of 16 fill a small sampler's batch.",
    )
    group_deadline_s: float = Field(
        600.0,
        gt=0,
        description="Silence of a claimed group, seconds, after which the trainer opens it to others or closes it.",
    )
    max_attempts: int = Field(2, ge=1, description="Attempts at a group before the trainer closes it as it is.")
    weights_folder: str = Field(
        "",
        description="Where the trainer lays weights for workers that sample by themselves; empty is the run's folder.",
    )


class VllmConfig(BaseModel):
    """Servers and engines of vLLM."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    urls: tuple[str, ...] = Field(
        (), description="Addresses of the servers, as http://host:port; one worker samples from one."
    )
    transport: Literal["files", "nccl"] = Field(
        "files",
        description="How weights get there: files in shared memory on one machine, or vLLM's NCCL weight transfer between GPUs.",
    )
    weights_folder: str = Field(
        "/dev/shm", description="Where files for a server on this machine are laid; memory, not disk."
    )
    message_deadline_s: float = Field(300.0, gt=0, description="Longest wait for one message, seconds, queue included.")
    sync_deadline_s: float = Field(120.0, gt=0, description="Longest wait for each step of a weight update, seconds.")
    probe_tolerance: float = Field(
        1e-3,
        gt=0,
        description=(
            "Largest difference of log-probabilities between server and trainer on the probe after an update, nats. Both "
            "in float32 differ by 4e-5; a bfloat16 server needs 0.5 and importance_cap."
        ),
    )
    max_concurrency: int = Field(256, ge=1, description="Most requests to a server at a time.")
    master_address: str = Field("127.0.0.1", description="Address of the trainer for the NCCL rendezvous.")
    master_port: int = Field(29_600, ge=1, le=65_535, description="Port of the trainer for the NCCL rendezvous.")
    engine: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Arguments for vllm.LLM where the sampler runs in process."
    )
