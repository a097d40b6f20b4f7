"""The scoring benchmark measures what it says and our scoring is far ahead of the official checker."""

from __future__ import annotations

from benchmarks.scoring import measure, play
from environments.registry import load_tasks


def test_scoring_is_several_times_faster_than_the_official_checker():
    timing = measure("base", num_rounds=3)
    assert timing.ratio_vs_official > 5
    assert timing.ratio_vs_dispatch < 5
    assert timing.calls_us < timing.dispatch_us < timing.ours_us < timing.official_us


def test_the_rollouts_it_counts_are_whole_and_right():
    assert all(play(task) == 1.0 for task in load_tasks("all")[:200:20])
