"""Settings of the update beyond the plain one, and that the plain one is made of the same operations as ever."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.trainer.sequences import batch_of, settings, some_sequences
from tests.trainer.toys import NUM_IDS, ToyEpisode, ToyTemplate, toy_model, toy_task
from trainer.config import LossAggregation, TrainerConfig
from trainer.policy.causal_lm import halves
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.update import logprobs as logprobs_module
from trainer.update.engine import TrainedSequence
from trainer.update.head_logprobs import HeadLogprobs
from trainer.update.logprobs import packed, padded, score
from trainer.update.loss import clipped_surrogate, token_weights
from trainer.update.minibatches import microbatches, minibatches
from trainer.update.objective import PackingMisfit
from trainer.update.recompute import recomputing
from trainer.update.torch_engine import TorchEngine
from trainer.weights.digest import weights_digest


def weights_after(num_updates=2, **values):
    model = toy_model()
    engine = TorchEngine(model, settings(**values), toy_model(3) if values.get("kl_coef") else None)
    metrics = [engine.update(batch_of(some_sequences(toy_model(), seed), seed)) for seed in range(num_updates)]
    return model, metrics


def assert_close(model, other, atol=2e-4):
    for (name, own), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, atol=atol, rtol=1e-3, msg=name)


def test_the_default_update_is_bit_for_bit_these_operations():
    config = TrainerConfig()
    torch.set_num_threads(config.num_threads)
    plain, sequences = toy_model(), some_sequences(toy_model(), num_groups=4)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=config.learning_rate, weight_decay=0.01, foreach=False)
    policy = halves(plain)
    for number, part in enumerate(minibatches(sequences, 2)):
        weights_B = token_weights([s.num_trained for s in part], LossAggregation.TOKEN_MEAN)
        pairs = [(s, weight) for s, weight in zip(part, weights_B, strict=True) if s.advantage != 0.0]
        for indices in microbatches([len(s.token_ids) for s, _ in pairs], config.token_budget):
            members = [pairs[index] for index in indices]
            tokens = padded([s.token_ids for s, _ in members], [s.mask for s, _ in members], plain.device)
            old_N = torch.from_numpy(np.concatenate([s.logprobs[1:][s.mask[1:] == 1] for s, _ in members]))
            counts = [s.num_trained for s, _ in members]
            advantages_N = torch.from_numpy(np.repeat(np.array([s.advantage for s, _ in members], np.float32), counts))
            weights_N = torch.from_numpy(np.repeat(np.array([weight for _, weight in members], np.float32), counts))
            loss_N = clipped_surrogate(score(policy, tokens).logprobs_N, old_N, advantages_N, 0.2, 0.28, 10.0).loss_N
            (weights_N * loss_N).sum().backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (number + 1) / 8)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model = toy_model()
    TorchEngine(model, config).update(batch_of(sequences))
    assert weights_digest(model) == weights_digest(plain) != weights_digest(toy_model())


@pytest.mark.parametrize("values", [{}, {"entropy_coef": 0.01, "kl_coef": 0.1}, {"recompute_old_logprobs": True}])
def test_packing_changes_nothing_but_rounding(values):
    plain, metrics = weights_after(token_budget=60, **values)
    packing, others = weights_after(token_budget=60, packing=True, **values)
    assert_close(plain, packing)
    for name, value in metrics[-1].items():
        assert others[-1][name] == pytest.approx(value, abs=2e-3), name


def test_packed_sequences_do_not_see_each_other_with_and_without_our_attention():
    for attention in ("rods_grouped", "sdpa", "eager"):
        model = toy_model()
        model.set_attn_implementation(attention)
        sequences = some_sequences(toy_model())[:4]
        arrays = [s.token_ids for s in sequences], [np.ones_like(s.mask) for s in sequences]
        with torch.no_grad():
            apart = score(halves(model), padded(*arrays, model.device)).logprobs_N
            together = score(halves(model), packed(*arrays, model.device)).logprobs_N
        torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)


def test_computing_layers_again_gives_the_same_weights_and_leaves_the_model_as_it_was():
    plain, _ = weights_after()
    again, _ = weights_after(gradient_checkpointing=True)
    assert weights_digest(plain) == weights_digest(again)
    assert not any(module.training for module in again.modules()) and not again.is_gradient_checkpointing
    with recomputing(again):
        assert again.is_gradient_checkpointing
        assert not any(module.training for module in again.modules() if "Layer" not in type(module).__name__)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_heads_own_gradient_is_that_of_autograd(with_entropy, temperature):
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(23, 8), torch.randn(50, 8), torch.randn(50)
    targets, scales = torch.randint(0, 50, (23,)), torch.randn(2, 23)
    results = []
    for at_once in (None, 5):
        inputs = [value.clone().requires_grad_() for value in (hidden, weight, bias)]
        if at_once is None:
            logprobs_NV = torch.log_softmax((inputs[0] @ inputs[1].T + inputs[2]) / temperature, -1)
            logprobs_N = logprobs_NV.gather(1, targets[:, None])[:, 0]
            entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
        else:
            logprobs_N, entropy_N = HeadLogprobs.apply(*inputs, targets, temperature, at_once, with_entropy)
        loss = (scales[0] * logprobs_N).sum() + ((scales[1] * entropy_N).sum() if with_entropy else 0.0)
        loss.backward()
        results.append([logprobs_N.detach(), *(value.grad for value in inputs)])
    for own, expected in zip(*results[::-1], strict=True):
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-4)


def test_a_large_vocabulary_in_pieces_learns_what_it_learns_whole(monkeypatch):
    whole, _ = weights_after(entropy_coef=0.01)
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 5 * NUM_IDS)
    pieces, _ = weights_after(entropy_coef=0.01)
    assert_close(whole, pieces)
    half, _ = weights_after(entropy_coef=0.01, dtype="bfloat16")
    assert all(torch.isfinite(parameter).all() for parameter in half.parameters())


def test_a_constant_aggregation_is_a_sum_over_a_constant():
    model, sequences = toy_model(), some_sequences(toy_model())
    config = settings(loss_aggregation="constant", loss_constant_tokens=100)
    metrics = TorchEngine(model, config).update(batch_of(sequences))
    expected = -sum(s.advantage * s.num_trained for s in sequences) / (len(sequences) * 100)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)
    default = TorchEngine(toy_model(), settings(loss_aggregation="constant")).update(batch_of(sequences))
    assert default["loss"] == pytest.approx(expected * 100 / TrainerConfig().max_episode_tokens, abs=1e-6)


def test_both_estimators_hold_the_policy_to_the_reference_in_value():
    found = {}
    for estimator in ("k1", "k3"):
        _, metrics = weights_after(1, kl_coef=0.1, kl_estimator=estimator)
        found[estimator] = metrics[0]["reference_kl"]
    assert found["k3"] > 0 and found["k1"] != found["k3"]


def test_truncated_importance_makes_up_for_a_sampler_with_other_numbers():
    sequences = some_sequences(toy_model(), advantages=(1.0, -1.0))
    faithful = TorchEngine(toy_model(), settings(recompute_old_logprobs=True, importance_cap=2.0))
    plain = TorchEngine(toy_model(), settings(recompute_old_logprobs=True))
    own, expected = faithful.update(batch_of(sequences)), plain.update(batch_of(sequences))
    assert own["importance_mean"] == pytest.approx(1, abs=1e-5) and own["importance_capped_frac"] == 0
    assert own["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert_close(faithful.model, plain.model)
    off = copy.deepcopy(sequences)
    for number, sequence in enumerate(off):
        sequence.logprobs[sequence.mask == 1] += (np.log(2.0), -5.0)[number % 2]
    metrics = TorchEngine(toy_model(), settings(recompute_old_logprobs=True, importance_cap=2.0)).update(batch_of(off))
    counts = [s.num_trained for s in off]
    halved, capped = sum(counts[::2]), sum(counts[1::2])
    assert metrics["importance_mean"] == pytest.approx((0.5 * halved + 2 * capped) / sum(counts), rel=1e-4)
    assert metrics["importance_capped_frac"] == pytest.approx(capped / sum(counts))
    assert metrics["loss"] == pytest.approx((-0.5 * halved + 2 * capped) / sum(counts), rel=1e-4)
    assert metrics["logprob_gap_kl"] > 0.1 and metrics["mean_ratio"] == pytest.approx(1, abs=1e-4)


def test_settings_that_mean_nothing_alone_are_refused():
    with pytest.raises(ValueError, match="recompute_old_logprobs"):
        TrainerConfig(importance_cap=2.0)
    with pytest.raises(ValueError, match="lr_decay_steps above warmup_steps"):
        TrainerConfig(lr_schedule="cosine")


def sampled_in_bfloat16():
    """Groups that a bfloat16 copy of the model sampled, with the log-probabilities it sampled them with."""
    copied = toy_model(max_tokens=512).to(torch.bfloat16)
    tasks = [toy_task(f"base_{number}", 3) for number in range(6)]
    requests = [RolloutRequest(task, ToyEpisode(task), k, (1, task.task_id, k)) for task in tasks for k in range(4)]
    played = HFSampler(copied, ToyTemplate()).rollout(requests, SamplingParams(7, 40, 400))
    return [
        TrainedSequence(number // 4, r.token_ids, r.logprobs, r.mask, (1.0, -1.0)[number % 2])
        for number, r in enumerate(played)
    ]


def test_a_bfloat16_sampler_leaves_the_clip_range_before_the_first_step_and_the_correction_brings_it_back():
    sequences = sampled_in_bfloat16()

    def first_update(**values):
        return TorchEngine(toy_model(max_tokens=512), settings(clip_low=0.02, clip_high=0.02, **values)).update(
            batch_of(sequences)
        )

    plain, corrected = first_update(), first_update(recompute_old_logprobs=True, importance_cap=2.0)
    assert (
        1e-3 < plain["logprob_gap_mean"] == pytest.approx(corrected["logprob_gap_mean"])
        and plain["logprob_gap_max"] > 0.02
    )
    assert plain["clip_frac"] > 0 and plain["mean_ratio"] != pytest.approx(1.0, abs=1e-6)
    assert corrected["clip_frac"] == 0 and corrected["mean_ratio"] == pytest.approx(1.0, abs=1e-6)


ARCHITECTURES = {
    "llama": {}, "qwen2": {}, "qwen3": {"head_dim": 8}, "gpt_neox": {}, "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "stablelm": {}, "nemotron": {}, "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "mistral": {"sliding_window": 8}, "phi3": {"sliding_window": 8}, "starcoder2": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4}, "gemma3_text": {"sliding_window": 8, "head_dim": 8}, "olmo2": {},
}  # fmt: skip
NOT_PACKABLE = {"falcon"}


def small(kind, **values):
    shape = {
        "vocab_size": NUM_IDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**shape | ARCHITECTURES[kind] | values)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_packed_sequences_are_scored_as_alone_or_packing_is_refused_with_the_figure(kind):
    sequences = some_sequences(toy_model())
    if kind in NOT_PACKABLE:
        with pytest.raises(PackingMisfit, match=rf"{kind}: packed .* nats .*trainer.packing=false"):
            TorchEngine(small(kind), settings(packing=True))
        return
    metrics = [
        TorchEngine(small(kind), settings(packing=packing, token_budget=100)).update(batch_of(sequences))
        for packing in (False, True)
    ]
    for name in ("loss", "entropy", "logprob_gap_mean", "logprob_gap_max"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-4), name
