"""What can be said: event types, their topics and keys, ids and bytes. Imports nothing else of ours."""

from schemas.catalogue import BY_NAME, CATALOGUE, HELDOUT, SPREAD_TOPICS, TOPICS
from schemas.codec import InvalidEvent, Undecodable, UnknownSchema, as_record, decode, encode
from schemas.events import EVENTS, Event
from schemas.identity import event_id, make

__all__ = [
    "BY_NAME",
    "CATALOGUE",
    "EVENTS",
    "Event",
    "HELDOUT",
    "InvalidEvent",
    "SPREAD_TOPICS",
    "TOPICS",
    "Undecodable",
    "UnknownSchema",
    "as_record",
    "decode",
    "encode",
    "event_id",
    "make",
]
