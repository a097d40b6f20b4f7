"""Plain values of events for files and queries. Pure.

Packed fields hold one array as little-endian bytes; here stands which ones and how they unpack.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

import numpy as np

from schemas import BY_NAME, CATALOGUE, Event, as_record
from schemas.packed import ID_DTYPE, LOGPROB_DTYPE, MASK_DTYPE

PACKED: Mapping[str, Mapping[str, np.dtype]] = {
    "TrajectoryRecorded": {"token_ids": ID_DTYPE, "logprobs": LOGPROB_DTYPE, "mask": MASK_DTYPE}
}
"""Item type of each packed field by event type."""


def table_name(event_type: str) -> str:
    """Name of the data set of an event type.

    >>> table_name("RolloutGroupCompleted")
    'rollout_group_completed'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event_type).lower()


def event_types_of(name: str) -> tuple[str, ...]:
    """Event types meant by a topic, an event type, a data set name or ``all``; empty for anything else.

    >>> event_types_of("rollouts"), event_types_of("run_started")
    (('RolloutGroupCompleted',), ('RunStarted',))
    """
    if name == "all":
        return tuple(BY_NAME)
    return tuple(e.name for e in CATALOGUE if name in (e.topic, e.name, table_name(e.name)))


def topics_of(event_types: tuple[str, ...]) -> tuple[str, ...]:
    """Topics on which event types lie, each once, in catalogue order."""
    return tuple(dict.fromkeys(entry.topic for entry in CATALOGUE if entry.name in event_types))


def unpacked(data: bytes, dtype: np.dtype) -> np.ndarray | None:
    """The array in a packed field, shape (T,), or ``None`` where the bytes are no whole number of items."""
    return None if len(data) % dtype.itemsize else np.frombuffer(data, dtype=dtype)


def plain(event: Event, unpack: bool = False) -> dict[str, object]:
    """Field values ready for JSON: records as dicts, bytes as base64.

    Args:
        event: the event.
        unpack: give packed fields as lists of numbers; a field that does not unpack stays base64.
    """
    packed = PACKED.get(type(event).__name__, {}) if unpack else {}
    values = {}
    for name, value in as_record(event).items():
        array = unpacked(value, packed[name]) if name in packed else None
        values[name] = array.tolist() if array is not None else _json_value(value)
    return values


def _json_value(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
