"""A key/value cache that writes into a growing buffer instead of concatenating at every step.

All rows of the batch hold the same number of tokens, row i of the cache is row i of the batch, and the rows in
use are always the first ones: a row that is no longer needed is overwritten by the last one.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

FIRST_CAPACITY = 256


class BufferedLayer(DynamicLayer):
    """Keys and values of one layer; buffers of shape (rows, heads, capacity, head width)."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__()
        self._max_tokens = max_tokens
        self._num_tokens = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._buffer(key_states, key_states.shape[2])
        self.values = self._buffer(value_states, value_states.shape[2])
        self.is_initialized = True

    def _buffer(self, like: torch.Tensor, num_tokens: int) -> torch.Tensor:
        rows, heads, _, width = like.shape
        capacity = min(max(FIRST_CAPACITY, 2 * num_tokens), max(self._max_tokens, num_tokens))
        return like.new_empty((rows, heads, capacity, width))

    def _grow(self, num_tokens: int) -> None:
        used = self._num_tokens
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._buffer(old, num_tokens)
            new[:, :, :used] = old[:, :, :used]
            setattr(self, name, new)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states of shape (rows, heads, new tokens, width); returns views of all states so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, start = key_states.shape[0], self._num_tokens
        end = start + key_states.shape[2]
        if end > self.keys.shape[2]:
            self._grow(end)
        self.keys[:rows, :, start:end] = key_states
        self.values[:rows, :, start:end] = value_states
        self._num_tokens = end
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def get_seq_length(self) -> int:
        """Tokens in every row."""
        return self._num_tokens

    def move_row(self, source: int, target: int) -> None:
        """Overwrite row ``target`` with row ``source``."""
        used = self._num_tokens
        self.keys[target, :, :used] = self.keys[source, :, :used]
        self.values[target, :, :used] = self.values[source, :, :used]


class BufferedCache(Cache):
    """One :class:`BufferedLayer` for every layer of a model.

    Args:
        config: configuration of the model.
        max_tokens: tokens a row will hold at most.

    Raises:
        ValueError: the model has layers that are not full attention.
    """

    def __init__(self, config: PretrainedConfig, max_tokens: int) -> None:
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(f"{config.model_type}: layers {sorted(kinds)}; only full_attention can be buffered")
        super().__init__(layers=[BufferedLayer(max_tokens) for _ in range(config.num_hidden_layers)])

    def move_row(self, source: int, target: int) -> None:
        """Overwrite row ``target`` with row ``source`` in every layer."""
        for layer in self.layers:
            layer.move_row(source, target)
