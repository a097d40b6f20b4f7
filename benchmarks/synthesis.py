"""Synthesis against a model server with fixed latency: rates and latency by concurrency, and what our own code costs.

``python -m benchmarks.synthesis`` prints a table; with ``--json`` the last line is one JSON object. The service is
the real process (``rods synthesizer``) over the embedded broker; the model is a server in another process that
answers every question after a fixed time, whatever the load, up to its slots. A feeder keeps as many signals open as
the concurrency says and writes the next one when an outcome arrives, so that latency is that of one synthesis at that
load.

CPU is that of the whole service process (stages, gates, guards, profile, HTTP client, Kafka client, encoding) divided
by syntheses; the model's, the broker's and this feeder's are not in it. The first outcomes, one a lane, warm up and
do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from commands.config import load_config
from commands.folder import RunFolder
from commands.roles.process import role_command
from environments.registry import load_tasks
from schemas import make
from schemas.events import BoundaryDetected, Evidence, SynthesisFailed, Task, TaskSeeded, TaskSynthesized, Zone
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.reader import EventReader
from streams.log.topics import ensure_topics, partitions_of
from streams.processes import Child

ROOT = Path(__file__).parent.parent
CONCURRENCIES = (1, 8, 64)
PATIENCE_S = 300.0
IDLE_S = 3.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measure:
    """What one concurrency came to.

    Attributes:
        concurrency: Signals open at any time.
        num_signals: Syntheses that count.
        num_admitted: Of all signals.
        signals_per_min: Outcomes a minute.
        latency_p50_ms, latency_p95_ms: From the signal's to the outcome's time stamp.
        cpu_ms: CPU of the service process for one synthesis.
        questions: Questions to the model for one synthesis, mean.
        idle_cpu_ms_per_s: CPU of the process while it has nothing to do: its share of ``cpu_ms`` grows with the wait.
    """

    concurrency: int
    num_signals: int
    num_admitted: int
    signals_per_min: float
    latency_p50_ms: float
    latency_p95_ms: float
    cpu_ms: float
    questions: float
    idle_cpu_ms_per_s: float


def seeds() -> list[Task]:
    """The workshop's training seeds, each with prices of its own, so that none shares a held-out state."""
    tasks = load_tasks("train", "workshop")
    return [
        replace(task, initial_config_json=task.initial_config_json.replace('"price": 4.5', f'"price": {5 + place}'))
        for place, task in enumerate(tasks)
    ]


def signals(tasks: list[Task], run_id: str) -> Iterator[BoundaryDetected]:
    """Signals without end, seeds in turn."""
    evidence = Evidence(step=1, num_rollouts=4, num_valid=4, mean=0.5, variance=0.1, phi=1.0, zone=Zone.BOUNDARY)
    number = 0
    while True:
        task = tasks[number % len(tasks)]
        yield make(
            BoundaryDetected,
            run_id,
            task_id=task.task_id,
            category=task.category,
            step=1 + number // len(tasks),
            epoch=0,
            evidence=evidence,
            rank=0,
            quota=4,
            root_task_id=task.task_id,
            generation=0,
            policy_version=0,
        )
        number += 1


def cpu_s(pid: int) -> float:
    """CPU time of a process with all its threads, seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Lane:
    """One run against a fresh service process."""

    def __init__(self, servers: str, url: str, concurrency: int, folder: Path) -> None:
        self.concurrency = concurrency
        settings = [
            "tasks.environment=workshop",
            "synthesis.backend=llm",
            f"synthesis.llm.base_url={url}",
            f"synthesis.max_in_flight={concurrency}",
            f"synthesis.llm.max_requests={max(8, concurrency)}",
        ]
        self.folder = RunFolder(folder / f"bench-{concurrency}").create(load_config(None, {}, settings))
        self.connection = Connection(servers, True, prefix=f"b{concurrency}.")
        ensure_topics(self.connection)
        self.log = KafkaLog(self.connection)
        self.reader = EventReader(
            KafkaLog(self.connection),
            ("tasks", "synthesis-outcomes"),
            partitions_of(self.connection),
            self.folder.run_id,
            "bench",
        )
        ready = self.folder.path / "ready"
        options = ("--run-folder", str(self.folder.path), "--ready-file", str(ready))
        command = role_command("synthesizer", self.connection, *options)
        env = {"OMP_NUM_THREADS": "1"}
        self.service = Child("synthesizer", command, self.folder.logs / "synthesizer.log", env).start()
        self.service.await_file(ready, PATIENCE_S)

    def measure(self, num_signals: int) -> Measure:
        """Keep the lane full until enough outcomes came behind the warm-up."""
        idle = self._idle()
        tasks, run_id = seeds(), self.folder.run_id
        self.log.append([make(TaskSeeded, run_id, task=task, position=place) for place, task in enumerate(tasks)])
        source, sent, ends = signals(tasks, run_id), {}, []
        total, begun_s, begun_cpu_s = self.concurrency + num_signals, 0.0, 0.0
        give_up_s, num_open = time.monotonic() + PATIENCE_S, 0
        while len(ends) < total:
            fresh = [next(source) for _ in range(min(self.concurrency - num_open, total - len(sent)))]
            if fresh:
                now_ms = time.time() * 1000
                sent.update((event.signal_id, now_ms) for event in fresh)
                self.log.append(fresh)
                num_open += len(fresh)
            came = [e for e in self.reader.poll(0.02) if isinstance(e, (TaskSynthesized, SynthesisFailed))]
            ends += came
            num_open -= len(came)
            if not begun_s and len(ends) >= self.concurrency:
                begun_s, begun_cpu_s, counted = time.monotonic(), cpu_s(self.service.process.pid), len(ends)
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{len(ends)} of {total} outcomes in {PATIENCE_S:.0f} s; see {self.folder.logs}")
        seconds, cpu = time.monotonic() - begun_s, cpu_s(self.service.process.pid) - begun_cpu_s
        return self._summed(ends, sent, counted, seconds, cpu, idle)

    def _idle(self) -> float:
        """CPU milliseconds a second before anything is asked for."""
        before_s, since_s = cpu_s(self.service.process.pid), time.monotonic()
        time.sleep(IDLE_S)
        return 1000 * (cpu_s(self.service.process.pid) - before_s) / (time.monotonic() - since_s)

    def _summed(
        self, ends: list, sent: dict[str, float], skipped: int, seconds: float, cpu: float, idle: float
    ) -> Measure:
        counted = ends[skipped:]
        waits = sorted(event.occurred_at_ms - sent[event.signal_id] for event in counted)
        return Measure(
            concurrency=self.concurrency,
            num_signals=len(counted),
            num_admitted=sum(isinstance(event, TaskSynthesized) for event in ends),
            signals_per_min=60 * len(counted) / seconds,
            latency_p50_ms=statistics.median(waits),
            latency_p95_ms=waits[int(0.95 * (len(waits) - 1))],
            cpu_ms=1000 * cpu / len(counted),
            questions=statistics.fmean(len(event.completions) for event in counted),
            idle_cpu_ms_per_s=idle,
        )

    def close(self) -> None:
        """Stop the service."""
        self.service.stop(20)
        self.log.close()


def model_server(latency_ms: float, num_slots: int) -> tuple[subprocess.Popen, str]:
    """A playing server in its own process, and its address."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.playing_server",
        "--latency-ms",
        str(latency_ms),
        "--slots",
        str(num_slots),
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return process, f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"


def measure_all(latency_ms: float, num_slots: int, rounds: int) -> list[Measure]:
    """One measure a concurrency."""
    found = []
    with tempfile.TemporaryDirectory(prefix="rods-bench-") as name, EmbeddedBroker(Path(name) / "broker.log") as broker:
        for concurrency in CONCURRENCIES:
            server, url = model_server(latency_ms, num_slots)
            lane = Lane(broker.bootstrap_servers, url, concurrency, Path(name))
            try:
                found.append(lane.measure(max(12, rounds * concurrency)))
            finally:
                lane.close()
                server.kill()
                server.wait()
    return found


def figures(measures: list[Measure], latency_ms: float, num_slots: int) -> dict:
    """The JSON object: overhead at the highest concurrency, rates by concurrency, all measures."""
    first, last = measures[0], measures[-1]
    return {
        "overhead_cpu_ms": round(last.cpu_ms, 2),
        "rates": {str(m.concurrency): round(m.signals_per_min, 1) for m in measures},
        "scaling": round(last.signals_per_min / first.signals_per_min, 2),
        "model_latency_ms": latency_ms,
        "model_slots": num_slots,
        "measures": [{key: round(value, 2) for key, value in asdict(m).items()} for m in measures],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--latency-ms", type=float, default=100.0, help="time of one answer")
    parser.add_argument("--slots", type=int, default=64, help="answers the model gives at the same time")
    parser.add_argument("--rounds", type=int, default=4, help="counted syntheses for each open signal")
    options = parser.parse_args()
    measures = measure_all(options.latency_ms, options.slots, options.rounds)
    table = Table(
        title=f"one answer takes {options.latency_ms:g} ms, {options.slots} at the same time",
        title_justify="left",
        box=None,
    )
    for heading in (
        "concurrency",
        "signals",
        "admitted",
        "signals/min",
        "p50 ms",
        "p95 ms",
        "CPU ms",
        "questions",
        "idle CPU ms/s",
    ):
        table.add_column(heading, justify="right")
    for m in measures:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in asdict(m).values()))
    Console(width=120).print(table)
    if options.json:
        print(json.dumps(figures(measures, options.latency_ms, options.slots)))


if __name__ == "__main__":
    main()
