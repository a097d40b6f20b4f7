"""The processes of one DeepSpeed run: how they find, ask and answer each other."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from trainer.update.ranks import shares

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""How long a process waits to be asked: rollouts and pauses between steps may take long."""


def loaded_deepspeed() -> ModuleType:
    """DeepSpeed, set up so that it neither compiles anything nor guesses a device."""
    os.environ.setdefault("DS_BUILD_OPS", "0")
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel("ERROR")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        _meet()
    deepspeed.init_distributed(auto_mpi_discovery=False)
    return deepspeed


def _meet() -> None:
    """Join the processes that torchrun started; without torchrun this one is alone."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(backend)
    else:
        os.environ.setdefault("LOCAL_RANK", "0")
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


class Processes:
    """The group; all methods are called by every process at the same point, but for tell (first) and heard (others)."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._talk = dist.new_group(backend="gloo", timeout=PATIENCE)

    def tell(self, what: tuple[str, object] | None) -> None:
        """Ask the others; None sends them home."""
        if self.size > 1:
            dist.broadcast_object_list([what], src=0, group=self._talk)

    def heard(self) -> tuple[str, object] | None:
        """What the first process asks next."""
        told: list[tuple[str, object] | None] = [None]
        dist.broadcast_object_list(told, src=0, group=self._talk)
        return told[0]

    def share(self, passes: Sequence[T]) -> list[tuple[T, bool]]:
        """See :func:`trainer.update.ranks.shares`."""
        return shares(passes, self.rank, self.size)

    def gathered(self, value: T) -> list[T]:
        """The values of all processes in rank order."""
        found: list[T] = [value] * self.size
        dist.all_gather_object(found, value, group=self._talk)
        return found

    def first_gathers(self, value: T) -> list[T] | None:
        """The values of all processes in rank order, in the first process alone; ``None`` in the others.

        One value travels at a time, so no process but the first ever holds more than its own.
        """
        if self.rank:
            dist.send_object_list([value], dst=0, group=self._talk)
            return None
        return [value, *(self._received(rank) for rank in range(1, self.size))]

    def first_scatters(self, values: Sequence[T] | None) -> T:
        """This process's value of those the first one holds in rank order; the others give ``None``."""
        if self.rank:
            return self._received(0)
        for rank in range(1, self.size):
            dist.send_object_list([values[rank]], dst=rank, group=self._talk)
        return values[0]

    def _received(self, rank: int) -> T:
        found: list[T | None] = [None]
        dist.recv_object_list(found, src=rank, group=self._talk)
        return found[0]

    def merged(self, found: Mapping[int, T]) -> dict[int, T]:
        """The results of all processes."""
        return {key: value for part in self.gathered(dict(found)) for key, value in part.items()}

    def summed(self, sums: Mapping[str, float], equal: frozenset[str], largest: frozenset[str]) -> dict[str, float]:
        """Sums over all processes; ``equal`` keys are the same everywhere, of ``largest`` keys the largest counts, NaN above all."""
        parts = self.gathered(dict(sums))
        total: dict[str, float] = dict.fromkeys(sorted({key for part in parts for key in part}), 0.0)
        for key in total:
            values = [part.get(key, 0.0) for part in parts]
            total[key] = values[0] if key in equal else float(np.max(values)) if key in largest else sum(values)
        return _Zeros(total)


class _Zeros(dict):
    """A key that was never counted is 0."""

    def __missing__(self, key: str) -> float:
        return 0.0
