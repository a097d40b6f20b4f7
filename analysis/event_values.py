"""Plain values of events for files and queries. Pure.

Packed fields hold one array as little-endian bytes; ``PACKED`` says which ones, and with what items.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from schemas import BY_NAME, CATALOGUE, Undecodable
from schemas.packed import ID_DTYPE, LOGPROB_DTYPE, MASK_DTYPE
from streams.archive.scan import plain_values
from streams.log.port import Record

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


def values_of(
    records: Iterable[Record], event_types: Collection[str], on_fault: Callable[[Record, Undecodable], None]
) -> Iterator[tuple[Record, str, Mapping[str, object]]]:
    """(record, event type, field values) of each event of some types, in order.

    Args:
        records: any.
        event_types: names of event types.
        on_fault: told of each record that is no event.
    """
    for record in records:
        try:
            name, values = plain_values(record)
        except Undecodable as error:
            on_fault(record, error)
            continue
        if name in event_types:
            yield record, name, values


def plain(event_type: str, values: Mapping[str, object], unpack: bool = False) -> dict[str, object]:
    """Field values ready for JSON: bytes as base64.

    Args:
        event_type: its name.
        values: field values, records as dicts.
        unpack: give packed fields as lists of numbers; a field that does not unpack stays base64.
    """
    packed = PACKED.get(event_type, {}) if unpack else {}
    return {name: _json_value(value, packed.get(name)) for name, value in values.items()}


def _json_value(value: object, dtype: np.dtype | None) -> object:
    if dtype is not None and len(value) % dtype.itemsize == 0:
        return np.frombuffer(value, dtype=dtype).tolist()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
