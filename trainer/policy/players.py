"""A policy to play with, named by a path or by the address of a vLLM server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch
from transformers.utils.logging import disable_progress_bar

from trainer.policy.loading import load_policy
from trainer.policy.sampling_format import load_template
from trainer.policy.template import Template
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import Sampler

ASSET = Path(__file__).parent.parent / "assets" / "default-policy"


class NoPlayer(ValueError):
    """A model that cannot be played with; the text says what is missing."""


@dataclass(frozen=True)
class Player:
    """A sampler and the format it speaks.

    Attributes:
        name: What was asked for.
        sampler: Plays episodes.
        template: The prompt format.
        max_tokens: Longest sequence, tokens.
    """

    name: str
    sampler: Sampler
    template: Template
    max_tokens: int


def player_of(model: str, tokenizer: str = "", parser: str = "", device: str = "", dtype: str = "") -> Player:
    """Open a policy.

    Args:
        model: folder or hub name of a transformers model, ``default`` for the shipped one, or ``http://host:port`` of a
            vLLM server.
        tokenizer: folder or hub name of the server's tokenizer; not needed for a path.
        parser: how messages of a chat model are read; if empty what its checkpoint says, else hermes.
        device: torch device; a GPU if there is one.
        dtype: float32 or bfloat16; float32 on a CPU, bfloat16 on a GPU.

    Raises:
        NoPlayer: there is no such model, or the tokenizer of a server is not given.
    """
    disable_progress_bar()
    try:
        if urlsplit(model).scheme in ("http", "https"):
            return _served(model, tokenizer, parser)
        return _loaded(model, parser, device, dtype)
    except NoPlayer:
        raise
    except (OSError, ValueError) as error:
        raise NoPlayer(f"cannot play with {model!r}: {error}") from error


def _loaded(model: str, parser: str, device: str, dtype: str) -> Player:
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    number = getattr(torch, dtype or ("float32" if where.type == "cpu" else "bfloat16"))
    policy = load_policy(ASSET if model == "default" else model, dtype=number, parser=parser)
    policy.model.to(where).eval()
    length = policy.model.config.get_text_config().max_position_embeddings
    return Player(model, HFSampler(policy.model, policy.template), policy.template, length)


def _served(url: str, tokenizer: str, parser: str) -> Player:
    if not tokenizer:
        raise NoPlayer(f"cannot play with {url!r}: say whose tokenizer it uses with --tokenizer")
    from trainer.rollouts.vllm_client import VllmError
    from trainer.rollouts.vllm_server_sampler import VllmServerSampler

    _, template = load_template(tokenizer, parser=parser)
    sampler = VllmServerSampler(url, template)
    try:
        return Player(url, sampler, template, sampler.facts().max_tokens)
    except VllmError as error:
        raise NoPlayer(str(error)) from error
