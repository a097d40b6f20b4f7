"""A few kills in named states on every `make test`; the whole campaign is `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.campaign import CONFIG, VICTIMS, points
from tests.chaos.harness import STATES, KillPoint, disturbed_run, only_run
from tests.chaos.outcome import outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PINNED = [
    KillPoint("trainer", "TrajectoryRecorded", 5), KillPoint("worker", "RolloutGroupCompleted", 6),
    KillPoint("broker", "StepCompleted", 2), KillPoint("synthesizer", "BoundaryDetected", 1),
    KillPoint("archiver", "TaskSynthesized", 1), KillPoint("trainer", "StepCompleted", 4),
    KillPoint("broker", "TrajectoryRecorded", 70), KillPoint("worker", "EpochPlanned", 3),
]


def test_processes_killed_in_named_states_change_nothing(tmp_path: Path) -> None:
    calm = disturbed_run(tmp_path / "calm", CONFIG, [])
    assert calm.exit_code == 0, "".join(calm.output)
    run = disturbed_run(tmp_path / "disturbed", CONFIG, PINNED)
    assert run.exit_code == 0, "".join(run.output)
    assert len(run.done) >= 6, f"only {run.done} were killed"
    assert outcome(only_run(tmp_path / "disturbed")) == outcome(only_run(tmp_path / "calm"))


def test_the_campaign_covers_every_victim_in_every_state() -> None:
    planned = [point for run in points(10_000) for point in run]
    assert len(planned) == len(set(planned)) == 4 * len(VICTIMS) * len(STATES)
    assert {p.victim for p in planned[:20]} == set(VICTIMS) and len({p.event for p in planned[:60]}) == len({state[0] for state in STATES})
