"""Forks through the command: whose child they are is in the log, and one that fails leaves nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from analysis.fork import ForkMode, NothingToFork, renamed, shared_past
from analysis.index import RunIndex
from analysis.lineage import lineage
from analysis.summary import summary_of
from commands import explain, fork
from commands.config import ConfigError, load_config
from commands.folder import RunFolder
from commands.fork import events_of, start_of
from commands.report import report_html
from commands.status import summary_table
from schemas import Event
from schemas.events import BatchPlanned, TaskSynthesized
from streams.log.port import LogGap
from streams.pool.settings import PoolConfig
from tests.streams.recorded import SETTINGS, record_run
from tests.streams.scripted import of
from tests.trainer.toys import toy_model
from trainer.weights.checkpoint import write_checkpoint

AT = 5


@pytest.fixture
def parent(tmp_path: Path) -> RunFolder:
    return recorded_at(tmp_path)


def recorded_at(runs: Path, *overrides: str) -> RunFolder:
    config = load_config(None, {}, overrides).model_copy(update={"pool": PoolConfig(**SETTINGS)})
    folder = RunFolder(runs / "run-1").create(config)
    record_run(folder.archive)
    write_checkpoint(folder.checkpoints, 0, toy_model(), None, {}, b"", 1)
    return folder


def forked(parent: RunFolder, *overrides: str, at: int = AT, mode: ForkMode = ForkMode.RETRAIN) -> RunFolder:
    return fork.fork(parent, at, mode, overrides, parent.path.parent)


def folders(runs: Path) -> set[str]:
    return {path.name for path in runs.iterdir()}


def test_the_log_of_a_fork_names_parent_step_and_mode(parent: RunFolder) -> None:
    made = forked(parent, "trainer.learning_rate=0.5")
    events = events_of(made)
    started, theirs = start_of(events), start_of(events_of(parent))
    assert (started.parent_run_id, started.forked_at_step, started.fork_mode) == ("run-1", AT, "retrain")
    assert started.caused_by == theirs.event_id and started.run_id == made.run_id != "run-1"
    assert (
        json.loads(started.config_json)["trainer"]["learning_rate"] == 0.5 == made.config()["trainer"]["learning_rate"]
    )
    assert max(e.step for e in of(events, BatchPlanned)) == AT
    assert folders(parent.path.parent) == {"run-1", made.run_id}
    assert (made.checkpoints / "step-000000").is_dir()


@pytest.mark.parametrize("what", ["checkpoint", "step", "setting", "archive"])
def test_a_fork_that_fails_leaves_no_folder(parent: RunFolder, what: str) -> None:
    if what == "checkpoint":
        for path in (parent.checkpoints / "step-000000").iterdir():
            path.unlink()
    if what == "archive":
        parent.archive.rename(parent.path / "elsewhere")
    with pytest.raises((LogGap, NothingToFork, ConfigError)):
        forked(parent, *(["pool.no=1"] if what == "setting" else []), at=99 if what == "step" else AT)
    assert folders(parent.path.parent) == {"run-1"}


def test_a_run_on_a_broker_of_its_own_is_forked_onto_the_embedded_one_or_not_at_all(tmp_path: Path) -> None:
    parent = recorded_at(tmp_path, "kafka.bootstrap_servers=127.0.0.1:1")
    with pytest.raises(ConfigError, match="127.0.0.1:1.*--set kafka.bootstrap_servers="):
        forked(parent)
    with pytest.raises(ConfigError, match="shares its parent's tasks, policy and topics"):
        forked(parent, "kafka.bootstrap_servers=127.0.0.1:2")
    assert folders(tmp_path) == {"run-1"}
    made = forked(parent, "kafka.bootstrap_servers=")
    assert made.config()["kafka"]["bootstrap_servers"] == ""


def answers(run: RunFolder, task_id: str, step: int, capsys: pytest.CaptureFixture) -> list[dict]:
    capsys.readouterr()
    explain.show(task_id, step, str(run.path), "", Path("none"), True, Console())
    return json.loads(capsys.readouterr().out)["answers"]


def test_a_forks_shared_past_is_explained_as_its_parents(parent: RunFolder, capsys: pytest.CaptureFixture) -> None:
    theirs: list[Event] = events_of(parent)
    made = forked(parent)
    ends = [plan.step for plan in of(theirs, BatchPlanned) if plan.is_last_of_epoch and plan.step < AT]
    asked = {(task_id, plan.step) for plan in of(theirs, BatchPlanned) if plan.step < AT for task_id in plan.task_ids}
    asked |= {(e.task.task_id, step) for e in of(theirs, TaskSynthesized) for step in ends if e.seed_step <= step}
    assert len(asked) > 10 and ends
    for task_id, step in sorted(asked):
        assert answers(made, task_id, step, capsys) == answers(parent, task_id, step, capsys), (task_id, step)


@pytest.mark.parametrize(
    ("mode", "words"), [(ForkMode.RETRAIN, "off-policy"), (ForkMode.CONTINUE, "as part of run run-1")]
)
def test_a_person_sees_that_a_run_shares_the_past_of_another_and_whether_off_policy(
    parent: RunFolder, mode: ForkMode, words: str, capsys: pytest.CaptureFixture
) -> None:
    events = events_of(parent)
    opening = fork.opening_of(start_of(events), parent, "run-2", load_config(None, {}, []), AT, mode)
    facts = RunIndex().add([opening, *renamed(shared_past(events, AT, ForkMode.CONTINUE), "run-2")])
    summary = summary_of(facts)
    assert summary["fork"] == {
        "parent_run_id": "run-1",
        "at_step": AT,
        "mode": mode.value,
        "off_policy": mode is ForkMode.RETRAIN,
    }
    assert summary_of(RunIndex().add(events))["fork"] is None
    assert "steps 1 to 5 of run-1" in report_html(facts) and "of run-1" not in report_html(RunIndex().add(events))
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(summary_table(summary))
    assert "steps 1 to 5 of run-1" in console.export_text()
    run = RunIndex(whole=True).add([opening, *renamed(shared_past(events, AT, ForkMode.CONTINUE), "run-2")])
    told = lineage(run, f"step:{AT}")
    assert words in told.says and told.facts["parent_run_id"] == "run-1" and told.facts["fork_mode"] == mode.value
    assert "run-1" not in lineage(RunIndex(whole=True).add(events), f"step:{AT}").says


def test_explain_says_that_a_step_was_decided_in_the_parent(parent: RunFolder, capsys: pytest.CaptureFixture) -> None:
    made, console = forked(parent), Console(record=True, width=200, file=io.StringIO())
    explain.show("run-1-seed-0", 1, str(made.path), "", Path("none"), False, console)
    assert "shared with run run-1" in console.export_text()
