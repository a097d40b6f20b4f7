"""The plain torch engine: what an update does to the weights."""

import copy

import numpy as np
import pytest
import torch

from schemas import make
from schemas.events import BatchPlanned, RewardKind
from tests.trainer.sequences import batch_of, logprob_of, settings, some_sequences
from tests.trainer.toys import NUM_IDS, ToyEpisode, ToyTemplate, toy_model, toy_task
from trainer.config import LossAggregation
from trainer.policy.causal_lm import halves
from trainer.rollouts.groups import groups_of, play_batch, update_batch_from_events
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import SamplingParams
from trainer.update import logprobs as logprobs_module
from trainer.update.engine import TrainedSequence, UpdateBatch
from trainer.update.logprobs import padded, score
from trainer.update.minibatches import microbatches, minibatches
from trainer.update.torch_engine import TorchEngine, learning_rate
from trainer.weights.digest import weights_digest


def naive_loss(model, sequence, old_N, config):
    """Loss terms of one sequence with full logits, written out."""
    ids = torch.from_numpy(sequence.token_ids.astype(np.int64))
    logprobs_TV = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], -1)
    trained = torch.from_numpy(sequence.mask[1:].astype(bool))
    new_N = logprobs_TV.gather(1, ids[1:, None])[:, 0][trained]
    entropy_N = -(logprobs_TV.exp() * logprobs_TV).sum(-1)[trained]
    ratio_N, advantage = (new_N - old_N).exp(), sequence.advantage
    loss_N = torch.maximum(-advantage * ratio_N, -advantage * ratio_N.clamp(0.8, 1.28))
    return loss_N - config.entropy_coef * entropy_N


@pytest.mark.parametrize("aggregation", [LossAggregation.TOKEN_MEAN, LossAggregation.SEQ_MEAN_TOKEN_MEAN])
def test_an_update_is_the_adamw_step_of_the_loss_written_out(aggregation):
    model = toy_model()
    sequences = some_sequences(model)
    config = settings(loss_aggregation=aggregation, entropy_coef=0.01, token_budget=40)
    naive = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(naive.parameters(), lr=1e-2, weight_decay=0.01)
    losses = [naive_loss(naive, s, torch.from_numpy(s.logprobs[1:][s.mask[1:] == 1]), config) for s in sequences]
    if aggregation is LossAggregation.TOKEN_MEAN:
        loss = torch.cat(losses).mean()
    else:
        loss = torch.stack([loss_N.mean() for loss_N in losses]).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(naive.parameters(), 1.0)
    optimizer.step()
    metrics = TorchEngine(model, config).update(batch_of(sequences))
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    for (name, own), (_, expected) in zip(model.named_parameters(), naive.named_parameters(), strict=True):
        torch.testing.assert_close(own, expected, atol=2e-4, rtol=1e-3, msg=name)


def test_tokens_of_good_rollouts_get_likelier_and_those_of_bad_ones_less_likely():
    model = toy_model()
    sequences = some_sequences(model, num_groups=2, advantages=(1.0, -1.0))
    before = [logprob_of(model, sequence) for sequence in sequences]
    engine = TorchEngine(model, settings(learning_rate=2e-3))
    for step in range(3):
        engine.update(batch_of(sequences, step))
    changes = np.array([logprob_of(model, sequence) for sequence in sequences]) - before
    assert (changes[::2] > 0).all() and (changes[1::2] < 0).all()


def test_equal_states_and_batches_give_equal_weights():
    digests = []
    for _ in range(2):
        model = toy_model()
        engine = TorchEngine(model, settings(num_minibatches=2, token_budget=64))
        engine.update(batch_of(some_sequences(toy_model())))
        digests.append(engine.digest())
    assert digests[0] == digests[1] != weights_digest(toy_model())


def test_the_token_budget_changes_nothing_but_rounding():
    models = [toy_model(), toy_model()]
    for model, budget in zip(models, (30, 10_000), strict=True):
        TorchEngine(model, settings(token_budget=budget)).update(batch_of(some_sequences(toy_model())))
    for own, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(own, other, atol=2e-4, rtol=1e-3)


def test_a_batch_without_any_signal_leaves_weights_and_optimizer_alone():
    model = toy_model()
    engine = TorchEngine(model, settings())
    engine.update(batch_of(some_sequences(toy_model())))
    before = engine.digest()
    metrics = engine.update(batch_of(some_sequences(model, advantages=(0.0, 0.0))))
    assert engine.digest() == before
    assert metrics["num_skipped_updates"] == 1 and metrics["num_optimizer_steps"] == 0
    assert all(np.isfinite(value) for value in metrics.values())
    assert engine.update(UpdateBatch(3, (), 0, 0))["num_optimizer_steps"] == 0
    assert engine.digest() == before


def test_sequences_with_zero_advantage_still_count_in_the_mean():
    model = toy_model()
    sequences = some_sequences(model, num_groups=1)
    metrics = TorchEngine(model, settings()).update(batch_of(sequences))
    expected = sum(-s.advantage * s.num_trained for s in sequences) / sum(s.num_trained for s in sequences)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_a_gradient_that_is_not_finite_is_not_applied():
    model = toy_model()
    engine = TorchEngine(model, settings())
    before = engine.digest()
    metrics = engine.update(batch_of(some_sequences(model, advantages=(float("inf"), 1.0))))
    assert engine.digest() == before
    assert metrics["num_skipped_updates"] == 1


def test_going_on_from_a_saved_state_is_bit_equal_to_never_having_stopped(tmp_path):
    config = settings(warmup_steps=5, num_minibatches=2)
    batches = [batch_of(some_sequences(toy_model(), seed), seed) for seed in range(3)]
    whole = TorchEngine(toy_model(), config)
    first = TorchEngine(toy_model(), config)
    for engine in (whole, first):
        engine.update(batches[0])
        engine.update(batches[1])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = TorchEngine(copy.deepcopy(first.model), config)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.update(batches[2]) == whole.update(batches[2])
    assert second.digest() == whole.digest()


def test_a_faithful_sampler_has_no_gap_and_a_ratio_of_one():
    model = toy_model()
    metrics = TorchEngine(model, settings()).update(batch_of(some_sequences(model)))
    assert metrics["logprob_gap_max"] < 1e-5
    assert metrics["mean_ratio"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip_frac"] == 0 and metrics["kl"] == pytest.approx(0, abs=1e-8)


def test_a_gap_that_is_no_number_is_told_as_none_wherever_it_stands_in_the_batch():
    for place in range(3):
        model = toy_model()
        sequences = some_sequences(model)
        sequences[4 * place].logprobs[-1] = float("nan")
        for recomputes in (False, True):
            config = settings(recompute_old_logprobs=recomputes, token_budget=40)
            metrics = TorchEngine(toy_model(), config).update(batch_of(sequences))
            assert np.isnan(metrics["logprob_gap_max"]) and np.isnan(metrics["logprob_gap_mean"])


def test_recomputed_old_logprobs_replace_the_recorded_ones_and_the_gap_is_still_told():
    model = toy_model()
    sequences = some_sequences(model)
    for sequence in sequences:
        sequence.logprobs[sequence.mask == 1] -= 0.5
    metrics = TorchEngine(toy_model(), settings(recompute_old_logprobs=True)).update(batch_of(sequences))
    assert metrics["logprob_gap_mean"] == pytest.approx(0.5, abs=1e-5)
    assert metrics["mean_ratio"] == pytest.approx(1, abs=1e-5)
    recorded = TorchEngine(toy_model(), settings()).update(batch_of(sequences))
    assert recorded["mean_ratio"] == pytest.approx(np.exp(0.5), rel=1e-4)


def test_the_reference_model_holds_the_policy_back():
    distances = []
    for kl_coef in (0.0, 5.0):
        model, reference = toy_model(), toy_model()
        engine = TorchEngine(model, settings(kl_coef=kl_coef, learning_rate=1e-3), reference)
        sequences = some_sequences(toy_model())
        for step in range(4):
            metrics = engine.update(batch_of(sequences, step))
        distances.append(sum(abs(logprob_of(model, s) - logprob_of(reference, s)) for s in sequences))
        assert (metrics["reference_kl"] > 0) == (kl_coef > 0)
    assert distances[1] < distances[0]


def test_a_kl_term_without_a_reference_model_is_refused():
    with pytest.raises(ValueError, match="kl_coef is 0.01"):
        TorchEngine(toy_model(), settings(kl_coef=0.01))


def test_the_learning_rate_rises_with_every_optimizer_step_of_the_warm_up():
    engine = TorchEngine(toy_model(), settings(warmup_steps=4, num_minibatches=3))
    rates = [engine.update(batch_of(some_sequences(toy_model())))["lr"] for _ in range(2)]
    assert rates == pytest.approx([0.0075, 0.01])
    assert learning_rate(1.0, 0, 0) == 1.0


def test_logits_in_pieces_give_the_same_values_and_gradients(monkeypatch):
    model = toy_model()
    sequences = some_sequences(model)
    batch = padded([s.token_ids for s in sequences], [s.mask for s in sequences], model.device)
    results = []
    for at_once in (2**24, 7 * NUM_IDS):
        monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", at_once)
        model.zero_grad()
        scored = score(halves(model), batch, temperature=0.7, with_entropy=True)
        (scored.logprobs_N.sum() + scored.entropy_N.sum()).backward()
        results.append((scored.logprobs_N.detach(), scored.entropy_N.detach(), model.lm_head.weight.grad.clone()))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(whole, pieces, atol=1e-4, rtol=1e-4)


def test_bfloat16_learns_the_same_way_within_its_precision():
    model = toy_model()
    sequences = some_sequences(model)
    metrics = TorchEngine(model, settings(dtype="bfloat16")).update(batch_of(sequences))
    assert metrics["logprob_gap_mean"] < 0.1 and metrics["grad_norm"] > 0
    assert model.dtype == torch.float32


def test_minibatches_keep_groups_whole_and_in_order():
    sequences = some_sequences(toy_model(), num_groups=5)
    parts = minibatches(sequences, 2)
    assert [sorted({s.group for s in part}) for part in parts] == [[0, 1, 2], [3, 4]]
    assert [s for part in parts for s in part] == sequences
    assert len(minibatches(sequences, 9)) == 5
    untrained = TrainedSequence(9, np.array([1]), np.zeros(1, np.float32), np.ones(1, np.uint8), 1.0)
    assert minibatches([untrained], 2) == []


def test_microbatches_hold_every_sequence_once_and_respect_the_budget():
    lengths_B = np.random.default_rng(0).integers(1, 60, 50).tolist()
    batches = microbatches(lengths_B, 100)
    assert sorted(index for batch in batches for index in batch) == list(range(50))
    assert all(len(batch) * max(lengths_B[index] for index in batch) <= 100 for batch in batches)
    assert microbatches([500], 100) == [[0]]


def test_the_digest_sees_a_single_changed_bit_and_not_the_object():
    model = toy_model()
    before = weights_digest(model)
    assert before == weights_digest(copy.deepcopy(model))
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-7
    assert weights_digest(model) != before


def test_playing_and_learning_in_turns_raises_the_reward():
    config = settings(learning_rate=5e-3, warmup_steps=4, num_minibatches=2)
    model = toy_model()
    engine, sampler = TorchEngine(model, config), HFSampler(model, ToyTemplate())
    tasks = {task.task_id: task for task in (toy_task("base_0", 2), toy_task("base_1", 2))}
    params = SamplingParams(seed=1, max_message_tokens=20, max_episode_tokens=60)
    means = []
    for step in range(1, 21):
        plan = make(
            BatchPlanned, "run", step=step, epoch=0, task_ids=tuple(tasks), is_last_of_epoch=False, input_cursor=()
        )
        bodies = play_batch(plan, tasks, 16, sampler, params, ToyEpisode)
        means.append(np.mean([body.reward for body in bodies]))
        groups = groups_of(plan, bodies)
        bodies_by_id = {body.trajectory_id: body for body in bodies}
        engine.update(update_batch_from_events(step, groups, bodies_by_id, RewardKind.PROGRESS))
    assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.25
