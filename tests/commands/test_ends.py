"""How a run ends, and that one which was left before its last epoch is known as left and may go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.checkup import Checkup
from analysis.index import LogIndex, RunIndex
from analysis.summary import summary_of
from commands.config import load_config
from commands.folder import RunFolder
from commands.roles import train
from commands.roles.metrics import RunBoard
from commands.roles.process import Process, tell_end, was_left
from commands.roles.synthesizer import ServedRuns
from schemas import Event, make
from schemas.events import RunFinished, RunOutcome, RunStarted
from streams.archive.journal import Journal
from streams.archive.scan import scanned
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import as_record, partition_counts
from streams.log.reader import EventReader
from streams.log.topics import ensure_topics, partitions_of
from streams.pool.pool import fold, initial
from streams.processes import Child
from synthesizer.llm.prompts import PromptMissing
from tests.stack.stack import ROOT
from tests.streams.building import RUN, opening, run_finished

SMALL = ROOT / "tests" / "commands" / "small.toml"
PARTITIONS = partition_counts(("runs", "tasks", "steps"), 1, 1)
OPENED = opening(3, 2, {"batch_size": 3})
LEFT = [RunOutcome.INTERRUPTED, RunOutcome.FAILED]


def left(outcome: RunOutcome, run_id: str = RUN) -> RunFinished:
    return make(RunFinished, run_id, outcome=outcome, step=0, epoch=0, reason="as told", weights_digest="w")


@pytest.mark.parametrize("outcome", LEFT)
def test_a_run_that_was_left_may_be_decided_for_again(outcome: RunOutcome) -> None:
    assert not fold(initial(), [*OPENED, left(outcome)]).finished
    assert fold(initial(), [*OPENED, left(outcome), run_finished(6, 1)]).finished
    said = [*OPENED, left(outcome)]
    records = [as_record(event, PARTITIONS)._replace(offset=at) for at, event in enumerate(said)]
    log = LogIndex(whole=True).add_records(map(scanned, records))
    assert not Checkup(log, RUN).has_ended and not log.run(RUN).pool.finished


@pytest.mark.parametrize("outcome", LEFT)
def test_the_last_word_counts_until_the_run_says_that_it_started_once_more(outcome: RunOutcome) -> None:
    told, again, done = left(outcome), OPENED[0], run_finished(6, 1)
    for events, wanted in (
        ([], "unfinished"),
        ([told], outcome.value),
        ([told, again], "unfinished"),
        ([told, again, told], outcome.value),
        ([told, again, done], "completed"),
        ([told, again, done, again], "completed"),
    ):
        assert summary_of(RunIndex().add([*OPENED, *events]))["outcome"] == wanted
        assert was_left([*OPENED, *events]) is (wanted == outcome.value)


@pytest.mark.parametrize("outcome", LEFT)
def test_nobody_is_said_to_keep_a_run_waiting_that_was_left(outcome: RunOutcome) -> None:
    now = [0.0]
    board = RunBoard(10.0, lambda: now[0])
    board.add(OPENED)
    now[0] = 20.0
    assert "EpochPlanned" in board.complaints()[RUN]
    board.add([left(outcome)])
    now[0] = 40.0
    assert board.complaints() == {}
    assert not [sample for family in board.collect() if family.name == "rods_waiting" for sample in family.samples]
    board.add([OPENED[0]])
    now[0] = 60.0
    assert "EpochPlanned" in board.complaints()[RUN]


@pytest.mark.parametrize("outcome", [*LEFT, RunOutcome.COMPLETED])
def test_the_synthesizer_leaves_a_run_that_ended_and_serves_it_again_when_it_goes_on(
    outcome: RunOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[threading.Event] = []
    begun = threading.Semaphore(0)

    def serve(process: Process) -> int:
        served.append(process.stop)
        begun.release()
        process.stop.wait()
        return 0

    monkeypatch.setattr("commands.roles.synthesizer.serve", serve)
    runs = ServedRuns(Connection("127.0.0.1:1"), threading.Event())
    started = replace(OPENED[0], config_json=load_config(None, {}, []).as_json())
    runs.hear([started, left(outcome), started])
    assert begun.acquire(timeout=20) and not served[0].is_set()
    runs.hear([left(outcome)])
    assert served[0].is_set()
    runs.hear([started])
    assert begun.acquire(timeout=20) and len(served) == 2 and not served[1].is_set()
    runs.hear([left(outcome)])


def test_a_run_that_cannot_be_served_is_named_whatever_the_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serve(process: Process) -> int:
        raise PromptMissing("no file planner.md")

    monkeypatch.setattr("commands.roles.synthesizer.serve", serve)
    stop = threading.Event()
    runs = ServedRuns(Connection("127.0.0.1:1"), stop)
    runs.hear([replace(OPENED[0], config_json=load_config(None, {}, []).as_json())])
    for thread in threading.enumerate():
        if thread.daemon and thread.name == RUN:
            thread.join(20)
    assert runs.complaint() == f"{RUN}: no file planner.md" and not stop.is_set()
    runs.hear([left(RunOutcome.FAILED)])
    assert runs.complaint() == ""


def words(connection: Connection, run_id: str) -> list[str]:
    """Starts and ends of a run as the log has them."""
    log = KafkaLog(connection)
    events: list[Event] = EventReader(log, ("runs",), partitions_of(connection), run_id).catch_up()
    log.close()
    known = [event for event in events if isinstance(event, RunStarted | RunFinished)]
    return ["started" if isinstance(event, RunStarted) else event.outcome.value for event in known]


def test_an_end_is_told_once_and_only_of_a_run_that_was_begun(connection: Connection) -> None:
    tell_end(connection, RUN, RunOutcome.FAILED, "nothing came")
    assert words(connection, RUN) == []
    log = KafkaLog(connection)
    log.append(OPENED)
    for outcome in LEFT:
        tell_end(connection, RUN, outcome, "asked to stop")
    assert words(connection, RUN) == ["started", "interrupted"]
    log.append([OPENED[0], run_finished(6, 1)])
    log.close()
    tell_end(connection, RUN, RunOutcome.FAILED, "too late")
    assert words(connection, RUN) == ["started", "interrupted", "started", "completed"]


@pytest.fixture
def trainer(own_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[list[str]]:
    """The command line of a stack's trainer, on a broker where nobody decides."""
    values = {
        "kafka.bootstrap_servers": own_broker.bootstrap_servers,
        "run.folder": tmp_path / "runs",
        "trainer.eval_rollouts": 0,
        "trainer.trackers": "[]",
        "synthesis.deadline_s": 0.1,
    }
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "cli", "train", "r1", "--config", str(SMALL), *settings]


@pytest.mark.timeout(180)
def test_a_trainer_that_fails_or_is_stopped_says_so_and_the_next_start_says_that_the_run_goes_on(
    trainer: list[str], own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    connection = Connection(own_broker.bootstrap_servers)
    failing = Child("failing", [*trainer, "--set", "trainer.patience_s=0.2"], tmp_path / "failing.log").start()
    assert failing.process.wait(90) == 2 and "is the streams worker running?" in failing.last_words()
    assert words(connection, "r1") == ["started", "failed"]
    ready = tmp_path / "ready"
    (tmp_path / "runs" / "r1" / "config.json").unlink()
    stopped = Child("stopped", [*trainer, "--ready-file", str(ready)], tmp_path / "stopped.log").start()
    stopped.await_file(ready, 90)
    os.kill(stopped.process.pid, signal.SIGTERM)
    assert stopped.process.wait(60) == 3, stopped.last_words()
    assert words(connection, "r1") == ["started", "failed", "started", "interrupted"]


def test_the_trainer_closes_every_log_and_journal_it_opens(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(own_broker.bootstrap_servers, embedded=True)
    ensure_topics(connection)
    made, closed = [], []
    for kind in (KafkaLog, Journal):
        begin, end = kind.__init__, kind.close
        monkeypatch.setattr(
            kind, "__init__", lambda self, *a, begin=begin, **k: (made.append(self), begin(self, *a, **k))[1]
        )
        monkeypatch.setattr(kind, "close", lambda self, end=end: (closed.append(self), end(self))[1])
    config = load_config(SMALL, {}, ["trainer.eval_rollouts=0", "trainer.trackers=[]"])
    stop = threading.Event()
    stop.set()
    folder = RunFolder(tmp_path / "r1").create(config)
    assert train.work(Process(config, connection, stop, folder)) is RunOutcome.INTERRUPTED
    assert any(isinstance(item, Journal) for item in made)
    assert {id(item) for item in made} == {id(item) for item in closed}


def test_an_epoch_that_waits_for_the_synthesizer_is_waited_for_as_long_as_a_synthesis_may_take() -> None:
    waits = load_config(None, {}, ["pool.await_synthesis=true"])
    assert waits.trainer.patience_s + waits.synthesis_wait_s > waits.synthesis.deadline_s
    assert load_config(None, {}, ["pool.await_synthesis=false"]).synthesis_wait_s == 0.0
