"""Starts a real vLLM server from its own virtual environment, for the tests that need one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.rollouts.vllm_client import VllmClient, VllmError

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
MISSING = f"{PYTHON.relative_to(ROOT)} is not there: make vllm"
READY_TIMEOUT_S = 500.0
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def vllm_server(model: Path, log: Path, *arguments: str, is_developed: bool = True) -> Iterator[str]:
    """The address of a server over a model folder, in float32, in developer mode or not."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(PYTHON),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--served-model-name",
        "policy",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enforce-eager",
        "--dtype",
        "float32",
        "--max-model-len",
        "1024",
        "--generation-config",
        "vllm",
        *arguments,
    ]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_SERVER_DEV_MODE": "1" if is_developed else "0"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        await_server(url, process, log)
        yield url
    finally:
        stop(process)


def stop(process: subprocess.Popen) -> None:
    """End the server and the processes of its session, which outlive it when it is killed."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def await_server(url: str, process: subprocess.Popen, log: Path) -> None:
    """Return once the server answers; raise with the end of its log if it ends or takes too long."""
    client, give_up_s = VllmClient(url), time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            client.get("/v1/models", 2.0)
            return
        except VllmError as error:
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise AssertionError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}") from error
            time.sleep(0.2)
