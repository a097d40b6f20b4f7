"""A campaign of kills: ``python -m tests.chaos.campaign --points 100``.

Runs the small configuration once undisturbed, then again and again with kill points spread over victims, states and steps,
until that many processes were killed; prints one line a run and a table, and fails if any run ended differently.
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
from pathlib import Path

from tests.chaos.harness import PATTERNS, STATES, KillPoint, disturbed_run, only_run
from tests.chaos.outcome import outcome

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
    calm = disturbed_run(root / "undisturbed", CONFIG, [])
    truth = outcome(only_run(root / "undisturbed"))
    print(f"undisturbed: {len(truth['batches'])} steps, weights {truth['weights'][:12]}, exit code {calm.exit_code}", flush=True)
    killed, different, number = [], 0, 0
    for number, plan in enumerate(itertools.chain.from_iterable(itertools.repeat(points(10_000)))):
        if len(killed) >= options.points:
            break
        started = time.monotonic()
        run = disturbed_run(root / f"run-{number}", CONFIG, plan)
        ended_well = run.exit_code == 0 and outcome(only_run(root / f"run-{number}")) == truth
        different += not ended_well
        killed += run.done
        print(f"run {number}: {len(run.done)} killed, {'as undisturbed' if ended_well else 'DIFFERENT'}, "
              f"{time.monotonic() - started:.0f} s, {len(killed)} of {options.points}: {', '.join(map(str, run.done))}", flush=True)
        if not ended_well:
            print("".join(run.output[-30:]), flush=True)
    table = Counter((point.victim, point.event) for point in killed)
    for victim in VICTIMS:
        print(f"{victim:12s} " + "  ".join(f"{event} {table[victim, event]}" for event in sorted({state[0] for state in STATES})))
    print(json.dumps({"killed": len(killed), "runs": number, "different": different, "folder": str(root)}))
    return 0 if not different else 1


if __name__ == "__main__":
    sys.exit(main())
