"""A trainer and rollout workers as processes over a real broker; one of them is killed, one of them is late."""

import os
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

from schemas import BY_NAME
from schemas.events import (
    BatchPlanned,
    GroupReopened,
    GroupStatus,
    RolloutGroupCompleted,
    RunFinished,
    StepCompleted,
    TrajectoryRecorded,
)
from streams.log.kafka import KafkaLog
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from streams.processes import Child
from tests.trainer.test_loop import RUN, planned_events, setup_of
from tests.trainer.test_loop import new_log as inline_log
from trainer.loop import train

WAIT_S = 240.0
pytestmark = pytest.mark.timeout(600)


class Run:
    """The toy run on a broker: its processes and what they wrote."""

    def __init__(self, connection, folder):
        self.connection, self.folder, self.children = connection, folder, []
        KafkaLog(connection).append(list(planned_events()))

    def child(self, role, name="w0", *arguments):
        command = [
            sys.executable,
            "-m",
            "tests.trainer.worker_process",
            role,
            "--connection",
            self.connection.to_json(),
            "--folder",
            str(self.folder),
            "--name",
            name,
            *arguments,
        ]
        process = Child(
            name, command, self.folder / f"{role}-{name}-{len(self.children)}.log", {"OMP_NUM_THREADS": "1"}
        )
        self.children.append(process.start())
        return process

    def pipe(self, name):
        path = self.folder / name
        os.mkfifo(path)
        return path

    def events(self, kind):
        topic = BY_NAME[kind.__name__].topic
        reader = EventReader(KafkaLog(self.connection), [topic], partitions_of(self.connection), RUN, "test")
        return [event for event in reader.catch_up() if isinstance(event, kind)]

    def digests(self):
        return {event.step: event.weights_digest for event in self.events(StepCompleted)}


@contextmanager
def run_on(connection, folder):
    run = Run(connection, folder)
    try:
        yield run
    finally:
        for child in run.children:
            child.kill()


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    log = inline_log()
    train(setup_of(log, tmp_path_factory.mktemp("inline"), suites=()))
    reader = EventReader(log, ["steps"], {"steps": 1}, RUN, "test")
    return {event.step: event.weights_digest for event in reader.catch_up() if isinstance(event, StepCompleted)}


def test_a_worker_killed_in_the_middle_of_a_group_is_replaced_and_the_weights_are_those_of_the_undisturbed_run(
    connection, tmp_path, inline
):
    with run_on(connection, tmp_path) as run:
        pipe = run.pipe("pipe")
        trainer = run.child("trainer")
        first = run.child("worker", "w0", "--pipe", str(pipe), "--num-bodies", "2")
        first.await_file(tmp_path / "pipe.reached", WAIT_S)
        assert len(run.events(TrajectoryRecorded)) == 2 and run.events(RolloutGroupCompleted) == []
        first.kill()
        run.child("worker", "w0")
        trainer.process.wait(WAIT_S)
        assert trainer.exit_code == 0, trainer.last_words()
        groups = run.events(RolloutGroupCompleted)
        planned = {(plan.step, task_id) for plan in run.events(BatchPlanned) for task_id in plan.task_ids}
        assert Counter((g.step, g.task_id) for g in groups) == dict.fromkeys(planned, 1)
        assert {g.status for g in groups} == {GroupStatus.COMPLETED}
        reopened = {(e.step, e.task_id): e.attempt for e in run.events(GroupReopened)}
        assert reopened and all(g.attempt == reopened.get((g.step, g.task_id), 0) for g in groups)
        assert run.digests() == inline and len(run.events(RunFinished)) == 1


def test_a_straggler_is_taken_over_at_the_deadline_and_its_late_first_attempt_is_counted_and_not_learned_from(
    connection, tmp_path
):
    with run_on(connection, tmp_path) as run:
        pipe = run.pipe("pipe")
        trainer = run.child("trainer", "t", "--deadline-s", "6")
        slow = run.child("worker", "slow", "--pipe", str(pipe), "--num-bodies", "1")
        slow.await_file(tmp_path / "pipe.reached", WAIT_S)
        run.child("worker", "quick")
        trainer.process.wait(WAIT_S)
        assert trainer.exit_code == 0, trainer.last_words()
        with pipe.open("w"):
            pass
        slow.process.wait(WAIT_S)
        assert slow.exit_code == 0, slow.last_words()
        groups = run.events(RolloutGroupCompleted)
        taken = {(e.step, e.task_id) for e in run.events(GroupReopened)}
        assert taken and {g.worker for g in groups if (g.step, g.task_id) in taken} == {"quick"}
        assert f"num_late {len(taken)}" in slow.last_words()
        bodies = run.events(TrajectoryRecorded)
        late = [b for b in bodies if b.worker == "slow" and (b.step, b.task_id) in taken]
        learned = {body for g in groups for body in g.trajectory_ids}
        assert len(late) == 3 * len(taken) and not {b.trajectory_id for b in late} & learned
