"""A causal language model taken apart: a decoder that gives hidden states, and the head that gives logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel


class UnsupportedModel(ValueError):
    """A model whose logits are more than its head applied to its hidden states."""


@dataclass(frozen=True)
class CausalLM:
    """The two halves of a model; ``head(decoder(ids).last_hidden_state)`` are its logits.

    Attributes:
        model: The whole.
        decoder: Gives hidden states.
        head: Gives logits of hidden states.
        takes_lengths: Whether our attention keeps packed sequences apart; else the mask that transformers derives from
            positions does.
    """

    model: PreTrainedModel
    decoder: nn.Module
    head: nn.Module
    takes_lengths: bool = False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def max_tokens(self) -> int:
        """Longest sequence the model was built for, tokens."""
        return self.model.config.max_position_embeddings


def halves(model: PreTrainedModel) -> CausalLM:
    """Split a model and check on two tokens that the halves make the whole.

    Raises:
        UnsupportedModel: the logits are scaled or capped behind the head.
    """
    parts = CausalLM(model, model.base_model, model.get_output_embeddings())
    ids = torch.tensor([[0, 1]], device=model.device)
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        built = parts.head(parts.decoder(input_ids=ids, use_cache=False).last_hidden_state)
    if not torch.allclose(whole, built, atol=1e-4, rtol=1e-3, equal_nan=True):
        name = model.config.model_type
        raise UnsupportedModel(f"{name}: logits are not head(hidden states); use another sampler and engine")
    return parts
