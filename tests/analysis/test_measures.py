"""The figures for monitoring and the series behind report and dashboard agree with the run they are folded from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.index import RunIndex
from analysis.measures import measures, staleness_buckets
from analysis.series import busiest_task, epoch_rows, evidence_by_step, family, reward_by_step, variance_table
from schemas.events import (
    BoundaryDetected,
    EpochPlanned,
    RolloutGroupCompleted,
    SynthesisFailed,
    TaskRetired,
    TaskSynthesized,
)
from tests.streams.building import group
from tests.streams.scripted import play
from tests.streams.test_fold import mean_of

POOL, LOG = play(
    12,
    8,
    {"batch_size": 6, "cooldown": 1, "injection_frac": 0.5, "queue_expiry_epochs": 1},
    mean_of,
    lambda task_id: task_id.endswith("3"),
)
FACTS = RunIndex().add(LOG)


def said(kind: type) -> list:
    return [event for event in LOG if isinstance(event, kind)]


def sample(meter: RunIndex, name: str, **labels: str) -> float:
    found = next(measure for measure in measures(meter) if measure.name == name)
    return next(value for its, value in found.samples if its == labels)


def test_epoch_rows_add_up_to_the_run() -> None:
    rows = epoch_rows(FACTS)
    assert [row.epoch for row in rows] == [plan.epoch for plan in said(EpochPlanned)]
    assert sum(row.num_signals for row in rows) == len(said(BoundaryDetected)) > 0
    assert sum(row.num_variants for row in rows) == len(said(TaskSynthesized)) > 0
    assert sum(row.num_failed for row in rows) == len(said(SynthesisFailed)) > 0
    assert sum(sum(row.retired.values()) for row in rows) == len(said(TaskRetired)) > 0
    for row, plan in zip(rows, said(EpochPlanned), strict=True):
        assert sum(row.zones.values()) == len(plan.order) == row.num_human + row.num_generated
        assert len(row.first_means) <= row.num_injected == len(plan.injected)


def test_zones_of_an_epoch_know_nothing_of_later_epochs() -> None:
    half = [event for event in LOG if getattr(event, "epoch", 0) <= 2]
    assert epoch_rows(RunIndex().add(half))[1].zones == epoch_rows(FACTS)[1].zones


def test_rewards_by_step_are_the_means_of_the_groups() -> None:
    groups = {}
    for event in said(RolloutGroupCompleted):
        groups.setdefault(event.step, []).append(sum(event.rewards) / len(event.rewards))
    assert {step: value for step, value, _ in reward_by_step(POOL)} == pytest.approx(
        {s: sum(v) / len(v) for s, v in groups.items()}
    )
    assert set(evidence_by_step(POOL)) == set(groups)


def test_the_boundary_ratio_compares_with_everything_else() -> None:
    facts = RunIndex().add([LOG[0], group("a", 1, [0.0, 1.0]), group("b", 1, [0.9, 1.0]), group("c", 1, [0.0, 0.1])])
    means, counts, ratio = variance_table(facts.pool)
    assert means == pytest.approx({"boundary": 0.25, "mastered": 0.0025, "hard": 0.0025}) and set(counts.values()) == {
        1
    }
    assert ratio == pytest.approx(100.0)
    assert variance_table(RunIndex().pool) == ({}, {}, None)


def test_a_family_is_everything_from_one_human_task() -> None:
    root = busiest_task(POOL)
    rows = family(POOL, root)
    assert rows[0].task_id == root and rows[0].generation == 0 and len(rows) > 2
    assert family(POOL, rows[-1].task_id) == rows and {row.root_task_id for row in rows} == {root}
    assert family(POOL, "nobody") == []


def test_measures_count_what_was_said() -> None:
    meter = RunIndex().add(LOG)
    assert sample(meter, "rods_synthesis_outcomes_total", outcome="synthesized") == len(said(TaskSynthesized))
    assert sample(meter, "rods_synthesis_outcomes_total", outcome="vm_exec_failed") == len(said(SynthesisFailed))
    assert sample(meter, "rods_pool_tasks", state="retired", origin="generated") == len(said(TaskRetired))
    assert sample(meter, "rods_events_total", event="BoundaryDetected") == len(said(BoundaryDetected))
    assert sum(
        value for m in measures(meter) if m.name == "rods_pool_zone_share" for _, value in m.samples
    ) == pytest.approx(1.0)


def test_events_heard_twice_change_no_measure() -> None:
    assert list(measures(RunIndex().add(LOG + LOG))) == list(measures(RunIndex().add(LOG)))


def test_staleness_is_the_number_of_updates_between_sampling_and_training() -> None:
    fresh = group("a", 3, [0.5])
    stale = replace(group("b", 9, [0.5]), policy_version=3)
    buckets, total = staleness_buckets(RunIndex().add([fresh, stale]))
    assert dict(buckets) == {"0.0": 1, "1.0": 1, "2.0": 1, "4.0": 1, "8.0": 2, "16.0": 2, "+Inf": 2} and total == 5.0


def test_an_empty_run_has_measures_too() -> None:
    assert sample(RunIndex(), "rods_step") == 0
