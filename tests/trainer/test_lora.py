"""Adapters are trained, a plain model is read."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.sequences import batch_of, logprob_of, settings, some_sequences
from tests.trainer.test_objective import small
from tests.trainer.toys import ToyEpisode, ToyTemplate, toy_model, toy_task
from trainer.policy.causal_lm import halves
from trainer.policy.lora import linear_names
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.update.engines import engine_of
from trainer.weights.checkpoint import write_checkpoint
from trainer.weights.digest import weights_digest

pytest.importorskip("peft")


def engine(**values):
    return engine_of(toy_model(), settings(lora_rank=4, **values))


def test_before_the_first_update_the_policy_is_what_it_was_given():
    assert engine().digest() == weights_digest(toy_model())


def test_only_the_linear_layers_move_and_the_plain_model_has_no_adapters():
    adapted = engine()
    adapted.update(batch_of(some_sequences(toy_model())))
    before = dict(toy_model().named_parameters())
    moved = {name for name, p in adapted.model.named_parameters() if not torch.equal(p, before[name])}
    assert set(before) == {name for name, _ in adapted.model.named_parameters()}
    assert moved and {name.split(".")[-2] for name in moved} == linear_names(toy_model()) == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }


def test_named_targets_alone_are_adapted():
    adapted = engine(lora_targets=("q_proj",))
    adapted.update(batch_of(some_sequences(toy_model())))
    before = dict(toy_model().named_parameters())
    moved = {n.split(".")[-2] for n, p in adapted.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"q_proj"}
    with pytest.raises(ValueError, match="no_such_layer"):
        engine(lora_targets=("no_such_layer",))


def test_good_tokens_get_likelier_through_adapters_alone():
    adapted = engine(learning_rate=2e-2)
    sequences = some_sequences(toy_model(), num_groups=2, advantages=(1.0, -1.0))
    before = [logprob_of(adapted.model, sequence) for sequence in sequences]
    for step in range(3):
        adapted.update(batch_of(sequences, step))
    changes = [logprob_of(adapted.model, s) - old for s, old in zip(sequences, before, strict=True)]
    assert all(change > 0 for change in changes[::2]) and all(change < 0 for change in changes[1::2])


def test_samplers_and_checkpoints_read_the_merged_weights(tmp_path):
    adapted = engine()
    sampler = HFSampler(adapted.model, ToyTemplate())
    task, params = toy_task(), SamplingParams(1, 20, 60)
    adapted.update(batch_of(some_sequences(toy_model())))
    played = sampler.rollout([RolloutRequest(task, ToyEpisode(task), 0, (1, "a", 0))], params)[0]
    path = write_checkpoint(tmp_path, 1, adapted.model, None, {}, b"", 1).path
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert weights_digest(loaded) == adapted.digest()
    ids, mask = played.token_ids, played.mask.astype(bool)
    with torch.no_grad():
        logits = halves(loaded).model(input_ids=torch.from_numpy(ids).long()[None]).logits[0, :-1]
    own = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(ids[1:]).long()[:, None])[:, 0].numpy()
    assert abs(own[mask[1:]] - played.logprobs[1:][mask[1:]]).max() < 1e-4


def test_going_on_from_a_saved_state_is_bit_equal_to_never_having_stopped(tmp_path):
    batches = [batch_of(some_sequences(toy_model(), seed), seed) for seed in range(3)]
    whole, first = engine(), engine()
    for each in (whole, first):
        each.update(batches[0])
        each.update(batches[1])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = engine()
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.digest() == first.digest()
    assert second.update(batches[2]) == whole.update(batches[2]) and second.digest() == whole.digest()


def test_experts_that_adapters_cannot_reach_are_refused_unless_the_targets_are_named():
    with pytest.raises(ValueError, match=r"mixtral: empty lora_targets .*experts.* lora_targets = \['k_proj'"):
        engine_of(small("mixtral"), settings(lora_rank=4))
    adapted = engine_of(small("mixtral"), settings(lora_rank=4, lora_targets=("q_proj", "v_proj")))
    adapted.update(batch_of(some_sequences(toy_model())))
    assert adapted.digest() != weights_digest(small("mixtral"))
