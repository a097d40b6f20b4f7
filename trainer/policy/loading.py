"""The policy: a small Qwen3 built from a config, or any causal language model loaded by path.

A small policy and its byte-level tokenizer are functions of a config, a seed and texts; the same inputs give
the same bytes. Loading never runs code that comes with a checkpoint.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trainer.policy.template import COMPACT_TOKENS, END, SYSTEM_TEXT, ChatTemplate, CompactTemplate, Template

PAD = "<pad>"
FORMAT_KEY = "rods_format"
"""Where a saved tokenizer says how its model is spoken to and read."""
# Words without their blank and single digits: a name is the same tokens in a sentence and in a JSON string,
# which is what lets a small model copy it.
PIECES = r"[A-Za-z]+|[0-9]| |[^\sA-Za-z0-9]+|\s+"


class PolicyConfig(BaseModel):
    """Shape of a small policy; the defaults are the shipped one's, 0.42 million parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_size: int = Field(128, ge=8, description="Width of the residual stream.")
    num_layers: int = Field(2, ge=1, description="Number of transformer layers.")
    num_heads: int = Field(4, ge=1, description="Number of attention heads.")
    num_kv_heads: int = Field(2, ge=1, description="Number of key/value heads; divides num_heads.")
    head_dim: int = Field(32, ge=2, description="Width of one attention head; even.")
    intermediate_size: int = Field(256, ge=8, description="Width of the feed-forward layer.")
    vocab_size: int = Field(1000, ge=300, description="Size of the byte-level BPE vocabulary, control tokens included.")
    max_tokens: int = Field(2048, ge=64, description="Longest sequence, tokens.")
    seed: int = Field(0, ge=0, description="Seed of the initial weights.")


@dataclass(frozen=True)
class Policy:
    """A model, its tokenizer and the template that turns episodes into its tokens."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    template: Template


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE over ``texts`` with the compact format's control tokens; any text encodes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, *COMPACT_TOKENS],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END)


def build_policy(config: PolicyConfig, texts: Iterable[str]) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A fresh model with seeded weights and a tokenizer trained on ``texts``."""
    tokenizer = train_tokenizer(texts, config.vocab_size)
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_tokens,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = Qwen3ForCausalLM(shape)
    return model, tokenizer


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write config, bf16 weights and tokenizer in the layout every transformers reader knows."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_policy(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    parser: str = "",
    system_text: str = "",
    template_options: Mapping[str, object] | None = None,
) -> Policy:
    """Model, tokenizer and template of a checkpoint folder (or a hub name); see ``choose_template``."""
    tokenizer, model = AutoTokenizer.from_pretrained(path), load_model(path, dtype)
    return Policy(model, tokenizer, choose_template(model, tokenizer, parser, system_text, template_options))


def load_model(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of a checkpoint folder (or a hub name), however it is spoken to.

    How the model's authors sample is of no use here, and is dropped where transformers would refuse to save it.
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        kept = {
            name: getattr(model.generation_config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        }
        model.generation_config = GenerationConfig(**kept)
    return model


def choose_template(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    parser: str = "",
    system_text: str = "",
    template_options: Mapping[str, object] | None = None,
) -> Template:
    """The template that fits a tokenizer: the compact one where it has its control tokens, else its chat template.

    How a chat model is spoken to and read is kept with the tokenizer, so that a checkpoint says it by itself.

    Args:
        model: says which tokens end a message.
        tokenizer: of the model; saved, it says the three values below.
        parser: how messages are read; if empty what the tokenizer says, else hermes.
        system_text: the system message; if empty what the tokenizer says, else a plain one.
        template_options: values for the chat template; if none what the tokenizer says.

    Raises:
        ValueError: the tokenizer has neither the control tokens nor a chat template, or one that does not fit.
    """
    if set(COMPACT_TOKENS) <= set(tokenizer.get_vocab()):
        return CompactTemplate(tokenizer)
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer of {tokenizer.name_or_path!r} has neither the compact control tokens nor "
            "a chat template: give an instruct model or a checkpoint of warm_start"
        )
    said = tokenizer.init_kwargs.get(FORMAT_KEY, {})
    spoken = {
        "parser": parser or said.get("parser", "hermes"),
        "system_text": system_text or said.get("system_text", SYSTEM_TEXT),
        "template_options": dict(template_options or said.get("template_options", {})),
    }
    ends = model.generation_config.eos_token_id if model.generation_config else None
    stops = ends if isinstance(ends, list) else [ends] if ends is not None else []
    template = ChatTemplate(tokenizer, stop_ids=stops, **spoken)
    template.require_fit()
    tokenizer.init_kwargs[FORMAT_KEY] = spoken | {"template_options": template.options}
    return template


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the tokenizer's full definition, hexadecimal."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
