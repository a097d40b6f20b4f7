"""A campaign of kills: ``python -m tests.chaos.campaign --points 100``.

Runs the small configuration once undisturbed, then again and again with kill points spread over victims, states and steps,
until that many processes were killed, with the rollouts in the trainer and in two workers in turn; at last with deaths at exact
places of the code (``tests.chaos.spots``). Prints one line a run and a table, and fails if any run ended differently.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.harness import PATTERNS, STATES, Disturbance, KillPoint, Spot, disturbed_run, only_run, run_with_deaths
from tests.chaos.outcome import outcome
from tests.chaos.spots import SPOTS, WORKER_SPOTS, WORKERS

CONFIG = Path(__file__).parent.parent / "commands" / "small.toml"
VICTIMS = tuple(PATTERNS)
POINTS_A_RUN = 10


def points(num: int) -> list[list[KillPoint]]:
    """``num`` kill points in runs of ten: victims and states in turn, occurrences later and later in the run."""
    rounds = itertools.product(range(4), STATES, VICTIMS)
    every = [KillPoint(victim, event, first + stride * round_) for round_, (event, first, stride), victim in rounds]
    count = len(every)
    leap = next(step for step in range(count // 3, count) if math.gcd(step, count) == 1)
    order = [every[(index * leap) % count] for index in range(min(num, count))]
    return [order[start : start + POINTS_A_RUN] for start in range(0, len(order), POINTS_A_RUN)]


def main() -> int:
    """Run the campaign; 0 if every run ended as the undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="rods-chaos-"))
    truths = {}
    for name, settings in (("undisturbed", ()), ("undisturbed-workers", WORKERS)):
        calm = disturbed_run(root / name, CONFIG, [], settings)
        truths[settings] = truth = outcome(only_run(root / name))
        print(
            f"{name}: {len(truth['batches'])} steps, weights {truth['weights'][:12]}, exit code {calm.exit_code}",
            flush=True,
        )
    killed, different, number = [], 0, 0
    for number, plan in enumerate(itertools.chain.from_iterable(itertools.repeat(points(10_000)))):
        if len(killed) >= options.points:
            break
        started, folder = time.monotonic(), root / f"run-{number}"
        settings = WORKERS if number % 2 else ()
        run = disturbed_run(folder, CONFIG, plan, settings)
        different += not told(f"run {number}", run, folder, truths[settings], run.done, started)
        killed += run.done
        print(f"{len(killed)} of {options.points}", flush=True)
    exact = []
    for name, spots, settings in (
        ("exact places", SPOTS, ()),
        ("exact places, workers", (*SPOTS, *WORKER_SPOTS), WORKERS),
    ):
        started, folder = time.monotonic(), root / name.replace(", ", "-").replace(" ", "-")
        run, died = run_with_deaths(folder, CONFIG, spots, settings)
        different += not told(name, run, folder, truths[settings], died, started)
        exact += died
    table = Counter((point.victim, point.event) for point in killed)
    for victim in VICTIMS:
        print(
            f"{victim:12s} "
            + "  ".join(f"{event} {table[victim, event]}" for event in sorted({state[0] for state in STATES}))
        )
    print(
        json.dumps(
            {
                "killed": len(killed),
                "exact": len(exact),
                "runs": number + 2,
                "different": different,
                "folder": str(root),
            }
        )
    )
    return 0 if not different else 1


def told(
    name: str, run: Disturbance, folder: Path, truth: dict, deaths: Sequence[KillPoint | Spot], started: float
) -> bool:
    """Print how a run ended; whether it ended as the undisturbed one."""
    ended_well = run.exit_code == 0 and outcome(only_run(folder)) == truth
    print(
        f"{name}: {len(deaths)} killed, {'as undisturbed' if ended_well else 'DIFFERENT'}, {time.monotonic() - started:.0f} s: "
        f"{', '.join(map(str, deaths))}",
        flush=True,
    )
    if not ended_well:
        print("".join(run.output[-30:]), flush=True)
    return ended_well


if __name__ == "__main__":
    sys.exit(main())
