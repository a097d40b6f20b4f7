"""A few kills in named states on every `make test`; the whole campaign is `make chaos`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.campaign import CONFIG, VICTIMS, points
from tests.chaos.harness import ROOT, STATES, Disturbance, KillPoint, disturbed_run, only_run, run_with_deaths
from tests.chaos.outcome import outcome
from tests.chaos.spots import SPOTS, WORKER_SPOTS, WORKERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PINNED = [
    KillPoint("trainer", "TrajectoryRecorded", 5),
    KillPoint("worker", "RolloutGroupCompleted", 6),
    KillPoint("broker", "StepCompleted", 2),
    KillPoint("synthesizer", "BoundaryDetected", 1),
    KillPoint("archiver", "TaskSynthesized", 1),
    KillPoint("trainer", "StepCompleted", 4),
    KillPoint("broker", "TrajectoryRecorded", 70),
    KillPoint("worker", "EpochPlanned", 3),
]


def undisturbed(folder: Path, overrides: Sequence[str] = ()) -> dict:
    """What a run comes to that nothing happened to."""
    run = disturbed_run(folder, CONFIG, [], overrides)
    assert run.exit_code == 0, "".join(run.output)
    return outcome(only_run(folder))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """With rollouts in the trainer's process."""
    return undisturbed(tmp_path_factory.mktemp("calm"))


def assert_nothing_shows(folder: Path, run: Disturbance, calm: dict) -> None:
    """The same end, and a log whose decisions can be made again."""
    assert run.exit_code == 0, "".join(run.output)
    assert outcome(only_run(folder)) == calm
    assert_decisions_repeat(folder)


def assert_decisions_repeat(folder: Path) -> None:
    """The log holds the inputs of every decision in it."""
    replayed = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "replay", str(only_run(folder).path), "--parts", "decisions"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_processes_killed_in_named_states_change_nothing(calm: dict, tmp_path: Path) -> None:
    run = disturbed_run(tmp_path / "run", CONFIG, PINNED)
    assert len(run.done) >= 6, f"only {run.done} were killed"
    assert_nothing_shows(tmp_path / "run", run, calm)


def test_processes_that_die_at_exact_places_of_their_code_change_nothing(calm: dict, tmp_path: Path) -> None:
    run, died = run_with_deaths(tmp_path / "run", CONFIG, SPOTS)
    assert died == list(SPOTS), [str(spot) for spot in SPOTS if spot not in died]
    assert_nothing_shows(tmp_path / "run", run, calm)


def test_rollout_workers_that_die_change_nothing(tmp_path: Path) -> None:
    calm = undisturbed(tmp_path / "calm", WORKERS)
    run, died = run_with_deaths(tmp_path / "run", CONFIG, WORKER_SPOTS, WORKERS)
    assert died == list(WORKER_SPOTS), [str(spot) for spot in WORKER_SPOTS if spot not in died]
    assert_nothing_shows(tmp_path / "run", run, calm)


def test_a_run_that_does_not_wait_for_variants_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """What is decided then hangs on timing, and must stay as it was once said."""
    run = disturbed_run(tmp_path / "run", CONFIG, PINNED, ("pool.await_synthesis=false",))
    assert run.exit_code == 0 and len(run.done) >= 6, "".join(run.output)
    conservation = outcome(only_run(tmp_path / "run"))["conservation"]
    assert (conservation["missing"], conservation["duplicate"]) == (0, 0)
    assert_decisions_repeat(tmp_path / "run")


def test_the_campaign_covers_every_victim_in_every_state() -> None:
    planned = [point for run in points(10_000) for point in run]
    assert len(planned) == len(set(planned)) == 4 * len(VICTIMS) * len(STATES)
    assert {p.victim for p in planned[:20]} == set(VICTIMS) and len({p.event for p in planned[:60]}) == len(
        {state[0] for state in STATES}
    )
