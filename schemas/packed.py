"""Token ids, log-probabilities and masks as packed little-endian bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ID_DTYPE = np.dtype("<i4")
LOGPROB_DTYPE = np.dtype("<f4")
MASK_DTYPE = np.dtype("u1")


def pack_ids(ids_T: Sequence[int] | np.ndarray) -> bytes:
    """Token ids as int32."""
    return np.asarray(ids_T, dtype=ID_DTYPE).tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """Token ids, shape (T,), int32, read-only."""
    return np.frombuffer(data, dtype=ID_DTYPE)


def pack_logprobs(logprobs_T: Sequence[float] | np.ndarray) -> bytes:
    """Natural-log probabilities as float32."""
    return np.asarray(logprobs_T, dtype=LOGPROB_DTYPE).tobytes()


def unpack_logprobs(data: bytes) -> np.ndarray:
    """Natural-log probabilities, shape (T,), float32, read-only."""
    return np.frombuffer(data, dtype=LOGPROB_DTYPE)


def pack_mask(mask_T: Sequence[int] | np.ndarray) -> bytes:
    """One byte per token, 0 or 1."""
    return np.asarray(mask_T, dtype=MASK_DTYPE).tobytes()


def unpack_mask(data: bytes) -> np.ndarray:
    """Mask, shape (T,), uint8, read-only."""
    return np.frombuffer(data, dtype=MASK_DTYPE)
