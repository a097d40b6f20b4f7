"""A GRPO step side by side with TRL's ``GRPOTrainer``: same model, tasks, K = 16, settings and thread, in one run.

``python -m benchmarks.grpo_step`` prints a table; with ``--json`` the last line is one JSON object. Needs the extra
``bench``. Three comparisons, each part in a process of its own so that its peak memory is its own:

(a) a whole multi-turn step: 8 tasks x 16 rollouts in the simulators, one update. Ours writes every event to a real
    embedded broker and waits for it; TRL plays the same episodes through its rollout hook, all live ones in lockstep.
(b) the update alone under a vocabulary of 151,936: one group of 16 multi-turn sequences of 512 to 1,024 tokens; peak
    memory over what the imports took, and time. TRL takes 8 rows at once, its default, ours its token budget with
    packing; TRL's memory with one row at once is told beside it.
(c) the update alone at 1,000 tokens of vocabulary, those of the shipped policy, on the rollouts recorded in (a).

Ratios are of CPU time, best round, sides in turns, so that other work on the machine favours nobody; wall time is
reported too. Losses are compared on the same batch: (a) TRL's own rollouts given to our engine, (b) and (c) one batch
for both. Gradient checkpointing is off on both sides. What the ratios owe to: (a) one cache kept across turns instead
of the whole history read again for every message; (b, c) only sampled tokens are scored, where TRL scores every
position on a CPU, and no logits beyond one piece exist.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

LARGEST_DIFFERENCE = 1e-4
PART_TIMEOUT_S = 3600.0


def part(name: str, rounds: int, folder: Path) -> dict[str, object]:
    """Run one part in a fresh process with one thread.

    Raises:
        RuntimeError: it failed; the text is the end of what it said.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.grpo_step",
            "--part",
            name,
            "--rounds",
            str(rounds),
            "--folder",
            str(folder),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PART_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"part {name} failed: {done.stderr[-2000:]}")
    last = done.stdout.strip().splitlines()[-1]
    print(f"{name}: {last}", file=sys.stderr)
    return json.loads(last)


def measured(name: str, rounds: int, folder: Path) -> dict[str, object]:
    """What a part gives; in its own process."""
    import torch

    torch.set_num_threads(1)
    side, _, what = name.partition("_")
    if side == "ours":
        from benchmarks import grpo_ours as module
    else:
        from benchmarks import grpo_trl as module
    if what == "step":
        return module.step(rounds, folder)
    if what == "update":
        return module.update(rounds, folder)
    if what == "large":
        return module.large_update(rounds)
    if what == "lean":
        return module.large_update(0, rows_at_once=1)
    return {"loss": module.loss_on_theirs(folder)}


def best(results: list[dict], key: str) -> float:
    """The smallest value of all rounds of all repetitions."""
    return min(entry[key] for result in results for entry in result["rounds"])


def pairs(what: str, repeats: int, rounds: int, folder: Path, console: Console) -> dict[str, list[dict]]:
    """Both sides in turns."""
    found: dict[str, list[dict]] = {"ours": [], "trl": []}
    for number in range(repeats):
        for side in ("ours", "trl"):
            console.print(f"{what}, {side}, {number + 1} of {repeats}", highlight=False)
            found[side].append(part(f"{side}_{what}", rounds, folder))
    return found


def same_loss(ours: float, theirs: float, where: str) -> float:
    """Their difference.

    Raises:
        RuntimeError: they are not the same.
    """
    difference = abs(ours - theirs)
    if not math.isfinite(difference) or difference > LARGEST_DIFFERENCE:
        raise RuntimeError(f"({where}) the losses differ on the same batch: ours {ours}, TRL {theirs}")
    return difference


def whole_step(repeats: int, rounds: int, folder: Path, console: Console) -> dict[str, object]:
    """Comparison (a)."""
    found = pairs("step", repeats, rounds, folder, console)
    ours_on_theirs = part("ours_loss", 1, folder)["loss"]
    entries = [entry for result in found["ours"] for entry in result["rounds"]]
    log_share = sum(e["log_wall_s"] for e in entries) / sum(e["wall_s"] for e in entries)
    log_cpu_share = sum(e["log_cpu_s"] for e in entries) / sum(e["cpu_s"] for e in entries)
    times = {f"{side}_{kind}_s": round(best(found[side], f"{kind}_s"), 3) for side in found for kind in ("cpu", "wall")}
    per_token = {
        side: min(e["cpu_s"] / e["tokens"] for r in results for e in r["rounds"]) for side, results in found.items()
    }
    return {
        "ratio": times["trl_cpu_s"] / times["ours_cpu_s"],
        "ratio_per_token": per_token["trl"] / per_token["ours"],
        "log_share": log_share,
        "log_cpu_share": log_cpu_share,
        **times,
        "loss_difference": same_loss(ours_on_theirs, found["trl"][-1]["loss"], "a"),
        "ours": sizes(found["ours"][-1]),
        "trl": sizes(found["trl"][-1]),
    }


def large_vocabulary(rounds: int, folder: Path, console: Console) -> dict[str, object]:
    """Comparison (b)."""
    found = pairs("large", 1, rounds, folder, console)
    mib = {side: results[0]["peak_mib"] - results[0]["before_mib"] for side, results in found.items()}
    console.print("large, trl with one row at once", highlight=False)
    lean = part("trl_lean", rounds, folder)
    lean_mib = lean["peak_mib"] - lean["before_mib"]
    times = {"ours_cpu_s": best(found["ours"], "cpu_s"), "trl_cpu_s": best(found["trl"], "update_cpu_s")}
    return {
        "ratio_memory": mib["ours"] / mib["trl"],
        "ratio_memory_one_row": mib["ours"] / lean_mib,
        "trl_one_row_mib": round(lean_mib),
        "ratio_time": times["trl_cpu_s"] / times["ours_cpu_s"],
        "ours_mib": round(mib["ours"]),
        "trl_mib": round(mib["trl"]),
        **{k: round(v, 3) for k, v in times.items()},
        "loss_difference": same_loss(found["ours"][0]["loss"], found["trl"][0]["loss"], "b"),
        **sizes(found["ours"][0]),
    }


def small_vocabulary(repeats: int, rounds: int, folder: Path, console: Console) -> dict[str, object]:
    """Comparison (c)."""
    found = pairs("update", repeats, rounds, folder, console)
    times = {"ours_cpu_s": best(found["ours"], "cpu_s"), "trl_cpu_s": best(found["trl"], "update_cpu_s")}
    return {
        "ratio": times["trl_cpu_s"] / times["ours_cpu_s"],
        **{k: round(v, 3) for k, v in times.items()},
        "loss_difference": same_loss(found["ours"][-1]["loss"], found["trl"][-1]["loss"], "c"),
        **sizes(found["ours"][-1]),
    }


def sizes(result: dict) -> dict[str, float]:
    """What was worked on."""
    return {key: result[key] for key in ("sequences", "tokens", "tokens_max", "trained_tokens")}


def table(report: dict) -> Table:
    """For people."""
    a, b, c = report["step"], report["large_vocabulary"], report["small_vocabulary"]
    shown = Table("comparison", "ours", "TRL", "ratio", "loss difference", title="GRPO step, CPU time, best round")
    shown.add_row(
        "(a) whole step",
        f"{a['ours_cpu_s']:.2f} s",
        f"{a['trl_cpu_s']:.2f} s",
        f"{a['ratio']:.1f} x faster",
        f"{a['loss_difference']:.1e}",
    )
    shown.add_row(
        "(b) peak memory",
        f"{b['ours_mib']} MiB",
        f"{b['trl_mib']} MiB",
        f"{b['ratio_memory']:.2f} of TRL's",
        f"{b['loss_difference']:.1e}",
    )
    shown.add_row(
        "(b) TRL one row at once",
        f"{b['ours_mib']} MiB",
        f"{b['trl_one_row_mib']} MiB",
        f"{b['ratio_memory_one_row']:.2f} of TRL's",
        "",
    )
    shown.add_row(
        "(b) update", f"{b['ours_cpu_s']:.2f} s", f"{b['trl_cpu_s']:.2f} s", f"{b['ratio_time']:.1f} x faster", ""
    )
    shown.add_row(
        "(c) update",
        f"{c['ours_cpu_s']:.2f} s",
        f"{c['trl_cpu_s']:.2f} s",
        f"{c['ratio']:.1f} x faster",
        f"{c['loss_difference']:.1e}",
    )
    shown.add_row("event log", f"{100 * a['log_share']:.2f} % of the step", "", "", "")
    return shown


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print one JSON object as the last line, no table")
    options.add_argument("--rounds", type=int, default=2, help="timed rounds of every process, behind one untimed")
    options.add_argument("--repeats", type=int, default=2, help="processes of each side in (a) and (c)")
    options.add_argument("--part", help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--quick", action="store_true", help="a small size: shows only that both sides work and agree")
    chosen = options.parse_args()
    if chosen.quick:
        os.environ["RODS_BENCH_QUICK"], chosen.rounds, chosen.repeats = "1", 1, 1
    if chosen.part:
        print(json.dumps(measured(chosen.part, chosen.rounds, chosen.folder)))
        return
    from benchmarks.grpo_workload import keep_policy

    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        keep_policy(folder)
        step = whole_step(chosen.repeats, chosen.rounds, folder, console)
        small = small_vocabulary(chosen.repeats, chosen.rounds, folder, console)
        large = large_vocabulary(chosen.rounds, folder, console)
    report = {
        "ratio_vs_trl_step": round(step["ratio"], 2),
        "ratio_vs_trl_memory": round(large["ratio_memory"], 3),
        "ratio_vs_trl_update": round(small["ratio"], 2),
        "log_share": round(step["log_share"], 5),
        "step": step,
        "large_vocabulary": large,
        "small_vocabulary": small,
    }
    if chosen.json:
        print(json.dumps(report))
    else:
        Console().print(table(report))


if __name__ == "__main__":
    main()
