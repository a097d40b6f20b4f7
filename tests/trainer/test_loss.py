"""The loss of single tokens and the weights by which tokens add up."""

import math

import pytest
import torch

from trainer.config import LossAggregation
from trainer.update.loss import clipped_surrogate, k1_divergence, k3_divergence, token_weights, truncated_importance


def surrogate_of(ratio: float, advantage: float):
    result = clipped_surrogate(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]))
    return result.loss_N.item(), bool(result.clipped_N.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.2, 1.0, -1.2, False),
        (1.5, 1.0, -1.28, True),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (1.5, -1.0, 1.5, False),
        (50.0, -1.0, 10.0, True),
        (50.0, -0.5, 5.0, True),
        (3.0, 0.0, 0.0, False),
    ],
)
def test_the_surrogate_is_clipped_on_the_side_that_would_gain(ratio, advantage, loss, is_clipped):
    value, clipped = surrogate_of(ratio, advantage)
    assert value == pytest.approx(loss, rel=1e-5)
    assert clipped == is_clipped


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_has():
    logprobs_N = torch.tensor([0.5, 0.1], requires_grad=True)
    clipped_surrogate(logprobs_N, torch.zeros(2), torch.ones(2)).loss_N.sum().backward()
    assert logprobs_N.grad[0] == 0
    assert logprobs_N.grad[1] == pytest.approx(-math.exp(0.1))


def test_an_absurd_ratio_stays_finite():
    result = clipped_surrogate(torch.tensor([0.0, -1e4]), torch.tensor([-1e4, 0.0]), torch.tensor([1.0, -1.0]))
    assert torch.isfinite(result.loss_N).all() and torch.isfinite(result.ratio_N).all()


def test_k3_is_zero_for_equal_policies_and_never_negative():
    logprobs_N = -torch.rand(200, generator=torch.Generator().manual_seed(0)) * 5
    reference_N = -torch.rand(200, generator=torch.Generator().manual_seed(1)) * 5
    assert k3_divergence(logprobs_N, logprobs_N).abs().max() == 0
    assert k3_divergence(logprobs_N, reference_N).min() >= 0
    assert k3_divergence(torch.tensor([-30.0]), torch.tensor([0.0])).item() == 10


def test_the_mean_of_k3_over_samples_is_the_divergence():
    policy_V, reference_V = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    expected = (policy_V * (policy_V / reference_V).log()).sum()
    estimate = (policy_V * k3_divergence(policy_V.log(), reference_V.log())).sum()
    assert estimate.item() == pytest.approx(expected.item(), rel=1e-4)


def test_token_weights_add_up_to_one_over_all_trained_tokens():
    counts = [1, 4, 0, 5]
    for aggregation in (LossAggregation.TOKEN_MEAN, LossAggregation.SEQ_MEAN_TOKEN_MEAN):
        weights_B = token_weights(counts, aggregation)
        assert sum(weight * count for weight, count in zip(weights_B, counts, strict=True)) == pytest.approx(1)
    assert token_weights(counts, LossAggregation.TOKEN_MEAN) == [0.1] * 4
    assert token_weights(counts, LossAggregation.SEQ_MEAN_TOKEN_MEAN) == pytest.approx([1 / 3, 1 / 12, 0, 1 / 15])
    assert token_weights([0], LossAggregation.TOKEN_MEAN) == [1.0]


def test_under_a_constant_a_tokens_weight_depends_on_no_length():
    short, long = (token_weights(counts, LossAggregation.CONSTANT, 50) for counts in ([1, 4], [40, 50]))
    assert short == long == [0.01, 0.01]
    assert token_weights([0, 4], LossAggregation.CONSTANT, 50) == [0.02, 0.02]


def test_the_mean_of_k1_over_samples_is_the_divergence_too():
    policy_V, reference_V = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    expected = (policy_V * (policy_V / reference_V).log()).sum()
    estimate = (policy_V * k1_divergence(policy_V.log(), reference_V.log())).sum()
    assert estimate.item() == pytest.approx(expected.item(), rel=1e-5)
    assert k1_divergence(torch.tensor([-90.0]), torch.tensor([0.0])).item() == -20


def test_without_a_dual_clip_a_bad_token_may_cost_anything():
    log_ratio_N = torch.tensor([math.log(50.0), 0.0], requires_grad=True)
    advantages_N = torch.tensor([-1.0, 0.0])
    result = clipped_surrogate(log_ratio_N, torch.zeros(2), advantages_N, dual_clip=math.inf)
    assert result.loss_N[0].item() == pytest.approx(50, rel=1e-5) and result.loss_N[1] == 0
    result.loss_N.sum().backward()
    assert torch.isfinite(log_ratio_N.grad).all() and log_ratio_N.grad[0].item() == pytest.approx(50, rel=1e-5)


def test_importance_is_one_for_equal_numbers_and_never_above_its_cap():
    own_N, sampled_N = torch.tensor([-1.0, -1.0, -3.0]), torch.tensor([-1.0, -60.0, -1.0])
    assert truncated_importance(own_N, sampled_N, 3.0).tolist() == pytest.approx([1, 3, math.exp(-2)])
