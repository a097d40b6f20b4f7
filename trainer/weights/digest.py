"""The digest of a policy's weights: the number by which two runs are compared."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_digest(model: nn.Module) -> str:
    """SHA-256, hexadecimal, over name, dtype, shape and raw bytes of all parameters, sorted by name."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.detach().cpu().contiguous()
        digest.update(f"{name}\x1f{values.dtype}\x1f{tuple(values.shape)}\x1f".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
