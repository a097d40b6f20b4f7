"""Groups with and without a signal: what is kept, counted and learned from."""

import math

import numpy as np
import pytest
import torch

from schemas.events import GroupStatus, RunOutcome, StepCompleted
from tests.trainer.sequences import batch_of, settings, some_sequences
from tests.trainer.toys import ToyEpisode, toy_model
from trainer.config import ZeroVariance
from trainer.loop import train
from trainer.rollouts.groups import group_status
from trainer.update.advantage import group_advantages, group_statistics, has_no_signal
from trainer.update.engine import TrainedSequence
from trainer.update.minibatches import chosen, packs
from trainer.update.torch_engine import TorchEngine

NAN, S = float("nan"), 1e-6
TABLE = [
    # rewards, has a signal, n, mean, variance, advantages
    ([1, 0, 0, 0], True, 4, 0.25, 0.25, [0.75 / (0.5 + S), *[-0.25 / (0.5 + S)] * 3]),
    ([1, 1, 1, 0], True, 4, 0.75, 0.25, [*[0.25 / (0.5 + S)] * 3, -0.75 / (0.5 + S)]),
    ([0.5] * 8, False, 8, 0.5, 0.0, [0.0] * 8),
    ([*[None] * 7, 1.0], True, 1, 1.0, 0.0, [*[0.0] * 7, 1 / (1 + S)]),
    ([NAN] * 8, False, 0, NAN, 0.0, [0.0] * 8),
    ([0.1 + 0.2, 0.3, 0.3, 0.3], False, 4, 0.3, 0.0, [0.0] * 4),
    ([None, 0.0], False, 1, 0.0, 0.0, [0.0] * 2),
]


@pytest.mark.parametrize(("rewards_G", "has_signal", "num", "mean", "variance", "advantages_G"), TABLE)
def test_the_table_of_groups_holds(rewards_G, has_signal, num, mean, variance, advantages_G):
    found = group_statistics(rewards_G)
    assert (found.num_valid, found.has_signal) == (num, has_signal) == (num, not has_no_signal(rewards_G))
    assert found.mean == pytest.approx(mean, nan_ok=True) and found.variance == pytest.approx(variance)
    assert group_advantages(rewards_G).tolist() == pytest.approx(advantages_G)


def test_one_rollout_of_eight_is_no_group_to_learn_from_although_it_has_a_signal():
    assert group_status(1, 8) is GroupStatus.FAILED


def test_rewards_are_equal_within_a_tolerance_and_no_further():
    assert has_no_signal([0.5, 0.5 + 1e-12]) and not has_no_signal([0.5, 0.5 + 1e-6])
    assert not has_no_signal([0.5, 0.5 + 1e-12], tolerance=0.0)
    assert group_advantages([0.3, 0.1 + 0.2]).tolist() == [0.0, 0.0]
    assert any(group_advantages([0.3, 0.1 + 0.2], tolerance=0.0))


SETTINGS = [{"normalise_std": std, "leave_one_out": left} for std in (True, False) for left in (True, False)]


@pytest.mark.parametrize(
    "rewards_G", [rewards for rewards, *_ in TABLE] + [[0.0], [1e-12], [1.0], [0.2, 0.2 + 1e-6], []]
)
@pytest.mark.parametrize("values", SETTINGS)
def test_statistics_advantages_and_the_choice_of_groups_agree_on_what_a_signal_is(rewards_G, values):
    advantages_G = group_advantages(rewards_G, **values)
    sequences = [TrainedSequence(0, *[np.array([1])] * 3, advantage) for advantage in advantages_G.tolist()]
    assert bool(chosen(sequences, ZeroVariance.DROP).sequences) is not has_no_signal(rewards_G)
    assert group_statistics(rewards_G).has_signal is not has_no_signal(rewards_G)


def mixed():
    """Groups 0 to 4; those with an odd number have no signal."""
    found = []
    for number in range(5):
        advantages = (0.0, 0.0) if number % 2 else (1.0, -0.25)
        found += [
            s.__class__(number, s.token_ids, s.logprobs, s.mask, s.advantage)
            for s in some_sequences(toy_model(), number, num_groups=1, advantages=advantages)
        ]
    return found


def groups_in(sequences):
    return list(dict.fromkeys(sequence.group for sequence in sequences))


def test_keep_drop_and_refill_leave_what_they_say():
    sequences = mixed()
    kept, dropped, refilled = (chosen(sequences, policy) for policy in ZeroVariance)
    assert kept == (sequences, 0, 0)
    assert groups_in(dropped.sequences) == [0, 2, 4] and dropped[1:] == (2, 0)
    assert groups_in(refilled.sequences) == [0, 2, 4, 5, 6] and refilled[1:] == (2, 2)
    again = [s for s in refilled.sequences if s.group in (5, 6)]
    for copy, source in zip(again, [s for s in sequences if s.group in (0, 2)], strict=True):
        assert copy.token_ids is source.token_ids and copy.advantage == source.advantage


@pytest.mark.parametrize("policy", list(ZeroVariance))
def test_where_no_group_has_a_signal_nothing_is_learned_and_it_is_counted(policy):
    model = toy_model()
    engine = TorchEngine(model, settings(zero_variance=policy))
    before = engine.digest()
    metrics = engine.update(batch_of(some_sequences(model, advantages=(0.0, 0.0))))
    assert engine.digest() == before and metrics["num_optimizer_steps"] == 0
    assert metrics["num_dropped_groups"] == (0 if policy is ZeroVariance.KEEP else 3)
    assert all(math.isfinite(value) for value in metrics.values())


def test_dropping_a_group_leaves_its_tokens_out_of_the_mean_and_keeping_counts_them():
    sequences = mixed()
    losses = {}
    for policy in ZeroVariance:
        metrics = TorchEngine(toy_model(), settings(zero_variance=policy)).update(batch_of(sequences))
        losses[policy] = metrics["loss"]
    num_all = sum(s.num_trained for s in sequences)
    num_left = sum(s.num_trained for s in sequences if s.advantage)
    assert losses[ZeroVariance.KEEP] * num_all == pytest.approx(losses[ZeroVariance.DROP] * num_left, rel=1e-3)
    assert losses[ZeroVariance.REFILL] != losses[ZeroVariance.DROP]


def test_refilling_keeps_the_number_of_optimizer_steps():
    steps = {
        policy: TorchEngine(toy_model(), settings(zero_variance=policy, num_minibatches=5)).update(batch_of(mixed()))[
            "num_optimizer_steps"
        ]
        for policy in ZeroVariance
    }
    assert steps == {ZeroVariance.KEEP: 3, ZeroVariance.DROP: 3, ZeroVariance.REFILL: 5}


def test_with_one_minibatch_refilling_evenly_is_dropping():
    sequences = [s for s in mixed() if s.group < 4]
    weights = {}
    for policy in (ZeroVariance.DROP, ZeroVariance.REFILL):
        engine = TorchEngine(toy_model(), settings(zero_variance=policy))
        metrics = engine.update(batch_of(sequences))
        weights[policy] = engine.model.state_dict()
    assert metrics["num_refilled_groups"] == 2
    for name, value in weights[ZeroVariance.DROP].items():
        torch.testing.assert_close(weights[ZeroVariance.REFILL][name], value, atol=1e-4, rtol=1e-3)


class NeverRight(ToyEpisode):
    """Every message is wrong."""

    reward = 0.0


def test_a_step_in_which_no_group_has_a_signal_ends_in_an_event_that_says_so_and_the_run_goes_on(tmp_path):
    from tests.trainer.test_loop import events_of, new_log, setup_of

    log = new_log()
    setup = setup_of(log, tmp_path, new_episode=NeverRight)
    before = setup.engine.digest()
    assert train(setup) is RunOutcome.COMPLETED
    steps = events_of(log, StepCompleted)
    assert [step.step for step in steps] == [1, 2, 3, 4]
    for step in steps:
        assert step.num_zero_variance == step.num_groups == 2
        assert (step.metrics["num_optimizer_steps"], step.weights_digest) == (0, before)
        assert "logprob_gap_mean" not in step.metrics, "no token was scored"
        assert step.metrics["logprob_gap_alarm"] == 0


def test_packs_hold_every_sequence_once_and_respect_the_budget():
    lengths_B = np.random.default_rng(0).integers(1, 60, 50).tolist()
    batches = packs(lengths_B, 100)
    assert sorted(index for batch in batches for index in batch) == list(range(50))
    assert all(sum(lengths_B[index] for index in batch) <= 100 for batch in batches)
    assert len(batches) <= 1.2 * sum(lengths_B) / 100 + 1
    assert packs([500], 100) == [[0]] and packs([], 100) == []
