"""The service as real processes over a real broker, asking a model server over HTTP: kills, drains, groups."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from commands.config import load_config
from commands.folder import RunFolder
from commands.roles.process import role_command
from environments.registry import load_tasks
from schemas import make
from schemas.events import BoundaryDetected, Event, SynthesisFailed, TaskSeeded, TaskSynthesized
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from streams.pool.membership import Membership
from streams.processes import Child
from synthesizer.service import SIGNALS, TOPICS
from tests.synthesizer.building import signal_for

ROOT = Path(__file__).parents[2]
WORKSHOP = [
    replace(task, initial_config_json=task.initial_config_json.replace('"price": 4.5', f'"price": {5 + place}'))
    for place, task in enumerate(load_tasks("train", "workshop"))
]
"""The workshop's seeds with prices of their own: all its tasks share one state, and held-out states may not recur."""
DEADLINE_S = 90.0


@pytest.fixture
def model_server() -> Iterator[str]:
    """The address of a playing server in a process of its own; each answer takes 25 ms."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.playing_server", "--latency-ms", "25"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    process.kill()
    process.wait()


class Bench:
    """One run: its folder, its log, and synthesizer processes."""

    def __init__(self, folder: Path, connection: Connection, url: str, *overrides: str) -> None:
        settings = [
            "tasks.environment=workshop",
            'tasks.train=["workshop_base_0"]',
            'tasks.heldout=["workshop_base_4"]',
            "synthesis.backend=llm",
            f"synthesis.llm.base_url={url}",
            "synthesis.max_in_flight=8",
            *overrides,
        ]
        self.folder = RunFolder(folder / "run-kill").create(load_config(None, {}, settings))
        self.connection = connection
        self.partitions = partitions_of(connection)
        self.log = KafkaLog(connection)
        self.reader = EventReader(KafkaLog(connection), TOPICS, self.partitions, self.folder.run_id, "test")
        self.events: list[Event] = []

    def launch(self, name: str) -> Child:
        """Start one synthesizer and wait until it has folded the log."""
        ready = self.folder.path / f"{name}.ready"
        ready.unlink(missing_ok=True)
        options = ("--run-folder", str(self.folder.path), "--ready-file", str(ready))
        command = role_command("synthesizer", self.connection, *options)
        child = Child(name, command, self.folder.logs / f"{name}.log").start()
        child.await_file(ready, 60)
        return child

    def seed(self, num_signals: int, send: bool = True) -> list[BoundaryDetected]:
        """Write every workshop seed and some signals; returns the signals."""
        run_id = self.folder.run_id
        tasks = [make(TaskSeeded, run_id, task=task, position=place) for place, task in enumerate(WORKSHOP)]
        self.log.append(tasks)
        signals = []
        for number in range(num_signals):
            like = signal_for(WORKSHOP[number % len(WORKSHOP)], step=1 + number // len(WORKSHOP))
            fields = {
                name: getattr(like, name) for name in like.__slots__ if name not in ("event_id", "signal_id", "run_id")
            }
            signals.append(make(BoundaryDetected, run_id, **fields))
        if send:
            self.log.append(signals)
        return signals

    def await_outcomes(self, enough: Callable[[int], bool], patience_s: float = DEADLINE_S) -> int:
        """Read until the number of distinct terminal events satisfies; returns it."""
        give_up_s = time.monotonic() + patience_s
        while True:
            count = len({event.signal_id for event in self.terminals()})
            if enough(count):
                return count
            assert time.monotonic() < give_up_s, f"{count} outcomes in {patience_s:.0f} s"
            self.events += self.reader.poll(0.05)

    def terminals(self) -> list[TaskSynthesized | SynthesisFailed]:
        """Terminal events heard so far, each id once."""
        return [event for event in self.events if isinstance(event, (TaskSynthesized, SynthesisFailed))]

    def close(self) -> None:
        """Let go of the broker."""
        self.log.close()


@pytest.fixture
def bench(tmp_path: Path, connection: Connection, model_server: str) -> Iterator[Bench]:
    """A run with a model server behind it."""
    made = Bench(tmp_path, connection, model_server)
    yield made
    made.close()


def test_fifty_signals_and_kills_at_random_points_end_in_fifty_outcomes_and_no_task_twice(bench: Bench):
    signals, rng, num_kills = bench.seed(50, send=False), random.Random(11), 0
    for first in range(0, 50, 10):
        child = bench.launch("synthesizer")
        bench.log.append(signals[first : first + 10])
        target = first + rng.randrange(0, 8)
        bench.await_outcomes(lambda count, target=target: count >= target)
        child.kill()
        num_kills += 1
    child = bench.launch("synthesizer")
    bench.await_outcomes(lambda count: count == 50)
    child.stop(20)
    assert child.exit_code == 0
    bench.events += bench.reader.catch_up()
    ends = Counter(event.signal_id for event in bench.terminals())
    assert ends.keys() == {event.signal_id for event in signals} and set(ends.values()) == {1}
    admitted = [event.task.task_id for event in bench.terminals() if isinstance(event, TaskSynthesized)]
    assert len(admitted) == len(set(admitted)) >= 40 and num_kills == 5
    assert len({event.fingerprint for event in bench.terminals() if isinstance(event, TaskSynthesized)}) == len(
        admitted
    )
    print(f"{num_kills} kills, {len(admitted)} admitted, {bench.reader.num_duplicates} duplicate records")


def test_a_stopped_service_has_committed_behind_its_last_outcome_and_a_new_one_answers_nothing_again(bench: Bench):
    bench.seed(6)
    child = bench.launch("synthesizer")
    bench.await_outcomes(lambda count: count == 6)
    child.stop(20)
    member = Membership(bench.connection, "rods-synthesizer-run-kill", SIGNALS, bench.partitions[SIGNALS])
    assert sum(member.committed(bench.partitions[SIGNALS]).values()) == 6
    member.close()
    again = bench.launch("synthesizer")
    again.stop(20)
    bench.events += bench.reader.catch_up()
    assert len(bench.terminals()) == 6 and bench.reader.num_duplicates == 0
    assert "answered 0 signals" in again.last_words() and again.exit_code == 0


def test_in_a_group_one_member_works_and_another_takes_over_when_it_dies(
    tmp_path: Path, connection: Connection, model_server: str
):
    bench = Bench(tmp_path, connection, model_server, "synthesis.consumer=group")
    first = bench.launch("first")
    bench.seed(10)
    bench.await_outcomes(lambda count: count >= 3)
    second = bench.launch("second")
    first.kill()
    bench.await_outcomes(lambda count: count == 10)
    second.stop(20)
    bench.events += bench.reader.catch_up()
    ends = Counter(event.signal_id for event in bench.terminals())
    assert len(ends) == 10 and set(ends.values()) == {1}
    bench.close()


def test_a_service_asked_to_stop_in_the_middle_writes_what_is_in_flight(bench: Bench):
    bench.seed(30)
    child = bench.launch("synthesizer")
    bench.await_outcomes(lambda count: count >= 1)
    child.process.send_signal(signal.SIGTERM)
    child.process.wait(20)
    bench.events += bench.reader.catch_up()
    written = len(bench.terminals())
    assert child.exit_code == 0 and f"answered {written} signals" in child.last_words() and 1 <= written <= 30


def test_a_scripted_service_answers_in_the_order_of_the_signals(tmp_path: Path, connection: Connection):
    bench = Bench(tmp_path, connection, "http://127.0.0.1:1/v1", "synthesis.backend=scripted")
    child = bench.launch("synthesizer")
    signals = bench.seed(24)
    bench.await_outcomes(lambda count: count == 24)
    child.stop(20)
    failed = [event.signal_id for event in bench.terminals() if isinstance(event, SynthesisFailed)]
    made = [event.signal_id for event in bench.terminals() if isinstance(event, TaskSynthesized)]
    order = {event.signal_id: place for place, event in enumerate(signals)}
    assert failed == sorted(failed, key=order.get) and made == sorted(made, key=order.get)
    bench.close()
