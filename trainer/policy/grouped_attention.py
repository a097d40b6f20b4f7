"""Attention for one new token per row that reads every key and value once.

With grouped queries several query heads share one key/value head. When each row has a single query, these
heads can stand where the query positions would stand, so no head is repeated: about twice as fast on a CPU,
where reading the cache is what costs. Sequences that lie end to end in one row attend each to itself. Everything
else goes to the ordinary scaled dot-product attention.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "rods_grouped"


def grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sequence_lengths: tuple[int, ...] | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention output, shape (rows, queries, heads, width).

    Args:
        query: shape (rows, heads, queries, width).
        key: shape (rows, key/value heads, tokens, width); value likewise.
        attention_mask: see transformers; a mask or more than one query takes the ordinary way.
        scaling: factor of the scores.
        sequence_lengths: tokens of each sequence in the one row; the mask is then passed over.
    """
    if sequence_lengths is not None:
        return _each_to_itself(query, key, value, scaling, sequence_lengths), None
    rows, num_heads, num_queries, width = query.shape
    if num_queries != 1 or attention_mask is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    per_group = query.reshape(rows, key.shape[1], num_heads // key.shape[1], width)
    mixed = nn.functional.scaled_dot_product_attention(per_group, key, value, scale=scaling)
    return mixed.reshape(rows, 1, num_heads, width), None


def _each_to_itself(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, lengths: tuple[int, ...]
) -> torch.Tensor:
    parts = zip(*(states.split(lengths, dim=2) for states in (query, key, value)), strict=True)
    mixed = [
        nn.functional.scaled_dot_product_attention(*part, is_causal=True, scale=scaling, enable_gqa=True)
        for part in parts
    ]
    return torch.cat(mixed, dim=2).transpose(1, 2)


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def use_grouped_attention(model: PreTrainedModel) -> bool:
    """Make a model that uses scaled dot-product attention use this one; any other model is left alone.

    Returns whether the model uses it and every layer of it sees the whole sequence.
    """
    config = model.config
    if config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)
    has_window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    return config._attn_implementation == NAME and layers == {"full_attention"} and not has_window
