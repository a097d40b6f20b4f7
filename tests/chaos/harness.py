"""Kills processes of a run in named states and checks that nothing shows.

A kill point is (victim, event, occurrence): the harness follows the run's topics, and the moment it hears that occurrence of
that event it stops the victim where it stands (SIGSTOP), then kills it (SIGKILL). The state is the run's; where the victim's
code stands is chance. A :class:`Spot` is an exact place in the victim's code, where it ends itself with SIGKILL. The run must
end by itself with the pool, the batches and the weights of a run that nothing happened to.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from commands.folder import RunFolder
from schemas import TOPICS
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import partitions_of

ROOT = Path(__file__).parent.parent.parent
PATTERNS = {
    "broker": "tansu",
    "worker": "cli worker",
    "trainer": "cli train",
    "synthesizer": "cli synthesizer",
    "archiver": "cli archiver",
    "rollout": "cli rollout",
}
"""What the command line of each process holds."""
STATES = (
    ("EpochPlanned", 1, 1),
    ("BatchPlanned", 1, 2),
    ("TrajectoryRecorded", 1, 34),
    ("TrajectoryRecorded", 9, 34),
    ("RolloutGroupCompleted", 1, 8),
    ("RolloutGroupCompleted", 3, 8),
    ("StepCompleted", 1, 2),
    ("BoundaryDetected", 1, 2),
    ("TaskSynthesized", 1, 2),
    ("TaskRetired", 1, 1),
    ("EvaluationCompleted", 1, 1),
)
"""(event, first occurrence, how many occurrences later the next one is) at which a victim may be pinned."""
RUN_DEADLINE_S = 900.0


@dataclass(frozen=True, slots=True)
class KillPoint:
    """Who dies when.

    Attributes:
        victim: process.
        event: event type.
        occurrence: which one of the run, from 1.
    """

    victim: str
    event: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.victim} at {self.event} #{self.occurrence}"


@dataclass(frozen=True, slots=True)
class Spot:
    """Where in its code a process dies, once.

    Attributes:
        victim: process.
        module: module of ours.
        name: function, or Class.method.
        when: ``before`` or ``after`` the call.
        nth: which call of one process, from 1.
        state: what is done and what is not, for people.
    """

    victim: str
    module: str
    name: str
    when: str
    nth: int
    state: str

    def __str__(self) -> str:
        return f"{self.victim} {self.when} {self.name} #{self.nth}: {self.state}"

    def mark(self, folder: Path) -> Path:
        """The file that says that it happened."""
        return folder / f"{self.victim}-{self.when}-{self.name}-{self.nth}"

    def trap(self, folder: Path) -> dict[str, object]:
        """What ``tests/chaos/at/sitecustomize.py`` reads."""
        return {
            "process": PATTERNS[self.victim],
            "module": self.module,
            "name": self.name,
            "when": self.when,
            "nth": self.nth,
            "mark": str(self.mark(folder)),
        }


@dataclass(slots=True)
class Disturbance:
    """What happened in one disturbed run."""

    points: list[KillPoint]
    done: list[KillPoint] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    exit_code: int = -1


def pids_of(parent: int, victim: str) -> list[int]:
    """Processes of a run by role."""
    found = subprocess.run(
        ["pgrep", "-P", str(parent), "-f", PATTERNS[victim]], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


def kill(parent: int, victim: str) -> bool:
    """Stop a process where it stands, then kill it; whether there was one."""
    pids = pids_of(parent, victim)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                continue
    return bool(pids)


class Watcher(threading.Thread):
    """Follows a run's topics and kills at the kill points; a new broker address starts it over where it was."""

    def __init__(self, pid: int, disturbance: Disturbance) -> None:
        super().__init__(daemon=True)
        self._pid, self._disturbance = pid, disturbance
        self._open = list(disturbance.points)
        self._seen: set[str] = set()
        self._counts: Counter = Counter()
        self._address = ""
        self._changed = threading.Condition()
        self._over = False

    def broker_at(self, address: str) -> None:
        """The run has (another) broker."""
        with self._changed:
            self._address = address
            self._changed.notify_all()

    def end(self) -> None:
        """The run is over."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def run(self) -> None:
        """Follow one broker after the other."""
        watched = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=watched: self._over or self._address != seen)
                if self._over:
                    return
                watched = self._address
            self._follow(watched)

    def _follow(self, address: str) -> None:
        connection = Connection(address, True)
        log = KafkaLog(connection, broker_silence_s=2.0)
        observer = EventReader(log, TOPICS, partitions_of(connection))
        try:
            while not self._over and self._address == address and self._open:
                for event in observer.poll(0.2):
                    self._hear(event.event_id, type(event).__name__)
        except LogUnavailable:
            return
        finally:
            log.close()

    def _hear(self, event_id: str, name: str) -> None:
        if event_id in self._seen:
            return
        self._seen.add(event_id)
        self._counts[name] += 1
        for point in [p for p in self._open if p.event == name and p.occurrence <= self._counts[name]]:
            if kill(self._pid, point.victim):
                self._open.remove(point)
                self._disturbance.done.append(point)


def disturbed_run(
    folder: Path,
    config: Path,
    points: Iterable[KillPoint],
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Disturbance:
    """A run with kills; returns when it has ended."""
    disturbance = Disturbance(list(points))
    settings = [part for override in ("run.restarts=200", *overrides) for part in ("--set", override)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **environment}
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), "run", "--config", str(config), "--runs", str(folder), *settings],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    watcher = Watcher(process.pid, disturbance)
    watcher.start()
    for line in process.stdout:
        disturbance.output.append(line)
        if match := re.search(r"broker: embedded, on (\S+)", line):
            watcher.broker_at(match[1])
    disturbance.exit_code = process.wait(RUN_DEADLINE_S)
    watcher.end()
    watcher.join(30)
    return disturbance


def run_with_deaths(
    folder: Path, config: Path, spots: Sequence[Spot], overrides: Iterable[str] = ()
) -> tuple[Disturbance, list[Spot]]:
    """A run whose processes die at exact places of their code, and the places where one did."""
    marks = folder.with_name(f"{folder.name}-marks")
    marks.mkdir(parents=True)
    environment = {
        "PYTHONPATH": str(ROOT / "tests" / "chaos" / "at"),
        "RODS_KILLS_AT": json.dumps([spot.trap(marks) for spot in spots]),
    }
    disturbance = disturbed_run(folder, config, [], overrides, environment)
    return disturbance, [spot for spot in spots if spot.mark(marks).exists()]


def only_run(folder: Path) -> RunFolder:
    """The one run in a folder."""
    (path,) = [p for p in folder.iterdir() if p.is_dir()]
    return RunFolder(path)
