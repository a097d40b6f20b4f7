"""The Confluent wire format: a zero byte, the 4-byte id a schema registry gave the writer's schema, the Avro body.

Switched on by ``SCHEMA_REGISTRY_URL``. Any registry with the Confluent API will do. Subjects follow
TopicRecordNameStrategy (``<topic on the broker>-rods.<Event>``), so one topic carries several event types; each subject
is set to FULL_TRANSITIVE compatibility. ``rods init-topics`` registers; writers only look ids up, once a process.

Source of the format and the calls: Confluent Schema Registry, "Wire format" and "API reference".
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import fastavro

from schemas.catalogue import BY_NAME, CATALOGUE
from schemas.credentials import resolved
from schemas.definitions import fingerprint_of, parsed, schema_of

URL, AUTH, CA_FILE, PREFIX = (
    "SCHEMA_REGISTRY_URL",
    "SCHEMA_REGISTRY_AUTH",
    "SCHEMA_REGISTRY_CA_FILE",
    "RODS_KAFKA__TOPIC_PREFIX",
)
FRAME = struct.Struct(">bI")
COMPATIBILITY = "FULL_TRANSITIVE"
TIMEOUT_S = 10.0
NAMESPACE = "rods."
T = TypeVar("T")


class RegistryUnavailable(ConnectionError):
    """The schema registry does not answer; the text says where and what to do."""


class NotHeld(LookupError):
    """The registry's own words on what it does not hold or take."""


class SchemaRefused(RuntimeError):
    """The registry does not hold or will not take a schema; the text names the subject and the reason."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """How to reach a registry.

    Attributes:
        url: base address without a slash at the end.
        prefix: topic prefix, part of every subject.
        auth: ``user:password`` or a reference to it (``env:NAME``, ``file:/path``); empty for none.
        ca_file: certificate authority of an https registry; empty takes the system's.
    """

    url: str
    prefix: str = "rods."
    auth: str = ""
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer's schema that the registry knows.

    Attributes:
        name: event type.
        schema: parsed for fastavro; the current schema itself where they are equal.
        fingerprint: its single-object fingerprint.
    """

    name: str
    schema: dict
    fingerprint: bytes


class Registry:
    """A client that asks each question once. Thread-safe.

    Args:
        settings: where the registry is.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self._ids: dict[str, int] = {}
        self._writers: dict[int, Writer | None] = {}
        self._lock = threading.Lock()
        self._client: Any = None

    def subject(self, name: str) -> str:
        """Subject of an event type.

        >>> Registry(RegistrySettings("http://r")).subject("StepCompleted")
        'rods.steps-rods.StepCompleted'
        """
        return f"{self.settings.prefix}{BY_NAME[name].topic}-{NAMESPACE}{name}"

    def register_all(self) -> dict[str, int]:
        """Register every current schema under full transitive compatibility; ids by event type.

        Raises:
            SchemaRefused: a schema does not fit the versions before it.
            RegistryUnavailable: no answer.
        """
        for entry in CATALOGUE:
            at, new = self.subject(entry.name), text_of(entry.name)
            self._ask(lambda client, at=at: client.set_compatibility(at, COMPATIBILITY))
            try:
                self._ids[entry.name] = self._ask(lambda client, at=at, new=new: client.register_schema(at, avro(new)))
            except NotHeld as error:
                raise SchemaRefused(f"registry {self.settings.url} refused subject {at}: {error}") from error
        return dict(self._ids)

    def id_of(self, name: str) -> int:
        """Id of the current schema of an event type.

        Raises:
            SchemaRefused: it was never registered.
            RegistryUnavailable: no answer.
        """
        if name not in self._ids:
            subject = self.subject(name)
            try:
                self._ids[name] = self._ask(lambda client: client.lookup_schema(subject, avro(text_of(name)))).schema_id
            except NotHeld as error:
                raise SchemaRefused(
                    f"registry {self.settings.url} does not know this schema of {subject} ({error}): "
                    "run `rods init-topics` of this version first"
                ) from error
        return self._ids[name]

    def header(self, name: str) -> bytes:
        """The five bytes before the body."""
        return FRAME.pack(0, self.id_of(name))

    def writer(self, data: bytes) -> Writer | None:
        """The writer's schema of some framed bytes; ``None`` when the registry knows no event schema of that id.

        Raises:
            RegistryUnavailable: no answer.
        """
        schema_id = FRAME.unpack_from(data)[1]
        with self._lock:
            if schema_id not in self._writers:
                try:
                    self._writers[schema_id] = writer_of(
                        self._ask(lambda client: client.get_schema(schema_id)).schema_str
                    )
                except NotHeld:
                    self._writers[schema_id] = None
            return self._writers[schema_id]

    def _ask(self, question: Callable[[Any], T]) -> T:
        """The answer of confluent-kafka's client, which is made at the first question.

        Raises:
            NotHeld: the registry answers that it does not hold or take it.
            RegistryUnavailable: it does not answer, or with an error.
        """
        from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
        from httpx2 import HTTPError

        settings = self.settings
        if self._client is None:
            auth = {"basic.auth.user.info": resolved(AUTH, settings.auth)} if settings.auth else {}
            ca = {"ssl.ca.location": settings.ca_file} if settings.ca_file else {}
            self._client = SchemaRegistryClient(
                {"url": settings.url, "timeout": TIMEOUT_S, "max.retries": 0, **auth, **ca}
            )
        try:
            return question(self._client)
        except SchemaRegistryError as error:
            told = f"HTTP {error.http_status_code} {error.error_message}"
            kind = NotHeld if error.http_status_code in (404, 409, 422) else RegistryUnavailable
            raise kind(f"schema registry {settings.url}: {told}") from error
        except (OSError, ValueError, HTTPError) as error:
            raise RegistryUnavailable(
                f"schema registry {settings.url}: {error}; is it running? Unset {URL} to do without one"
            ) from error


def avro(text: str) -> object:
    """A schema as confluent-kafka's client takes it."""
    from confluent_kafka.schema_registry import Schema

    return Schema(text, "AVRO")


@cache
def text_of(name: str) -> str:
    """The schema of an event type as it is registered: the whole stand-alone definition, docs included."""
    return json.dumps(schema_of(name), separators=(",", ":"))


def writer_of(text: str) -> Writer | None:
    """The writer behind a registered schema; ``None`` unless it is a schema of one of our event types."""
    try:
        schema = json.loads(text)
        name = schema["name"].removeprefix(NAMESPACE)
        if schema["type"] != "record" or name not in BY_NAME:
            return None
        fingerprint = fingerprint_of(schema)
        if fingerprint == fingerprint_of(schema_of(name)):
            return Writer(name, parsed(name), fingerprint)
        return Writer(name, fastavro.parse_schema(schema, named_schemas={}, _force=True), fingerprint)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
    ):
        return None


def settings_from(environment: Mapping[str, str]) -> RegistrySettings | None:
    """The registry that an environment names; ``None`` for none."""
    url = environment.get(URL, "").rstrip("/")
    if not url:
        return None
    return RegistrySettings(
        url, environment.get(PREFIX, "rods."), environment.get(AUTH, ""), environment.get(CA_FILE, "")
    )


@cache
def registry_of(settings: RegistrySettings) -> Registry:
    """One client a registry."""
    return Registry(settings)


def active() -> Registry | None:
    """The registry this process is told to use; ``None`` means single-object encoding."""
    settings = settings_from(os.environ) if os.environ.get(URL) else None
    return registry_of(settings) if settings else None
