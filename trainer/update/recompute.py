"""Gradient checkpointing for the length of an update, without putting the model into training mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@contextmanager
def recomputing(model: PreTrainedModel, wanted: bool = True) -> Iterator[None]:
    """Keep only the inputs of layers while inside.

    Only the layers themselves are marked as training: what is inside them stays in evaluation mode, so that no dropout
    begins and a repeated forward pass gives the same numbers.

    Raises:
        ValueError: the model has no layers that can be computed again.
    """
    if not wanted:
        yield
        return
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"{model.config.model_type} cannot compute its layers again: set gradient_checkpointing = false"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.gradient_checkpointing_disable()
