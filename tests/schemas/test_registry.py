"""The Confluent framing: ids from a registry, both framings read, and other people's tools reading ours."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from schemas import CATALOGUE, Event, UnknownSchema, as_record, decode, encode
from schemas import registry as schema_registry
from schemas.codec import HISTORY, MAGIC, portable
from schemas.credentials import CredentialError, resolved
from schemas.definitions import schema_of
from schemas.registry import AUTH, FRAME, URL, Registry, RegistrySettings, RegistryUnavailable, SchemaRefused, active
from tests.schemas.registry_server import RegistryServer
from tests.streams.scripted import play


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture
def registered(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> RegistryServer:
    """A registry that holds every schema and that this process is told to use."""
    monkeypatch.setenv(URL, server.url)
    active().register_all()
    return server


def some_events() -> list[Event]:
    """One event of each type that a scripted run says."""
    _, log = play(
        6, 3, {"batch_size": 3, "cooldown": 1}, lambda task_id, step: 0.5, lambda task_id: task_id.endswith("3")
    )
    return list({type(event).__name__: event for event in log}.values())


def test_events_are_framed_by_the_id_the_registry_gave_and_come_back(registered: RegistryServer) -> None:
    for event in some_events():
        data = encode(event)
        magic, schema_id = struct.unpack_from(">bI", data)
        assert magic == 0
        assert json.loads(registered.text(schema_id)) == schema_of(type(event).__name__)
        assert decode(data) == event


def test_the_deserializer_of_confluent_kafka_reads_every_event(registered: RegistryServer) -> None:
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": registered.url}))
    events = some_events()
    assert len(events) >= 8
    for event in events:
        topic = "rods." + next(entry.topic for entry in CATALOGUE if entry.name == type(event).__name__)
        assert deserialize(encode(event), SerializationContext(topic, MessageField.VALUE)) == as_record(event)


def test_subjects_carry_topic_and_record_and_full_transitive_compatibility(registered: RegistryServer) -> None:
    client = SchemaRegistryClient({"url": registered.url})
    assert set(client.get_subjects()) == {f"rods.{entry.topic}-rods.{entry.name}" for entry in CATALOGUE}
    assert set(registered.levels.values()) == {"FULL_TRANSITIVE"} and len(registered.levels) == len(CATALOGUE)
    assert client.get_latest_version("rods.steps-rods.StepCompleted").version == 1


def test_registering_again_changes_no_id(registered: RegistryServer) -> None:
    before = dict(registered.ids)
    assert Registry(RegistrySettings(registered.url)).register_all() == active().register_all()
    assert registered.ids == before


def test_a_writer_asks_the_registry_once_for_each_event_type(registered: RegistryServer) -> None:
    event = some_events()[0]
    encode(event)
    before = registered.num_requests
    for _ in range(50):
        assert decode(encode(event)) == event
    assert registered.num_requests - before <= 1


def test_both_framings_are_read_with_a_registry(registered: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    event = some_events()[0]
    framed = encode(event)
    monkeypatch.delenv(URL)
    alone = encode(event)
    monkeypatch.setenv(URL, registered.url)
    assert alone[:2] == MAGIC and framed[:1] == b"\0"
    assert decode(alone) == decode(framed) == event


def test_a_portable_record_needs_no_registry(registered: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    event = some_events()[0]
    data = portable(encode(event))
    assert portable(b"\0anything else") == b"\0anything else" and portable(b"") == b""
    monkeypatch.delenv(URL)
    assert data == encode(event) and decode(data) == event


def test_every_schema_of_the_history_can_be_registered_in_order_and_read(registered: RegistryServer) -> None:
    import io

    import fastavro

    older = [path for path in HISTORY.glob("*/*.avsc") if json.loads(path.read_text()) != schema_of(path.parent.name)]
    for path in older:
        status, answer = registered.register(
            active().subject(path.parent.name), json.dumps(json.loads(path.read_text()), separators=(",", ":"))
        )
        assert status == 200, answer
        event = next((e for e in some_events() if type(e).__name__ == path.parent.name), None)
        if event is not None:
            body = io.BytesIO()
            fastavro.schemaless_writer(
                body, fastavro.parse_schema(json.loads(path.read_text()), named_schemas={}), as_record(event)
            )
            assert decode(FRAME.pack(0, answer["id"]) + body.getvalue()).event_id == event.event_id


def test_an_id_that_is_no_event_of_ours_is_an_unknown_schema(registered: RegistryServer) -> None:
    _, foreign = registered.register("other-value", '{"type":"record","name":"Other","fields":[]}')
    for schema_id in (foreign["id"], 9999):
        with pytest.raises(UnknownSchema, match=f"no event schema of id {schema_id}"):
            decode(FRAME.pack(0, schema_id) + b"body")


def test_an_incompatible_schema_is_refused_with_the_subject(
    registered: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = schema_of("StepCompleted")
    broken = {**schema, "fields": [*schema["fields"], {"name": "extra", "type": "string", "doc": "No default."}]}
    original = schema_registry.text_of
    monkeypatch.setattr(
        schema_registry, "text_of", lambda name: json.dumps(broken) if name == "StepCompleted" else original(name)
    )
    with pytest.raises(SchemaRefused, match=r"rods\.steps-rods\.StepCompleted.*incompatible"):
        Registry(RegistrySettings(registered.url)).register_all()


def test_a_writer_of_an_unregistered_schema_is_told_to_run_init_topics(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL, server.url)
    with pytest.raises(SchemaRefused, match="rods init-topics"):
        encode(some_events()[0])


def test_a_registry_that_is_gone_is_named_and_is_no_fault_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, "http://127.0.0.1:1")
    with pytest.raises(RegistryUnavailable, match="http://127.0.0.1:1"):
        decode(FRAME.pack(0, 1) + b"body")


def test_without_a_registry_framed_bytes_are_refused_and_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    with pytest.raises(ValueError, match="no header of a known framing"):
        decode(FRAME.pack(0, 1) + b"body and more")


def test_credentials_are_references_and_never_show(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    secret = tmp_path / "secret"
    secret.write_text("user:s3cret\n")
    with RegistryServer(user_info="user:s3cret") as server:
        monkeypatch.setenv(URL, server.url)
        monkeypatch.setenv(AUTH, f"file:{secret}")
        active().register_all()
        assert decode(encode(some_events()[0])) == some_events()[0]
        assert "s3cret" not in repr(active().settings)
        monkeypatch.setenv(AUTH, "env:NOT_SET")
        with pytest.raises(CredentialError, match="NOT_SET is not set"):
            active().register_all()
        monkeypatch.delenv(AUTH)
        with pytest.raises(RegistryUnavailable, match="HTTP 401"):
            active().register_all()


def test_references_are_resolved_and_faults_name_the_setting(tmp_path: object) -> None:
    assert resolved("x", "plain", {}) == "plain"
    assert resolved("x", "env:A", {"A": "b"}) == "b"
    with pytest.raises(CredentialError, match="sasl.password: secret file .* cannot be read"):
        resolved("sasl.password", f"file:{tmp_path}/none", {})
