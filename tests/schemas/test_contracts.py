"""The contracts: one schema an event, generated classes, stable ids, readable bytes, compatible history."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse
from hypothesis import given
from hypothesis import strategies as st

import schemas
from schemas import CATALOGUE, EVENTS, InvalidEvent, Undecodable, UnknownSchema, decode, encode, make
from schemas.codec import HISTORY
from schemas.definitions import AVSC, fingerprint_of, schema_of
from schemas.events import BatchPlanned, BoundaryDetected, Category, Cursor, Evidence, StepCompleted, Zone
from schemas.generate import render
from schemas.packed import pack_ids, pack_logprobs, pack_mask, unpack_ids, unpack_logprobs, unpack_mask
from schemas.publish import history_path
from tests.streams.building import group, opening, synthesis_failed, synthesized


def batch(**changes: object) -> BatchPlanned:
    values = {
        "step": 3,
        "epoch": 0,
        "task_ids": ("a", "b"),
        "is_last_of_epoch": False,
        "input_cursor": (Cursor(topic="rollouts", partition=0, next_offset=5),),
    }
    return make(BatchPlanned, "run", **{**values, **changes})


def signal() -> BoundaryDetected:
    evidence = Evidence(step=1, num_rollouts=4, num_valid=4, mean=0.5, variance=0.1, phi=1.0, zone=Zone.BOUNDARY)
    return make(
        BoundaryDetected,
        "run",
        task_id="a",
        category=Category.BASE,
        step=1,
        epoch=0,
        evidence=evidence,
        rank=0,
        quota=4,
        root_task_id="a",
        generation=0,
        policy_version=0,
    )


def test_every_schema_file_has_its_line_in_the_catalogue_and_its_class() -> None:
    files = {path.stem for path in AVSC.glob("*.avsc")}
    assert files == {entry.name for entry in CATALOGUE} == {cls.__name__ for cls in EVENTS}


def test_generated_classes_are_what_the_schemas_say() -> None:
    assert Path(schemas.events.__file__).read_text() == render(), "run: python -m schemas.generate"


def test_every_field_says_what_it_means() -> None:
    for entry in CATALOGUE:
        assert schema_of(entry.name)["doc"]
        undocumented = [field["name"] for field in schema_of(entry.name)["fields"] if not field.get("doc")]
        assert not undocumented, f"{entry.name}: {undocumented}"


def test_key_and_identity_are_fields_of_the_event() -> None:
    for entry, cls in zip(CATALOGUE, EVENTS, strict=True):
        names = {field.name for field in dataclasses.fields(cls)}
        assert {entry.key, *(path.partition(".")[0] for path in entry.identity)} - {"attempt"} <= names
        assert not entry.alias or entry.alias in names


def test_every_current_schema_is_in_the_history() -> None:
    missing = [entry.name for entry in CATALOGUE if not history_path(entry.name).exists()]
    assert not missing, f"run: python -m schemas.publish ({missing})"


def test_history_files_are_named_by_their_fingerprint_and_never_edited() -> None:
    for path in HISTORY.glob("*/*.avsc"):
        assert fingerprint_of(json.loads(path.read_text())).hex() == path.stem


def test_every_schema_can_read_and_be_read_by_every_other_version() -> None:
    for entry in CATALOGUE:
        versions = [parse(path.read_text()) for path in sorted((HISTORY / entry.name).glob("*.avsc"))]
        versions.append(parse(json.dumps(schema_of(entry.name))))
        for reader in versions:
            for writer in versions:
                result = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
                assert result.compatibility is SchemaCompatibilityType.compatible, f"{entry.name}: {result.messages}"


def test_the_compatibility_check_refuses_a_field_without_default() -> None:
    new = schema_of("BatchPlanned")
    new = {**new, "fields": [*new["fields"], {"name": "extra", "type": "int", "doc": "x"}]}
    result = ReaderWriterCompatibilityChecker().get_compatibility(
        parse(json.dumps(new)), parse(json.dumps(schema_of("BatchPlanned")))
    )
    assert result.compatibility is SchemaCompatibilityType.incompatible


def test_events_come_back_as_they_were() -> None:
    events = [
        *opening(3, 2, {}),
        group("a", 1, [0.5, None, 1.0]),
        batch(),
        signal(),
        synthesized(signal()),
        synthesis_failed(signal()),
    ]
    for event in events:
        assert decode(encode(event)) == event


def test_ids_depend_on_what_happened_and_not_on_when_or_why() -> None:
    assert batch().event_id == batch(caused_by="x", occurred_at_ms=5, task_ids=("c",)).event_id
    assert batch().event_id != batch(step=4).event_id
    assert (
        batch().event_id
        != make(
            StepCompleted,
            "run",
            step=3,
            epoch=0,
            stage="",
            policy_version=1,
            weights_digest="",
            is_last_of_epoch=False,
            num_groups=0,
            num_zero_variance=0,
            num_trajectories=0,
            num_trained_tokens=0,
            group_ids=(),
            metrics={},
        ).event_id
    )


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="BatchPlanned has no field stp"):
        make(BatchPlanned, "run", stp=1, step=1, epoch=0, task_ids=(), is_last_of_epoch=False, input_cursor=())


def test_a_value_that_does_not_fit_names_event_and_id() -> None:
    event = batch(epoch="zero")
    with pytest.raises(InvalidEvent, match=f"BatchPlanned {event.event_id}"):
        encode(event)


def test_an_unknown_fingerprint_is_told_apart_from_broken_bytes() -> None:
    data = encode(batch())
    with pytest.raises(UnknownSchema, match="0000000000000000"):
        decode(data[:2] + bytes(8) + data[10:])


@pytest.mark.parametrize("cut", [0, 1, 5, 10, 11, 30])
def test_a_truncated_event_is_refused(cut: int) -> None:
    with pytest.raises(Undecodable):
        decode(encode(batch())[:cut])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(Undecodable, match="1 bytes left over"):
        decode(encode(batch()) + b"x")


@given(st.binary(max_size=200))
def test_no_bytes_whatever_break_the_decoder(noise: bytes) -> None:
    for data in (noise, encode(signal())[:10] + noise):
        try:
            decode(data)
        except Undecodable:
            continue


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_gives_a_readable_event(position: int, value: int) -> None:
    data = bytearray(encode(signal()))
    data[position % len(data)] = value
    try:
        event = decode(bytes(data))
    except Undecodable:
        return
    assert isinstance(event, BoundaryDetected)


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.floats(width=32, allow_nan=False)), st.lists(st.integers(0, 1)))
def test_packed_arrays_come_back_exactly(ids: list[int], logprobs: list[float], mask: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)).tolist() == ids
    assert unpack_logprobs(pack_logprobs(logprobs)).tolist() == logprobs
    assert unpack_mask(pack_mask(mask)).tolist() == mask
    assert pack_ids([1]) == b"\x01\x00\x00\x00"
