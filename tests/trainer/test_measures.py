"""Figures of an evaluation and their intervals."""

import math

import numpy as np
import pytest

from environments.actions import Action, TurnAction
from trainer.measures import Played, bootstrap, figures, pass_at_k, report, wilson


def played(task_id, reward=1.0, category="base", **values):
    return Played(task_id, category, reward, reward == 1.0, **values)


@pytest.mark.parametrize(
    ("num_right", "num", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (30, 100, 0.2189, 0.3958)],
)
def test_wilson_intervals_are_the_published_ones(num_right, num, low, high):
    found = wilson(num_right, num)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4) and found.value == num_right / num


def test_wilson_covers_the_true_share_about_95_times_in_100():
    rng = np.random.default_rng(0)
    hits = [found.low <= 0.2 <= found.high for found in (wilson(int(rng.binomial(60, 0.2)), 60) for _ in range(2000))]
    assert 0.93 < np.mean(hits) < 0.97


def test_the_bootstrap_covers_the_true_mean_about_95_times_in_100_and_is_repeatable():
    rng = np.random.default_rng(1)
    hits = [found.low <= 0.5 <= found.high for found in (bootstrap(rng.random(80), seed) for seed in range(400))]
    assert 0.91 < np.mean(hits) < 0.98
    assert bootstrap([0.1, 0.9, 0.4], 3) == bootstrap([0.1, 0.9, 0.4], 3)
    assert math.isnan(bootstrap([]).value)


@pytest.mark.parametrize(("num", "num_right", "k"), [(6, 2, 3), (5, 5, 2), (8, 1, 8), (4, 0, 2)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(num, num_right, k):
    rng = np.random.default_rng(0)
    draws = [rng.permutation(num)[:k].min() < num_right for _ in range(4000)]
    assert pass_at_k(num, num_right, k) == pytest.approx(np.mean(draws), abs=0.03)


def test_pass_at_more_than_was_played_is_refused():
    with pytest.raises(ValueError, match="pass@4 needs at least 4"):
        pass_at_k(3, 1, 4)


def test_one_rollout_a_task_gives_wilson_and_several_give_a_bootstrap_over_tasks():
    single = report([played(str(n), n % 2) for n in range(10)])
    assert single["overall"]["accuracy"] == wilson(5, 10).as_dict() and single["intervals"]["accuracy"] == "Wilson"
    both = report([played(str(n), reward) for n in range(10) for reward in (0.0, 1.0)], 2)
    assert both["overall"]["accuracy"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert both["overall"]["pass_at_2"]["value"] == 1 and "bootstrap over tasks" in both["intervals"]["accuracy"]


def test_the_mean_over_categories_weighs_them_equally():
    result = report([played("a"), *(played(f"b{n}", 0.0, "miss_func") for n in range(9))])
    assert result["category_mean_accuracy"] == 0.5 and result["overall"]["accuracy"]["value"] == 0.1
    assert list(result["categories"]) == ["base", "miss_func"]


def test_broken_rollouts_are_counted_and_stay_in_the_denominator():
    found = figures([played("a"), played("b", 0.0, error="the tool broke")], 1)
    assert (found["num_errors"], found["accuracy"]["value"]) == (1, 0.5)


def test_action_classes_are_counted_by_category():
    asked = TurnAction(0, Action.ASKED, 1, True, True)
    wrong = TurnAction(1, Action.ANSWERED, 1, True, False)
    result = report([played("a", actions=(asked, wrong)), played("b", category="miss_param", actions=(asked,))])
    assert result["actions"]["all"]["asked"] == 2 and result["actions"]["base"]["num_right_verdict_wrong_class"] == 1
    assert result["actions"]["miss_param"]["num_no_call_class_right"] == 1
