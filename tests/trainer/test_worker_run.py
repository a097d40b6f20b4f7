"""`rods run` with rollout workers: one of them is killed while it plays, and the run repeats to the last bit."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.conservation import duplicate, missing, num_late
from commands.folder import RunFolder
from schemas.events import GroupClaimed, RolloutGroupCompleted, StepCompleted, TrajectoryRecorded
from streams.archive.segments import ArchiveLog
from streams.log.reader import EventReader

ROOT = Path(__file__).parent.parent.parent
CONFIG = Path(__file__).parent / "worker_run.toml"
DEADLINE_S = 400.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def rods(*arguments):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *arguments],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def workers_of(pid):
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "cli rollout"], capture_output=True, text=True, check=False)
    return [int(worker) for worker in found.stdout.split()]


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """A run with two workers, one of which is killed after the first step; its folder and its output."""
    folder = tmp_path_factory.mktemp("runs")
    process = rods(
        "run",
        "--config",
        str(CONFIG),
        "--runs",
        str(folder),
        "--set",
        "trainer.workers.num_local=2",
        "--set",
        "trainer.workers.groups_at_once=1",
        "--set",
        "trainer.max_staleness=1",
        "--set",
        "trainer.workers.group_deadline_s=100",
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.match(r"step +1 ", line):
            os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    assert process.wait(DEADLINE_S) == 0, "".join(lines)
    (run,) = [path for path in folder.iterdir() if path.is_dir()]
    return RunFolder(run), "".join(lines)


def events_of(run, kind):
    archive = ArchiveLog(run.archive)
    reader = EventReader(archive, list(archive.partitions), archive.partitions, run.run_id, "test")
    return [event for event in reader.catch_up() if isinstance(event, kind)]


def test_the_run_goes_to_its_end_and_every_planned_group_has_ended_once(disturbed):
    run, output = disturbed
    assert re.search(r"rollout-\d ended with exit code -9 and is started again \(1\)", output)
    facts = run.facts()
    assert missing(facts) == duplicate(facts) == [] and len(events_of(run, StepCompleted)) == 4
    groups = events_of(run, RolloutGroupCompleted)
    assert len(groups) == 8 + num_late(facts) and {g.worker for g in groups} <= {"rollout-0", "rollout-1"}
    assert {claim.worker for claim in events_of(run, GroupClaimed)} == {"rollout-0", "rollout-1"}


def test_every_rollout_names_its_format_and_parameters_and_none_is_older_than_the_bound(disturbed):
    run, _ = disturbed
    bodies = events_of(run, TrajectoryRecorded)
    assert {len(body.format_hash) for body in bodies} == {64} and len({body.format_hash for body in bodies}) == 1
    assert all(
        '"max_message_tokens":96' in body.sampling_json and '"stop_ids":[' in body.sampling_json for body in bodies
    )
    assert {body.step - 1 - body.policy_version for body in bodies} <= {0, 1}


def test_the_run_is_decided_learned_and_scored_again_from_its_archive_alone(disturbed):
    run, _ = disturbed
    process = rods("replay", str(run.path))
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert output.count("equal") == 4
