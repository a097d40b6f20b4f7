"""Weights from GPU to GPU, by vLLM's own weight transfer for reinforcement learning.

vLLM's trainer-side engine broadcasts the parameters over NCCL while the server receives them; the server must have been
started with ``--weight-transfer-config '{"backend": "nccl"}'``. This module gives that engine what it asks for: the
control calls to the server (each with a deadline), and the parameters of a model in a fixed order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import torch
from transformers import PreTrainedModel

from trainer.rollouts.vllm_client import VllmClient, VllmError


class ServerControl:
    """The control calls of a weight update, as vLLM's trainer-side engine makes them.

    Args:
        client: the server.
        deadline_s: longest wait for each call, seconds.
    """

    def __init__(self, client: VllmClient, deadline_s: float) -> None:
        self._client, self._deadline_s = client, deadline_s

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        """Let the server join the transfer group."""
        self._client.post("/init_weight_transfer_engine", self._deadline_s, {"init_info": init_info})

    def shutdown_weight_transfer_engine(self) -> None:
        """Let the server leave the transfer group."""
        self._client.post("/shutdown_weight_transfer_engine", self._deadline_s)

    def start_weight_update(self) -> None:
        """Begin an update."""
        self._client.post("/start_weight_update", self._deadline_s)

    def update_weights(self, update_info: object) -> None:
        """Let the server receive; returns when it has."""
        self._client.post("/update_weights", self._deadline_s, {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End an update; the label of the version is given by the caller of the transfer."""
        self._client.post("/finish_weight_update", self._deadline_s)


def parameters_of(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """Names and tensors of every parameter, tied ones once, in the model's own order."""
    return [(name, parameter.detach()) for name, parameter in model.named_parameters()]


def vllm_source(model: PreTrainedModel) -> object:
    """The parameters of a model as vLLM's trainer-side engine takes them."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Parameters(WeightSource):
        def metadata(self) -> list[ParamMeta]:
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in parameters_of(model)]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            return iter(parameters_of(model))

    return Parameters()


def vllm_sender(control: ServerControl, model: PreTrainedModel, address: str, port: int, world_size: int) -> object:
    """vLLM's trainer-side NCCL engine, joined with a server of ``world_size`` ranks."""
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    init_info = NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=1 + world_size, rank=0)
    return WeightTransferTrainerFactory.trainer_init(init_info, client=control, source=vllm_source(model))


class NcclTransfer:
    """The way over NCCL, for :class:`trainer.weights.sync.VllmSync`; one for each server.

    Args:
        address: address of this process for the rendezvous.
        port: its port; each server needs one of its own.
        join: makes the sender, for tests; vLLM's engine if not given.
    """

    def __init__(self, address: str, port: int, join: Callable[..., object] = vllm_sender) -> None:
        self._address, self._port, self._join = address, port, join
        self._sender: object | None = None

    def __call__(self, client: VllmClient, model: PreTrainedModel, deadline_s: float) -> None:
        """Send every parameter.

        Raises:
            VllmError: the server refused, or the transfer did not end in time. Then the transfer group is lost: both
                sides may wait in NCCL for ever, and trainer and server must be started again.
        """
        if self._sender is None:
            control, world_size = ServerControl(client, deadline_s), client.facts(deadline_s).world_size
            self._sender = within(
                deadline_s,
                f"joining {client.url} over NCCL at {self._address}:{self._port}",
                lambda: self._join(control, model, self._address, self._port, world_size),
            )
        within(deadline_s, f"sending weights to {client.url} over NCCL", self._sender.send_weights)


def within(deadline_s: float, what: str, work: Callable[[], object]) -> object:
    """Do something that cannot be interrupted in a thread of its own, and stop waiting for it after a deadline.

    The thread keeps no process alive: one that is given up on ends with its process.

    Raises:
        VllmError: it took too long, or failed.
    """
    answers: queue.SimpleQueue[tuple[object, Exception | None]] = queue.SimpleQueue()
    broken = VllmError(f"{what}: it broke off; the traceback is above")

    def answer() -> None:
        try:
            answers.put((work(), None))
        except (RuntimeError, ValueError, OSError) as error:
            answers.put((None, error))
        finally:
            answers.put((None, broken))

    threading.Thread(target=answer, name=what, daemon=True).start()
    try:
        value, error = answers.get(timeout=deadline_s)
    except queue.Empty as silence:
        raise VllmError(f"{what}: not done within {deadline_s:g} s; start it again") from silence
    if isinstance(error, VllmError):
        raise error
    if error is not None:
        raise VllmError(f"{what}: {type(error).__name__}: {error}") from error
    return value
