"""The whole loop as a user starts it: broker, archiver, Faust worker, synthesizer and trainer as real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands.folder import RunFolder
from schemas.events import RunOutcome
from tests.chaos.harness import kill, only_run
from tests.chaos.outcome import outcome

ROOT = Path(__file__).parent.parent.parent
CONFIG = Path(__file__).parent / "small.toml"
DEADLINE_S = 240.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def rods(*arguments: str) -> subprocess.Popen:
    """The command, listening to Ctrl-C also where a shell in the background had it ignored."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *arguments],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def steps_of(process: subprocess.Popen, lines: list[str]) -> Iterator[int]:
    """Steps as the run announces them."""
    for line in process.stdout:
        lines.append(line)
        if match := re.match(r"step +(\d+) ", line):
            yield int(match[1])


def run(folder: Path, *arguments: str, at_step: Callable[[int, int], None] = lambda pid, step: None) -> tuple[int, str]:
    """A run to its end; ``at_step(pid, step)`` is called at each announced step."""
    process = rods("run", "--runs", str(folder), *arguments)
    lines: list[str] = []
    for step in steps_of(process, lines):
        at_step(process.pid, step)
    return process.wait(DEADLINE_S), "".join(lines)


def test_a_run_ends_by_itself_with_every_figure_and_nothing_lost(undisturbed: RunFolder) -> None:
    summary = json.loads(undisturbed.summary_file.read_text())
    wanted = {
        "reward_first",
        "reward_last",
        "heldout_reward_first",
        "heldout_reward_last",
        "steps",
        "epochs",
        "tasks_seeded",
        "boundary_signals",
        "tasks_synthesized",
        "synthesis_failed",
        "tasks_injected",
        "tasks_retired",
        "zone_variance",
        "conservation",
        "weights_digest",
    }
    assert wanted <= summary.keys()
    assert summary["outcome"] == "completed" and summary["epochs"] == 4 and summary["tasks_seeded"] == 8
    assert (summary["conservation"]["missing"], summary["conservation"]["duplicate"]) == (0, 0)
    assert summary["boundary_signals"] == summary["tasks_synthesized"] + summary["synthesis_failed"] > 0
    assert summary["tasks_injected"] > 0 and summary["dead_letters"] == 0
    assert all(summary[key] is not None for key in wanted)
    assert {p.name for p in undisturbed.path.iterdir()} >= {
        "archive",
        "checkpoints",
        "logs",
        "summary.json",
        "config.json",
    }
    assert not undisturbed.journals.exists(), "a drained run keeps no journal"


def test_stages_follow_each_other_and_only_the_last_one_synthesizes(undisturbed: RunFolder) -> None:
    pool = undisturbed.facts().pool
    assert [pool.epochs[e].stage for e in sorted(pool.epochs)] == ["base", "full", "full", "full"]
    assert len(pool.epochs[0].order) == 4 and len(pool.epochs[1].order) == 8
    assert min(signal.epoch for signal in pool.signals.values()) >= 1


def test_it_leaves_no_process_behind(undisturbed: RunFolder) -> None:
    left = subprocess.run(["pgrep", "-f", str(undisturbed.path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_a_recorded_run_replays_with_every_verdict_equal(undisturbed: RunFolder) -> None:
    process = rods("replay", str(undisturbed.path), "--json")
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert json.loads(output.splitlines()[-1])["verdicts"] == {
        "decisions": "equal",
        "learning": "equal",
        "rewards": "equal",
        "synthesis": "equal",
    }


def test_status_tells_the_same_as_the_summary(undisturbed: RunFolder) -> None:
    process = rods("status", str(undisturbed.path), "--json")
    output, _ = process.communicate(timeout=DEADLINE_S)
    told, summary = json.loads(output.splitlines()[-1]), json.loads(undisturbed.summary_file.read_text())
    assert {key: told[key] for key in summary} == summary
    assert told["synthesis"]["signals"] == summary["boundary_signals"] and told["synthesis"]["queue_depth"] == 0


def test_stopped_by_ctrl_c_and_resumed_it_ends_as_if_undisturbed(undisturbed: RunFolder, tmp_path: Path) -> None:
    def interrupt(pid: int, step: int) -> None:
        if step == 3:
            os.kill(pid, signal.SIGINT)

    code, output = run(tmp_path, "--config", str(CONFIG), at_step=interrupt)
    assert code == 130 and "rods run --resume" in output, output
    folder = only_run(tmp_path)
    assert not folder.summary_file.exists() and folder.facts().finished.outcome is RunOutcome.INTERRUPTED
    code, output = run(tmp_path, "--resume", folder.run_id)
    assert code == 0 and "records restored" in output, output
    assert outcome(folder) == outcome(undisturbed)
    assert folder.facts().finished.outcome is RunOutcome.COMPLETED
    output, _ = rods("replay", str(folder.path), "--json").communicate(timeout=DEADLINE_S)
    assert set(json.loads(output.splitlines()[-1])["verdicts"].values()) == {"equal"}, output


def test_given_up_after_a_crash_it_says_so_and_resumed_it_ends_as_if_undisturbed(
    undisturbed: RunFolder, tmp_path: Path
) -> None:
    code, output = run(
        tmp_path,
        "--config",
        str(CONFIG),
        "--set",
        "run.restarts=0",
        at_step=lambda pid, step: kill(pid, "worker") if step == 2 else None,
    )
    assert code == 2 and "worker ended with exit code -9" in output, output
    folder = only_run(tmp_path)
    end = folder.facts().finished
    assert end.outcome is RunOutcome.FAILED and "worker ended with exit code -9" in end.reason
    code, output = run(tmp_path, "--resume", folder.run_id)
    assert code == 0 and outcome(folder) == outcome(undisturbed), output


def test_with_every_process_killed_once_it_ends_as_if_undisturbed(undisturbed: RunFolder, tmp_path: Path) -> None:
    victims = iter(["broker", "worker", "trainer", "synthesizer", "archiver"])

    def disturb(pid: int, step: int) -> None:
        victim = next(victims, None)
        if victim:
            kill(pid, victim)

    code, output = run(tmp_path, "--config", str(CONFIG), at_step=disturb)
    assert code == 0, output
    assert output.count("is started again") >= 3 and "filled in from the journals" in output, output
    assert outcome(only_run(tmp_path)) == outcome(undisturbed)


def test_a_busy_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = run(tmp_path, "--config", str(CONFIG), "--set", f"kafka.port={port}")
    assert code == 2 and f"port {port} on 127.0.0.1 is taken" in output, output


def test_a_dead_broker_at_start_is_named(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--config", str(CONFIG), "--set", "kafka.bootstrap_servers=127.0.0.1:1")
    assert code == 2 and "127.0.0.1:1 did not answer" in output, output


@pytest.mark.parametrize("retrain", [False, True])
def test_a_fork_goes_on_from_the_shared_past_with_other_settings_and_replays(
    undisturbed: RunFolder, tmp_path: Path, retrain: bool
) -> None:
    shutil.copytree(undisturbed.path, tmp_path / undisturbed.run_id)
    arguments = [
        "fork",
        undisturbed.run_id,
        "--runs",
        str(tmp_path),
        "--at",
        "5",
        "--set",
        "trainer.learning_rate=1e-4",
        "--json",
    ]
    output, _ = rods(*arguments, *(["--retrain"] if retrain else [])).communicate(timeout=DEADLINE_S)
    fork = json.loads(output.splitlines()[-1])
    code, output = run(tmp_path, "--resume", fork["run_id"])
    assert code == 0, output
    theirs, ours = outcome(undisturbed), outcome(RunFolder(tmp_path / fork["run_id"]))
    shared = range(1, 6)
    assert [ours["batches"][step] for step in shared] == [theirs["batches"][step] for step in shared]
    assert ours["weights"] != theirs["weights"] and ours["conservation"] == theirs["conservation"]
    output, _ = rods("replay", fork["run_id"], "--runs", str(tmp_path), "--json").communicate(timeout=DEADLINE_S)
    assert set(json.loads(output.splitlines()[-1])["verdicts"].values()) == {"equal"}, output


def test_rescoring_under_the_recorded_rewards_changes_nothing_and_under_others_the_seeds(
    undisturbed: RunFolder,
) -> None:
    for verifier, same in (("progress", True), ("binary", False)):
        output, _ = rods("rescore", str(undisturbed.path), "--verifier", verifier, "--json").communicate(
            timeout=DEADLINE_S
        )
        found = json.loads(output.splitlines()[-1])
        assert (found["recorded"] == found["rescored"]) is same


def test_a_run_can_be_bounded_in_steps_and_replays(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--config", str(CONFIG), "--set", "pool.max_steps=3")
    assert code == 0, output
    summary = json.loads(only_run(tmp_path).summary_file.read_text())
    assert summary["steps"] == 3 and not summary["conservation"]["missing"] and not summary["conservation"]["duplicate"]
    replayed = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "replay", str(only_run(tmp_path).path)], cwd=ROOT, check=False
    )
    assert replayed.returncode == 0
