"""Zones, phi, evidence and seed selection against the numbers of the method."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from schemas.events import Evidence, Zone
from streams.pool.boundary import Candidate, evidence_of, phi, selected, zone_of, zone_variance
from streams.pool.settings import PoolConfig
from tests.streams.building import group

CONFIG = PoolConfig()


def evidence(mean: float, step: int = 1, variance: float = 0.1) -> Evidence:
    return Evidence(
        step=step,
        num_rollouts=16,
        num_valid=16,
        mean=mean,
        variance=variance,
        phi=phi(mean),
        zone=zone_of(mean, CONFIG),
    )


def candidate(task_id: str, mean: float, category: str = "base", rested: bool = True) -> Candidate:
    return Candidate(task_id, category, evidence(mean), rested)


@pytest.mark.parametrize(
    ("mean", "value"), [(0.2, 0.64), (0.25, 0.75), (0.5, 1.0), (0.75, 0.75), (0.85, 0.51), (0.95, 0.19)]
)
def test_phi_has_the_published_values(mean: float, value: float) -> None:
    assert phi(mean) == pytest.approx(value)


@pytest.mark.parametrize(
    ("mean", "zone"),
    [
        (0.0, Zone.HARD),
        (0.19, Zone.HARD),
        (0.2, Zone.BOUNDARY),
        (1 / 5, Zone.BOUNDARY),
        (0.2 - 1e-12, Zone.BOUNDARY),
        (0.5, Zone.BOUNDARY),
        (0.85, Zone.BOUNDARY),
        (0.85 + 1e-12, Zone.BOUNDARY),
        (0.86, Zone.MASTERED),
        (1.0, Zone.MASTERED),
    ],
)
def test_the_ends_of_the_window_belong_to_the_boundary(mean: float, zone: Zone) -> None:
    assert zone_of(mean, CONFIG) is zone


def test_missing_and_non_finite_rewards_are_left_out_and_counted() -> None:
    seen = evidence_of(group("a", 1, [1.0, 0.0, None, math.nan, 0.5, math.inf]), CONFIG)
    assert (seen.num_rollouts, seen.num_valid, seen.mean) == (6, 3, 0.5)
    assert seen.variance == pytest.approx(1 / 6)


def test_fewer_than_half_valid_is_no_observation_and_half_is_one() -> None:
    assert evidence_of(group("a", 1, [1.0, None, None, None]), CONFIG) is None
    assert evidence_of(group("a", 1, [None] * 4), CONFIG) is None
    assert evidence_of(group("a", 1, [1.0, 0.0, None, None]), CONFIG).num_valid == 2


def test_the_binary_signal_reads_whole_success_only() -> None:
    rewards = [1.0, 0.5, 0.5, 0.0]
    assert evidence_of(group("a", 1, rewards), CONFIG).mean == 0.5
    assert evidence_of(group("a", 1, rewards), PoolConfig(signal="binary")).mean == 0.25


def test_seeds_are_the_rested_boundary_tasks_with_the_highest_phi() -> None:
    pool = [
        candidate("a", 0.85),
        candidate("b", 0.2),
        candidate("c", 0.5),
        candidate("d", 0.9),
        candidate("e", 0.1),
        candidate("f", 0.5, rested=False),
        candidate("g", 0.6),
        candidate("h", 0.4),
    ]
    chosen = selected(pool, CONFIG, "")
    assert [(c.task_id, rank) for c, rank in chosen] == [("c", 0), ("g", 1), ("h", 2), ("b", 3)]


def test_ties_go_by_task_id_and_the_order_of_candidates_does_not_matter() -> None:
    pool = [candidate(name, 0.5) for name in "dbcae"]
    assert [c.task_id for c, _ in selected(pool, CONFIG, "")] == ["a", "b", "c", "d"]
    assert selected(pool, CONFIG, "") == selected(pool[::-1], CONFIG, "")


def test_unfilled_quota_is_not_given_to_another_category() -> None:
    pool = [candidate(f"b{i}", 0.5) for i in range(9)] + [candidate("m", 0.5, "miss_func")]
    assert len(selected(pool, CONFIG, "")) == 5


def test_random_selection_depends_on_the_draw_alone() -> None:
    config = PoolConfig(selection="random", quota={"base": 3})
    pool = [candidate(f"t{i}", 0.2 + i / 100) for i in range(40)]
    assert selected(pool, config, "x") == selected(pool[::-1], config, "x")
    assert [c.task_id for c, _ in selected(pool, config, "x")] != [c.task_id for c, _ in selected(pool, config, "y")]


def test_zone_variance_is_the_mean_by_zone_and_leaves_empty_zones_out() -> None:
    seen = [evidence(0.5, variance=0.2), evidence(0.6, variance=0.1), evidence(0.1, variance=0.05)]
    assert zone_variance(seen) == {"hard": 0.05, "boundary": pytest.approx(0.15)}


def test_thresholds_out_of_order_and_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="alpha_low < alpha_high"):
        PoolConfig(alpha_low=0.9)
    with pytest.raises(ValidationError, match="Extra inputs"):
        PoolConfig(alpha_lo=0.1)
