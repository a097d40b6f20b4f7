"""Commands over a real vLLM server on this machine's processor: ``rods eval``, ``rods chat``, ``rods run`` with ``rods rollout``."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from schemas.events import GroupClaimed, RolloutGroupCompleted, StepCompleted, TrajectoryRecorded, WeightsSynced
from schemas.packed import unpack_mask
from streams.archive.segments import ArchiveLog
from streams.log.reader import EventReader
from tests.trainer.test_vllm_server import FP32_GAP
from tests.trainer.test_vllm_server import policy_folder as policy_folder
from tests.trainer.vllm_server import MISSING, PYTHON, free_port, vllm_server

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "tests" / "trainer" / "worker_run.toml"
DEADLINE_S = 400.0
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON.exists(), reason=MISSING), pytest.mark.timeout(900)]


def rods(*arguments, **values):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *arguments],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **values,
    )


def said(process, text=None):
    output, _ = process.communicate(text, timeout=DEADLINE_S)
    assert process.returncode == 0, output
    return output


def test_a_policy_behind_a_server_without_developer_mode_is_measured_and_talked_to(policy_folder, tmp_path):
    with vllm_server(
        policy_folder, tmp_path / "server.log", "--logprobs-mode", "processed_logprobs", is_developed=False
    ) as url:
        server = ("--model", url, "--tokenizer", str(policy_folder))
        limits = ("--max-message-tokens", "24", "--max-episode-tokens", "1000")
        lines = said(
            rods("eval", *server, "--split", "train", "--limit", "8", "--greedy", "--json", *limits)
        ).splitlines()
        result = json.loads(lines[-1])
        assert (result["overall"]["num_tasks"], result["mode"], result["model"]) == (8, "greedy", url)
        sampled = json.loads(
            said(
                rods(
                    "eval",
                    *server,
                    "--split",
                    "train",
                    "--limit",
                    "4",
                    "--temperature",
                    "0.7",
                    "--pass-k",
                    "2",
                    "--json",
                    *limits,
                )
            ).splitlines()[-1]
        )
        assert (sampled["overall"]["num_tasks"], sampled["rollouts_per_task"]) == (4, 2)
        talk = said(
            rods(
                "chat", *server, "--task", "multi_turn_base_144", "--split", "train", "--greedy", stdin=subprocess.PIPE
            ),
            "\n\n\n\n\n",
        )
        assert "reward 0.00" in talk


def run_folder(runs, process):
    """The folder of a run that has just begun."""
    give_up_s = time.monotonic() + DEADLINE_S
    while not (found := [path for path in runs.iterdir() if path.is_dir()]):
        assert process.poll() is None and time.monotonic() < give_up_s
        time.sleep(0.2)
    return found[0]


def events_of(run, kind):
    archive = ArchiveLog(run / "archive")
    reader = EventReader(archive, list(archive.partitions), archive.partitions, run.name, "test")
    return [event for event in reader.catch_up() if isinstance(event, kind)]


@pytest.fixture(scope="module")
def played(policy_folder, tmp_path_factory):
    """A run that samples from a server, whose one worker is a command of its own; its folder and what the worker said."""
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    (folder / "runs").mkdir()
    with vllm_server(policy_folder, folder / "server.log") as url:
        settings = {
            "kafka.port": port,
            "trainer.workers.num_local": 0,
            "trainer.sampler": "vllm_server",
            "trainer.vllm.urls": f'["{url}"]',
            "policy.path": policy_folder,
            "trainer.max_message_tokens": 24,
            "trainer.max_episode_tokens": 1000,
            "trainer.reward": "format",
            "trainer.entropy_coef": 0.1,
        }
        process = rods(
            "run",
            "--config",
            str(CONFIG),
            "--runs",
            str(folder / "runs"),
            *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
        )
        worker = None
        try:
            run = run_folder(folder / "runs", process)
            worker = rods(
                "rollout",
                run.name,
                "--name",
                "rollout-8",
                "--url",
                url,
                "--set",
                f"kafka.bootstrap_servers=127.0.0.1:{port}",
            )
            output = said(process)
            worker.send_signal(signal.SIGTERM)
            return run, output, said(worker)
        finally:
            for child in (process, worker):
                if child is not None and child.poll() is None:
                    child.kill()
                    child.wait()


def test_a_run_is_learned_from_what_a_worker_of_its_own_samples_from_the_server(played):
    run, output, worker = played
    steps, synced = events_of(run, StepCompleted), events_of(run, WeightsSynced)
    assert [step.step for step in steps] == [1, 2, 3, 4], output
    assert [event.policy_version for event in synced] == [0, 1, 2, 3, 4]
    assert max(event.probe_gap for event in synced) < FP32_GAP
    assert len({event.weights_digest for event in synced}) == 5, "nothing was learned, so the updates show nothing"
    assert {claim.worker for claim in events_of(run, GroupClaimed)} == {"rollout-8"}
    assert len(events_of(run, RolloutGroupCompleted)) == 8 and "done: 8 groups ended, 0 late" in worker


def test_every_rollout_was_sampled_under_the_weights_it_names(played):
    run, _, _ = played
    bodies = events_of(run, TrajectoryRecorded)
    assert len(bodies) == 8 * 4 and all(body.policy_version == body.step - 1 for body in bodies)
    assert sum(int(np.sum(unpack_mask(body.mask))) for body in bodies) > 100
    assert max(step.metrics["logprob_gap_max"] for step in events_of(run, StepCompleted)) < 1e-3
