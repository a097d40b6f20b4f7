"""Small policies are functions of config, seed and texts; loaded ones bring the template that fits them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from environments.episode import Incoming
from environments.registry import load_tasks
from schemas.events import FinishReason
from tests.trainer.test_template import chat_tokenizer
from trainer.policy.loading import (
    PolicyConfig,
    build_policy,
    load_policy,
    save_policy,
    tokenizer_digest,
    train_tokenizer,
)
from trainer.policy.players import player_of
from trainer.policy.sampling_format import load_template
from trainer.policy.serving_copy import write_serving_copy
from trainer.policy.template import COMPACT_TOKENS, ChatTemplate, CompactTemplate, UnknownToken
from trainer.rollouts.episodes import EpisodeMaker
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.live_episode import LiveEpisode
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.weights.checkpoint import write_checkpoint
from trainer.weights.digest import weights_digest

TEXTS = ["Copy 'report.txt' to the archive folder.", 'cp{"destination":"archive","source":"report.txt"}']
SMALL = PolicyConfig(
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=16,
    vocab_size=320,
    max_tokens=64,
)


def test_equal_config_and_texts_give_equal_weights_and_tokenizer() -> None:
    first, second = build_policy(SMALL, TEXTS), build_policy(SMALL, TEXTS)
    other = build_policy(SMALL.model_copy(update={"seed": 1}), TEXTS)
    assert weights_digest(first[0]) == weights_digest(second[0]) != weights_digest(other[0])
    assert tokenizer_digest(first[1]) == tokenizer_digest(second[1]) == tokenizer_digest(other[1])
    assert tokenizer_digest(first[1]) != tokenizer_digest(train_tokenizer(["other"], 320))


def test_building_a_policy_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    build_policy(SMALL, TEXTS)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("text", ["", "Grüße – 漢字 \x00\n\t", "a  b   c", "<u> </c>", "3.14 and -2,500"])
def test_any_text_survives_the_tokenizer(text: str) -> None:
    template = CompactTemplate(train_tokenizer(TEXTS, 320))
    assert template.message_text(template.incoming_ids([Incoming("user", text)])) == f"<u>{text}"


def test_a_name_is_the_same_tokens_in_a_sentence_and_in_a_call() -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    name = tokenizer.encode("report.txt")
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert any(ids[at : at + len(name)] == name for at in range(len(ids))), text


def test_a_saved_policy_is_small_plain_and_loads_with_the_compact_template(tmp_path: Path) -> None:
    model, tokenizer = build_policy(SMALL, TEXTS)
    digest = weights_digest(model)
    save_policy(model, tokenizer, tmp_path)
    assert weights_digest(model) == digest, "saving changed the model"
    policy = load_policy(tmp_path)
    assert isinstance(policy.template, CompactTemplate)
    assert policy.model.dtype is torch.float32 and tokenizer_digest(policy.tokenizer) == tokenizer_digest(tokenizer)
    for name, value in model.state_dict().items():
        assert torch.equal(policy.model.state_dict()[name], value.to(torch.bfloat16).float()), name
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert set(COMPACT_TOKENS) <= set(policy.tokenizer.get_vocab())


def test_a_chat_model_loads_with_its_chat_template_and_all_its_stop_tokens(tmp_path: Path) -> None:
    model, _ = build_policy(SMALL, TEXTS)
    tokenizer = chat_tokenizer()
    model.generation_config.eos_token_id = [7, tokenizer.eos_token_id]
    save_policy(model, tokenizer, tmp_path)
    template = load_policy(tmp_path, parser="strict").template
    assert isinstance(template, ChatTemplate) and template.parser == "strict"
    assert template.stop_ids == {7, tokenizer.eos_token_id}


def test_a_checkpoint_says_by_itself_how_its_model_is_spoken_to_and_read(tmp_path: Path) -> None:
    model, _ = build_policy(SMALL, TEXTS)
    save_policy(model, chat_tokenizer(), tmp_path / "given")
    spoken = {"parser": "strict", "system_text": "Think, then call.", "template_options": {"enable_thinking": False}}
    plain = load_policy(tmp_path / "given")
    policy = load_policy(tmp_path / "given", **spoken)
    assert plain.template.parser == "hermes" and plain.template.digest != policy.template.digest
    assert load_template(tmp_path / "given", **spoken)[1].digest == policy.template.digest
    kept = write_checkpoint(tmp_path / "run", 0, policy.model, policy.tokenizer, {}, b"", 1)
    for template in (load_policy(kept.path).template, load_template(kept.path)[1]):
        assert (template.parser, template.digest, template.stop_ids) == (
            "strict",
            policy.template.digest,
            policy.template.stop_ids,
        )
    assert player_of(str(kept.path)).template.digest == policy.template.digest
    assert load_policy(kept.path, parser="hermes").template.parser == "hermes", "what is asked for counts more"


def test_a_tokenizer_with_neither_format_is_refused_by_name(tmp_path: Path) -> None:
    model, _ = build_policy(SMALL, TEXTS)
    save_policy(model, chat_tokenizer(None), tmp_path)
    with pytest.raises(ValueError, match="neither the compact control tokens nor a chat template"):
        load_policy(tmp_path)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="widht"):
        PolicyConfig(widht=3)


def test_an_id_that_the_tokenizer_has_no_token_for_ends_its_rollout_with_the_reason() -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    template, task = CompactTemplate(tokenizer), load_tasks("train")[0]
    with pytest.raises(UnknownToken, match="id 400 is no token"):
        template.message_text([400])
    model, _ = build_policy(SMALL.model_copy(update={"vocab_size": 320, "max_tokens": 1024}), TEXTS)
    model.resize_token_embeddings(400)
    requests = [RolloutRequest(task, EpisodeMaker("compact")(task), index, ("r", index)) for index in range(4)]
    rollouts = HFSampler(model, template).rollout(requests, SamplingParams(1, 500, 900, temperature=5.0))
    told = [rollout.error for rollout in rollouts if rollout.error]
    assert told and all("is no token of the tokenizer" in error for error in told)
    live = LiveEpisode(
        RolloutRequest(task, EpisodeMaker("compact")(task), 0, ("r", 0)), template, SamplingParams(1, 9, 900), 900
    )
    live.accept(live.ids, [400, min(template.stop_ids)], [-1.0, -1.0], "stop", None)
    assert live.is_over and "id 400 is no token" in live.rollout().error
    cut = LiveEpisode(
        RolloutRequest(task, EpisodeMaker("compact")(task), 0, ("r", 0)), template, SamplingParams(1, 2, 900), 900
    )
    cut.accept(cut.ids, [400, 200], [-1.0, -1.0], "length", None)
    assert cut.rollout().episode.finish_reason is FinishReason.ERROR and "id 400 is no token" in cut.rollout().error


def test_a_generation_config_that_transformers_will_not_save_does_not_break_the_first_checkpoint(
    tmp_path: Path,
) -> None:
    model, tokenizer = build_policy(SMALL, TEXTS)
    save_policy(model, tokenizer, tmp_path / "policy")
    ends = tokenizer.eos_token_id
    odd = {"temperature": 0.6, "do_sample": False, "eos_token_id": [ends, 3]}
    (tmp_path / "policy" / "generation_config.json").write_text(json.dumps(odd))
    policy = load_policy(tmp_path / "policy")
    made = write_checkpoint(tmp_path / "checkpoints", 1, policy.model, policy.tokenizer, {}, b"", 2)
    assert load_policy(made.path).model.generation_config.eos_token_id == [ends, 3]
    write_serving_copy(policy.model, tmp_path / "served", policy.tokenizer)
