"""Advantages of a group."""

import numpy as np
import pytest

from trainer.update.advantage import group_advantages, has_no_signal


def test_the_worked_example_of_the_method_holds():
    advantages_G = group_advantages([0, 0.5, 0.5, 1])
    np.testing.assert_allclose(advantages_G, [-1.2247, 0, 0, 1.2247], atol=1e-4)
    np.testing.assert_allclose(advantages_G[3], 0.5 / (np.std([0, 0.5, 0.5, 1], ddof=1) + 1e-6), rtol=1e-12)


def test_equal_rewards_give_exactly_zero_even_where_their_mean_is_rounded():
    rewards_G = [1 / 3] * 7
    assert group_advantages(rewards_G).tolist() == [0.0] * 7
    assert has_no_signal(rewards_G)


@pytest.mark.parametrize("invalid", [None, float("nan"), float("inf")])
def test_an_invalid_reward_is_left_out_and_gets_zero(invalid):
    advantages_G = group_advantages([0, invalid, 0.5, 0.5, 1])
    np.testing.assert_allclose(advantages_G, [-1.2247, 0, 0, 0, 1.2247], atol=1e-4)
    assert not has_no_signal([0, invalid, 1])


def test_without_std_only_the_mean_is_taken_off():
    assert group_advantages([0, 1, 0.5], normalise_std=False).tolist() == [-0.5, 0.5, 0.0]


def test_leave_one_out_compares_with_the_mean_of_the_others():
    rewards_G = np.array([0.0, 0.25, 1.0])
    expected = [reward - np.delete(rewards_G, k).mean() for k, reward in enumerate(rewards_G)]
    np.testing.assert_allclose(group_advantages(rewards_G, normalise_std=False, leave_one_out=True), expected)


def test_a_group_of_one_has_mean_zero_and_std_one():
    np.testing.assert_allclose(group_advantages([0.5, None]), [0.5 / (1 + 1e-6), 0])
    assert not has_no_signal([0.5])


def test_a_group_without_valid_rewards_has_no_signal():
    assert group_advantages([None, None]).tolist() == [0.0, 0.0]
    assert group_advantages([]).tolist() == []
    assert has_no_signal([None, None]) and has_no_signal([])
