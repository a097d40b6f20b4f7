"""A real vLLM server with a small real model: every signal ends in exactly one outcome, over HTTP and the real broker.

A model of 135 million parameters fails most stages; that is data, and the failure types say where. Needs .venv-vllm
(``make vllm``: about three minutes and 2.6 GB).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.index import RunIndex
from analysis.yields import synthesis_of
from schemas.events import SynthesisFailed, SynthesisFailure, TaskSynthesized
from streams.log.connection import Connection
from streams.log.embedded_broker import free_port
from streams.processes import Child
from tests.synthesizer.test_service_process import ROOT, Bench

VENV = ROOT / ".venv-vllm"
PYTHON, MODEL = VENV / "bin" / "python", VENV / "models" / "smollm2-135m"
START_S = 240.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PYTHON.exists() and MODEL.exists()), reason=f"{VENV.name} with a model is not there: run `make vllm`"
    ),
]


@pytest.fixture(scope="module")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server; eager, because compiling takes longer than this test."""
    port, folder = free_port(), tmp_path_factory.mktemp("vllm")
    command = [
        str(PYTHON),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(MODEL),
        "--served-model-name",
        "smollm2",
        "--enforce-eager",
        "--max-model-len",
        "4096",
        "--dtype",
        "bfloat16",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    server = Child("vllm", command, folder / "vllm.log", ENVIRONMENT).start()
    give_up_s = time.monotonic() + START_S
    while not _answers(f"http://127.0.0.1:{port}/health"):
        server.require_alive()
        assert time.monotonic() < give_up_s, server.last_words()
        time.sleep(0.5)
    yield f"http://127.0.0.1:{port}/v1"
    server.stop(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("form", "planned"), [("json_schema", "true"), ("tagged", "true"), ("json_schema", "false")])
def test_every_signal_to_a_real_model_ends_in_exactly_one_outcome(
    tmp_path: Path, connection: Connection, vllm_server: str, form: str, planned: str
):
    overrides = (
        f"synthesis.llm.answer_format={form}",
        f"synthesis.narrative_planning={planned}",
        "synthesis.llm.max_tokens=128",
        "synthesis.llm.request_timeout_s=400",
        "synthesis.max_attempts=1",
        "synthesis.deadline_s=800",
    )
    bench = Bench(tmp_path, connection, vllm_server, *overrides)
    signals = bench.seed(4)
    child = bench.launch("synthesizer")
    started_s = time.monotonic()
    bench.await_outcomes(lambda count: count == len(signals), patience_s=850)
    child.stop(20)
    bench.events += bench.reader.catch_up()
    ends = Counter(event.signal_id for event in bench.terminals())
    assert ends.keys() == {event.signal_id for event in signals} and set(ends.values()) == {1} and child.exit_code == 0
    for event in bench.terminals():
        assert event.completions and all(item.model == "smollm2" for item in event.completions if not item.error)
        assert isinstance(event, TaskSynthesized) or event.failure is not SynthesisFailure.PIPELINE_EXCEPTION, (
            event.detail
        )
        assert sum(item.num_completion_tokens for item in event.completions) > 0
    section = synthesis_of(RunIndex().add(bench.events))
    failed = Counter(f.value for e in bench.terminals() if isinstance(e, SynthesisFailed) for f in e.failures)
    print(
        f"{form}, planned {planned}: {len(signals)} signals in {time.monotonic() - started_s:.0f} s, {section['admitted']} admitted, "
        f"attempts failed by {dict(failed)}, {json.dumps(section['roles'])}"
    )
    bench.close()


@pytest.mark.timeout(400)
def test_vllm_inside_the_process_answers_a_batch_through_the_same_port():
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(PYTHON), "-m", "tests.synthesizer.in_process_probe", str(MODEL)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    replies = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[[")))
    assert all(json.loads(text)["verdict"] in ("accept", "reject") for text, _, _ in replies[:2])
    assert replies[0] == replies[1] and all(prompt > 0 and answer > 0 for _, prompt, answer in replies)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is importable here")
def test_without_vllm_the_in_process_client_says_what_is_missing():
    import asyncio

    from synthesizer.config import ModelConfig
    from synthesizer.llm.in_process import InProcessModel
    from synthesizer.llm.model import ModelUnavailable
    from tests.synthesizer.test_model_client import QUESTION

    with pytest.raises(ModelUnavailable, match="needs vLLM in this environment"):
        asyncio.run(InProcessModel(ModelConfig(client="vllm")).complete(QUESTION))
