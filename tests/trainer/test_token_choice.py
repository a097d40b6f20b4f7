"""Which token is chosen for which random number."""

import numpy as np
import pytest
import torch

from trainer.rollouts.sampler import SamplingParams
from trainer.rollouts.token_choice import NonFiniteLogits, choose, nucleus, uniforms

PARAMS = SamplingParams(seed=0, max_message_tokens=8, max_episode_tokens=8)


def choices(logits_V, params, num=10_000):
    grid_R = torch.arange(num, dtype=torch.float64) / num
    ids_R, logprobs_R = choose(logits_V.expand(num, -1), grid_R, params)
    return torch.bincount(ids_R, minlength=len(logits_V)) / num, ids_R, logprobs_R


def test_evenly_spread_random_numbers_give_every_token_its_probability():
    logits_V = torch.tensor([0.0, 1.0, -2.0, 0.5])
    shares_V, ids_R, logprobs_R = choices(logits_V, PARAMS)
    np.testing.assert_allclose(shares_V, torch.softmax(logits_V, -1), atol=2e-4)
    torch.testing.assert_close(logprobs_R, torch.log_softmax(logits_V, -1)[ids_R])


def test_temperature_scales_choice_and_recorded_logprob_alike():
    logits_V = torch.tensor([0.0, 1.0, -2.0])
    shares_V, ids_R, logprobs_R = choices(logits_V, SamplingParams(0, 8, 8, temperature=0.5))
    np.testing.assert_allclose(shares_V, torch.softmax(2 * logits_V, -1), atol=2e-4)
    torch.testing.assert_close(logprobs_R, torch.log_softmax(2 * logits_V, -1)[ids_R])


def test_outside_the_nucleus_nothing_is_ever_chosen():
    logits_V = torch.log(torch.tensor([0.2, 0.5, 0.3]))
    shares_V, _, _ = choices(logits_V, SamplingParams(0, 8, 8, top_p=0.7))
    np.testing.assert_allclose(shares_V, [0, 0.625, 0.375], atol=2e-4)
    assert nucleus(torch.tensor([[0.2, 0.5, 0.3]]), 0.4).tolist() == [[0.0, 0.5, 0.0]]


def test_a_token_of_probability_zero_is_never_chosen_at_the_ends():
    logits_RV = torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2)
    ids_R, _ = choose(logits_RV, torch.tensor([0.0, 1 - 2.0**-50], dtype=torch.float64), PARAMS)
    assert ids_R.tolist() == [1, 1]


def test_greedy_takes_the_likeliest_token():
    params = SamplingParams(0, 8, 8, greedy=True)
    ids_R, _ = choose(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([0.0]).double(), params)
    assert ids_R.tolist() == [1]


def test_a_policy_that_has_diverged_is_named_instead_of_sampled():
    logits_RV = torch.tensor([[0.0, 1.0], [float("nan"), 0.0]])
    with pytest.raises(NonFiniteLogits, match="row 1"):
        choose(logits_RV, torch.zeros(2).double(), PARAMS)


def test_random_numbers_are_a_function_of_seed_and_stream_key_and_position():
    key = (3, "base_1", 0)
    np.testing.assert_array_equal(uniforms(1, key, 50)[:20], uniforms(1, key, 20))
    others = [uniforms(2, key, 20), uniforms(1, (3, "base_1", 1), 20), uniforms(1, (4, "base_1", 0), 20)]
    assert all((uniforms(1, key, 20) != other).all() for other in others)
    assert 0.45 < uniforms(0, key, 10_000).mean() < 0.55


@pytest.mark.parametrize("values", [{"temperature": 0}, {"top_p": 0}, {"top_p": 1.5}, {"max_message_tokens": 0}])
def test_settings_that_make_no_sense_are_refused(values):
    with pytest.raises(ValueError):
        SamplingParams(**{"seed": 0, "max_message_tokens": 8, "max_episode_tokens": 8, **values})
