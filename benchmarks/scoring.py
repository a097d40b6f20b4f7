"""Scoring side by side: ours, the official checker and bare dispatch of the same calls, in one run on one core.

``python -m benchmarks.scoring`` prints tables; with ``--json`` the last line is one JSON object. Every task's ground truth
plays the model: all turns, state check and response check. Times are CPU time of the measuring thread, best of several
interleaved rounds, so that other work on the machine does not favour anyone.

Bare dispatch is the least that can execute the calls: fresh simulators and one method call each with arguments that are
already Python objects; no parsing, no result texts, no checks. It is measured with and without making the simulators;
``ratio_vs_dispatch`` uses the figure with them, ``ratio_vs_calls_alone`` the one without.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass

from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from rich.console import Console
from rich.table import Table

from environments.bfcl.source import json_lines
from environments.episode import Episode
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from environments.scoring.official import score
from schemas.events import Task

NUM_ROUNDS = 7
NUM_ROLLOUTS = 16
MAX_WORKERS = 4
CATEGORIES = ("base", "long_context")
World = environment()


@dataclass(frozen=True)
class Timing:
    """Microseconds of CPU a task, best round.

    Attributes:
        official_us: The official checker.
        ours_us: ``environments.scoring.official.score``.
        dispatch_us: Fresh simulators and bare method calls.
        calls_us: The bare method calls alone.
    """

    official_us: float
    ours_us: float
    dispatch_us: float
    calls_us: float

    @property
    def ratio_vs_official(self) -> float:
        """How many times faster than the official checker."""
        return self.official_us / self.ours_us

    @property
    def ratio_vs_dispatch(self) -> float:
        """Our time over bare dispatch."""
        return self.ours_us / self.dispatch_us

    @property
    def ratio_vs_calls_alone(self) -> float:
        """Our time over the bare method calls without making simulators."""
        return self.ours_us / self.calls_us


def measure(category: str, num_rounds: int = NUM_ROUNDS) -> Timing:
    """Time one category of 200 tasks."""
    tasks = [task for task in load_tasks("all") if task.category == category]
    official, ours, bare = official_round(category), our_round(tasks), bare_round(tasks)
    best = [float("inf")] * 4
    for number in range(num_rounds):
        spent = (official(number), ours(), *bare())
        best = [min(old, new) for old, new in zip(best, spent, strict=True)]
    return Timing(*(seconds / len(tasks) * 1e6 for seconds in best))


def official_round(category: str) -> Callable[[int], float]:
    """CPU seconds of one pass of the official checker under a fresh model name, its globals removed afterwards."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    questions = json_lines(name)
    answers = {record["id"]: record["ground_truth"] for record in json_lines("possible_answer", name)}

    def run(number: int) -> float:
        before = set(vars(multi_turn_utils))
        transcripts = [[[turn] if turn else [] for turn in answers[entry["id"]]] for entry in questions]
        start_s = time.thread_time()
        for entry, transcript in zip(questions, transcripts, strict=True):
            truth = answers[entry["id"]]
            if not multi_turn_checker(transcript, truth, entry, f"multi_turn_{category}", f"round{number}")["valid"]:
                raise RuntimeError(f"the official checker rejects the ground truth of {entry['id']}")
        spent_s = time.thread_time() - start_s
        for leftover in set(vars(multi_turn_utils)) - before:
            delattr(multi_turn_utils, leftover)
        return spent_s

    return run


def our_round(tasks: Sequence[Task]) -> Callable[[], float]:
    """CPU seconds of one pass of our scoring; references are computed once before, as in training."""
    work = [
        (task, Reference.of(World, task), [[turn.ground_truth] if turn.ground_truth else [] for turn in task.turns])
        for task in tasks
    ]

    def run() -> float:
        start_s = time.thread_time()
        for task, reference, transcript in work:
            if not score(World, task, reference, transcript).valid:
                raise RuntimeError(f"our scoring rejects the ground truth of {task.task_id}")
        return time.thread_time() - start_s

    return run


def bare_round(tasks: Sequence[Task]) -> Callable[[], tuple[float, float]]:
    """CPU seconds of one pass of bare dispatch, with and without making the simulators."""

    def run() -> tuple[float, float]:
        making_s = calling_s = 0.0
        for task in tasks:
            arguments = [json.loads(call.arguments_json) for turn in task.turns for call in turn.ground_truth]
            names = [call.name for turn in task.turns for call in turn.ground_truth]
            start_s = time.thread_time()
            state = World.start(task)
            made_s = time.thread_time()
            routes = state.plan.routes
            methods = [getattr(state.instances[routes[name].position], name) for name in names]
            called_s = time.thread_time()
            for method, values in zip(methods, arguments, strict=True):
                method(**values)
            calling_s += time.thread_time() - called_s
            making_s += made_s - start_s
        return making_s + calling_s, calling_s

    return run


def play(task: Task) -> float:
    """One whole rollout of a task's ground truth through parser, protocol and scoring; returns its reward."""
    run = Episode(World, task, parser("compact"), Reference.of(World, task), max_attempts=64)
    for turn in task.turns:
        for call in turn.ground_truth:
            run.step(f"<c>{call.name}{call.arguments_json}</c>")
        if not run.done:
            run.step("<e>")
    return run.reward


def play_group(index: int) -> float:
    """All rollouts of one base task; returns the sum of their rewards."""
    task = load_tasks("all")[index]
    return sum(play(task) for _ in range(NUM_ROLLOUTS))


def rollouts_per_second(num_tasks: int = 200) -> Mapping[str, float]:
    """Rollouts a second of wall time, NUM_ROLLOUTS a task: one thread, several threads, several processes."""
    workers = min(MAX_WORKERS, os.cpu_count() or 1)
    rates = {}
    start_s = time.perf_counter()
    for index in range(num_tasks):
        play_group(index)
    rates["one_thread"] = num_tasks * NUM_ROLLOUTS / (time.perf_counter() - start_s)
    for name, pool in (
        (f"{workers}_threads", ThreadPoolExecutor(workers)),
        (f"{workers}_processes", ProcessPoolExecutor(workers)),
    ):
        with pool:
            list(pool.map(play_group, range(workers)))
            start_s = time.perf_counter()
            list(pool.map(play_group, range(num_tasks), chunksize=8))
            rates[name] = num_tasks * NUM_ROLLOUTS / (time.perf_counter() - start_s)
    return rates


def show(timings: Mapping[str, Timing], rates: Mapping[str, float]) -> None:
    """The tables for people."""
    table = Table(title="Scoring the ground truth of 200 tasks, µs of CPU a task (best round)")
    columns = (
        "set",
        "official",
        "ours",
        "dispatch",
        "calls alone",
        "faster than official",
        "over dispatch",
        "over calls",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for name, timing in timings.items():
        figures = (timing.official_us, timing.ours_us, timing.dispatch_us, timing.calls_us)
        ratios = (timing.ratio_vs_official, timing.ratio_vs_dispatch, timing.ratio_vs_calls_alone)
        table.add_row(name, *(f"{each:.1f}" for each in figures), *(f"{each:.1f} x" for each in ratios))
    console = Console()
    console.print(table)
    for name, rate in rates.items():
        console.print(f"whole rollouts, {name.replace('_', ' ')}: {rate:,.0f} a second")


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", action="store_true", help="print one JSON object as the last line, no tables")
    options.add_argument("--rounds", type=int, default=NUM_ROUNDS, help="interleaved rounds; the best one counts")
    chosen = options.parse_args()
    timings = {category: measure(category, chosen.rounds) for category in CATEGORIES}
    rates = rollouts_per_second()
    if not chosen.json:
        show(timings, rates)
        return
    report = {
        **{
            key: round(getattr(timings["base"], key), 2)
            for key in ("ratio_vs_official", "ratio_vs_dispatch", "ratio_vs_calls_alone")
        },
        "us_per_task": {name: {k: round(v, 1) for k, v in vars(timing).items()} for name, timing in timings.items()},
        "long_context_ratio_vs_official": round(timings["long_context"].ratio_vs_official, 2),
        "long_context_ratio_vs_dispatch": round(timings["long_context"].ratio_vs_dispatch, 2),
        "rollouts_per_s": {name: round(rate) for name, rate in rates.items()},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
