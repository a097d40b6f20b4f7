"""The benchmarks run to their end at a small size and print what they promise; how fast is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import workload
from benchmarks.jsonl_scheme import JsonlScheme, recovered
from benchmarks.replay import require_same
from schemas import as_record
from streams.pool.pool import fold, initial

ROOT = Path(__file__).parent.parent.parent
ROW_KEYS = {
    "num_events",
    "fold_s",
    "fold_events_per_s",
    "snapshot_s",
    "jsonl_recovery_s",
    "ratio_vs_jsonl",
    "live_events_per_s",
    "consume_decode_per_s",
}
LOAD_KEYS = {
    "gpus",
    "events_per_s",
    "mb_per_s",
    "p50_ms",
    "p99_ms",
    "max_lag",
    "end_lag",
    "worker_cores",
    "broker_cores",
    "holds",
}


def last_line(module: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", module, "--quick", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_replay_benchmark_compares_every_way_of_recovery() -> None:
    figures = last_line("benchmarks.replay")
    assert figures.keys() >= {
        "fold_events_per_s",
        "live_events_per_s",
        "ratio_vs_jsonl_recovery",
        "by_size",
        "plan_epoch",
        "export",
        "tap_mb_per_s",
    }
    assert [row["num_events"] for row in figures["by_size"]] == [1000, 2000] and figures["by_size"][
        0
    ].keys() >= ROW_KEYS
    assert figures["by_size"][0]["live_events_per_s"] > 0 and figures["by_size"][1]["live_events_per_s"] is None
    assert {plan["shape"] for plan in figures["plan_epoch"]} == {"seeds", "queue", "history"}
    assert figures["export"]["num_trajectories"] > 0


@pytest.mark.slow
def test_the_load_benchmark_tells_of_every_group() -> None:
    rates = last_line("benchmarks.load")["by_rate"]
    assert len(rates) == 1 and rates[0].keys() >= LOAD_KEYS
    assert rates[0]["num_told"] == rates[0]["num_groups"] > 20 and rates[0]["p50_ms"] is not None


@pytest.mark.slow
def test_the_step_benchmark_takes_the_same_loss_from_the_same_batch_as_trl() -> None:
    pytest.importorskip("trl", reason="the extra bench is not installed")
    figures = last_line("benchmarks.grpo_step")
    assert figures.keys() >= {"ratio_vs_trl_step", "ratio_vs_trl_memory", "ratio_vs_trl_update", "log_share"}
    for part in ("step", "large_vocabulary", "small_vocabulary"):
        assert (
            abs(figures[part]["loss_difference"]) < 1e-4
            and figures[part]["trained_tokens" if part != "step" else "ours_cpu_s"] > 0
        )


def test_the_json_lines_recover_what_the_archive_folds_to(tmp_path: Path) -> None:
    scheme = JsonlScheme(tmp_path)
    for event in workload.events(3000):
        scheme.append(type(event).__name__, as_record(event))
    scheme.close()
    pool = fold(initial(), workload.events(3000))
    require_same(recovered(tmp_path), pool)
    assert pool.last_epoch > 0 and len(pool.signals) > 10 and len(list(tmp_path.glob("*.jsonl"))) > 1


def test_the_run_is_the_same_whenever_it_is_made() -> None:
    assert list(workload.events(1500)) == list(workload.events(1500))
