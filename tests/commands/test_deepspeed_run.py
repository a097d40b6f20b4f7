"""A run whose updates are shared by two DeepSpeed processes, as a user starts it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commands.folder import RunFolder
from tests.chaos.harness import kill, only_run
from tests.chaos.outcome import outcome
from tests.commands.test_run import CONFIG, DEADLINE_S, rods, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHARED = (
    "--set",
    "trainer.engine=deepspeed",
    "--set",
    "trainer.num_processes=2",
    "--set",
    "trainer.zero_stage=2",
    "--set",
    "trainer.checkpoint_every_steps=1",
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs over eight seeds."""
    text, cut = re.subn(
        r"\[\[stages\]\].*?(?=\[pool\])",
        '[[stages]]\nname = "full"\nepochs = 2\n\n',
        CONFIG.read_text(),
        flags=re.DOTALL,
    )
    assert cut == 1
    path = tmp_path_factory.mktemp("config") / "two-epochs.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def shared(config: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two processes that nothing happened to."""
    folder = tmp_path_factory.mktemp("shared")
    code, output = run(folder, "--config", str(config), *SHARED)
    assert code == 0, output
    return only_run(folder)


def test_two_deepspeed_processes_train_a_run_to_its_end(shared: RunFolder) -> None:
    summary = json.loads(shared.summary_file.read_text())
    assert summary["outcome"] == "completed" and summary["epochs"] == 2 and summary["steps"] >= 4
    assert (summary["conservation"]["missing"], summary["conservation"]["duplicate"]) == (0, 0)
    log = (shared.logs / "trainer.log").read_text()
    assert log.count("rods.trainer completed") == 2, "both processes end by themselves"


def test_its_replay_decides_and_scores_the_same_and_learns_within_the_tolerance(shared: RunFolder) -> None:
    """One process repeats what two did, so its sums have another order."""
    process = rods("replay", str(shared.path), "--json")
    output, _ = process.communicate(timeout=DEADLINE_S)
    verdicts = json.loads(output.splitlines()[-1])["verdicts"]
    assert (verdicts["decisions"], verdicts["rewards"]) == ("equal", "equal"), output
    assert verdicts["learning"] in ("equal", "tolerance"), output
    assert process.returncode == (0 if verdicts["learning"] == "equal" else 1), output


def test_a_killed_trainer_of_two_processes_ends_as_if_undisturbed(
    shared: RunFolder, config: Path, tmp_path: Path
) -> None:
    def disturb(pid: int, step: int) -> None:
        if step == 2:
            kill(pid, "trainer")

    code, output = run(tmp_path, "--config", str(config), *SHARED, at_step=disturb)
    assert code == 0 and "trainer ended" in output, output
    assert outcome(only_run(tmp_path)) == outcome(shared)
