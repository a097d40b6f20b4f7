"""Deterministic event ids: the same fact has the same id, however often it is written."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from functools import cache
from typing import TypeVar

from schemas.catalogue import BY_NAME
from schemas.events import Event

E = TypeVar("E", bound=Event)
SEPARATOR = "\x1f"


def event_id(run_id: str, name: str, *identity: object) -> str:
    """The id of an event: 32 hex digits of SHA-256 over run, type and identity.

    Args:
        run_id: the run.
        name: event type.
        identity: values of the catalogue's identity fields, in its order.
    """
    text = SEPARATOR.join([run_id, name, *(str(value) for value in identity)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _field_names(cls: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(cls))


def make(cls: type[E], run_id: str, **values: object) -> E:
    """Build an event with its deterministic id (and its alias) filled in.

    Args:
        cls: event class.
        run_id: the run.
        values: all other fields without ``event_id`` and alias.

    Raises:
        TypeError: a field is missing or unknown.
    """
    entry = BY_NAME[cls.__name__]
    unknown = values.keys() - _field_names(cls)
    if unknown:
        raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
    identity = [_dig(values, path) for path in entry.identity]
    own = event_id(run_id, cls.__name__, *identity)
    alias = {entry.alias: own} if entry.alias else {}
    return cls(event_id=own, run_id=run_id, **alias, **values)


def identity_of(event: Event) -> list[object]:
    """Values of the identity fields of an event, in the catalogue's order."""
    values = {name: getattr(event, name) for name in _field_names(type(event))}
    return [_dig(values, path) for path in BY_NAME[type(event).__name__].identity]


def _dig(values: dict, path: str) -> object:
    name, _, rest = path.partition(".")
    value = values.get(name, 0) if name == "attempt" else values[name]
    for part in rest.split(".") if rest else ():
        value = getattr(value, part)
    return value
