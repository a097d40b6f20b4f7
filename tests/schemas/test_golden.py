"""Every release stays readable: golden runs fold to what they folded to, the future ends in a dead letter, not a crash."""

from __future__ import annotations

import base64
import json

import fastavro
import pytest

from analysis.index import LogIndex
from analysis.replay import Repetition, unreadable_in
from schemas import BY_NAME, TOPICS, Event, Undecodable, as_record, decode, encode
from schemas.codec import HEADER_BYTES, HISTORY, _writers
from schemas.definitions import fingerprint_of, schema_of
from schemas.events import DeadLettered, DeadLetterReason, RolloutGroupCompleted
from streams.archive.scan import places_in, scan_archive, scanned
from streams.log.port import MemoryLog, Record, beginning
from streams.log.reader import EventReader
from streams.pool.keeper import PoolKeeper
from streams.pool.refold import archived, fold_archive
from tests.analysis.test_replay import PARTITIONS
from tests.golden.make import DECISION_TOPICS, GOLDEN, readable, samples, state_of_pool, write, written
from tests.schemas import test_contracts
from tests.streams.building import RUN, group, opening, reply
from tests.streams.test_fold import SETTINGS, mean_of

VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if (path / "pool.json").exists())


def golden(version: str, name: str) -> dict:
    return json.loads((GOLDEN / version / name).read_text())


def records_of(version: str) -> list[Record]:
    root = GOLDEN / version / "archive"
    return [record for place in places_in(root, DECISION_TOPICS) for record in archived(root, place, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_run_folds_to_the_pool_it_folded_to(version: str) -> None:
    pool = fold_archive(GOLDEN / version / "archive", DECISION_TOPICS).pools[RUN]
    now, then = json.loads(json.dumps(state_of_pool(pool))), golden(version, "pool.json")
    assert covers(now, then) and now.keys() == then.keys()
    assert {row["state"] for row in now["rows"].values()} >= {"active", "retired"} and len(now["rows"]) > 6


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_run_is_decided_again(version: str) -> None:
    log = LogIndex(whole=True).add_records(map(scanned, records_of(version)))
    repetition = Repetition(log.run(RUN))
    assert log.run(RUN).finished and len(repetition.plans) > 6 and not unreadable_in(log)
    for plan in repetition.plans:
        repetition.advance({(c.topic, c.partition): c.next_offset for c in plan.event.input_cursor})
        repetition.decide_all(plan.event.input_cursor)
        assert plan.event.event_id in repetition.said


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_samples_read_as_the_values_they_were_written_from(version: str) -> None:
    assert golden(version, "samples.json").keys() <= BY_NAME.keys()
    for name, stored in golden(version, "samples.json").items():
        event = decode(base64.b64decode(stored["bytes"]))
        assert type(event).__name__ == name
        assert covers(json.loads(json.dumps(readable(as_record(event)))), stored["values"]), name


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_a_golden_version_are_kept(version: str) -> None:
    for name, stored in golden(version, "samples.json").items():
        assert (HISTORY / name / f"{stored['fingerprint']}.avsc").exists(), (
            f"history of {name} has lost {stored['fingerprint']}"
        )
    size = sum(path.stat().st_size for path in (GOLDEN / version).rglob("*") if path.is_file())
    assert size < 200_000


def test_there_is_a_golden_version_and_it_is_not_made_twice() -> None:
    assert VERSIONS
    with pytest.raises(FileExistsError):
        write(VERSIONS[0])


def fingerprints_in(version: str) -> set[tuple[str, str]]:
    """(event type, fingerprint) of every schema that a version's records and samples were written with."""
    found = {(name, stored["fingerprint"]) for name, stored in golden(version, "samples.json").items()}
    return found | archived_in(version)


def archived_in(version: str) -> set[tuple[str, str]]:
    """(event type, fingerprint) of every schema that a version's records were written with."""
    records = scan_archive(GOLDEN / version / "archive", TOPICS)
    return {(type(decode(record.value)).__name__, record.value[2:HEADER_BYTES].hex()) for record in records}


def test_every_schema_that_was_ever_published_is_in_a_golden_version() -> None:
    published = {(path.parent.name, path.stem) for path in HISTORY.glob("*/*.avsc")}
    missing = published - set().union(*map(fingerprints_in, VERSIONS))
    assert not missing, f"make a version that holds {sorted(missing)}: see tests/golden/make.py"


def test_the_oldest_version_is_a_whole_run_in_the_first_form_of_every_schema_that_changed() -> None:
    current = {(name, fingerprint_of(schema_of(name)).hex()) for name in BY_NAME}
    older = {(path.parent.name, path.stem) for path in HISTORY.glob("*/*.avsc")} - current
    used = archived_in("v0")
    in_a_run = {name for name, _ in used}
    assert older and older <= fingerprints_in("v0")
    assert {pair for pair in older if pair[0] in in_a_run} <= used
    assert not {name for name, _ in older} & {name for name, mark in used if (name, mark) in current}


def covers(now: object, then: object) -> bool:
    """Whether everything that was there is there still; fields added since do not matter."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and covers(now[key], value) for key, value in then.items())
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(covers, now, then))
    return now == then


def test_every_schema_that_was_ever_published_can_be_read_today() -> None:
    for path in sorted(HISTORY.glob("*/*.avsc")):
        schema = json.loads(path.read_text())
        whole = as_record(decode(base64.b64decode(samples()[schema["name"]]["bytes"])))
        event = decode(written(schema, whole))
        known = {field["name"] for field in schema["fields"]}
        assert type(event).__name__ == schema["name"]
        assert covers(
            readable({k: v for k, v in as_record(event).items() if k in known}),
            readable({k: v for k, v in whole.items() if k in known}),
        ), path


def with_field(schema: dict) -> dict:
    """The schema with one more field."""
    extra = {"name": "colour", "type": "string", "default": "", "doc": "Not known yet."}
    return {**schema, "fields": [*schema["fields"], extra]}


def with_symbol(schema: dict) -> dict:
    """The schema with one more group status."""

    def grown(field: dict) -> dict:
        kind = field["type"]
        return (
            {**field, "type": {**kind, "symbols": [*kind["symbols"], "abandoned"]}}
            if field["name"] == "status"
            else field
        )

    return {**schema, "fields": [grown(field) for field in schema["fields"]]}


def from_the_future(change: object, **values: object) -> bytes:
    """A group written with a schema that nobody here knows."""
    event = as_record(group(f"{RUN}-seed-0", 1, [0.5] * 4))
    return written(change(schema_of("RolloutGroupCompleted")), {**event, **values})


FUTURE = {
    "field": from_the_future(with_field, colour="blue"),
    "symbol": from_the_future(with_symbol, status="abandoned"),
}


def heard_by_a_pool(value: bytes) -> tuple[list[Event], list[Event]]:
    """What a pool agent says while a run goes on in which one record is ``value``: (dead letters, all it said)."""
    log, keeper, cursor = MemoryLog(PARTITIONS, clock=lambda: 9), PoolKeeper(), beginning(PARTITIONS, PARTITIONS)
    keeper.refold(log, [0])
    log.append(opening(5, 2, SETTINGS))
    log.append_raw(Record("rollouts", 0, -1, 9, RUN.encode(), value))
    said: list[Event] = []
    while records := log.read(cursor, timeout_s=0.0):
        for record in records:
            cursor[record.place] = record.offset + 1
            if record.topic in DECISION_TOPICS[:5]:
                heard = keeper.hear(record)
                said += heard.say
                log.append([e for e in heard.say if not isinstance(e, DeadLettered)])
                log.append([answer for event in heard.say for answer in reply(event, mean_of)])
    return [event for event in said if isinstance(event, DeadLettered)], said


@pytest.mark.parametrize("change", FUTURE)
def test_an_unknown_future_schema_is_a_dead_letter_and_the_run_goes_on(change: str) -> None:
    letters, said = heard_by_a_pool(FUTURE[change])
    assert [letter.reason for letter in letters] == [DeadLetterReason.UNKNOWN_SCHEMA]
    assert letters[0].value == FUTURE[change] and "upgrade the reader" in letters[0].detail
    _, undisturbed = heard_by_a_pool(encode(opening(1, 1, {})[0]))
    strip = [e.event_id for e in said if not isinstance(e, DeadLettered)]
    assert strip == [e.event_id for e in undisturbed if not isinstance(e, DeadLettered)] and len(strip) > 4


@pytest.mark.parametrize("change", FUTURE)
def test_a_reader_dead_letters_the_future_once_and_reads_on(change: str) -> None:
    log = MemoryLog({**PARTITIONS, "dead-letters": 1})
    log.append_raw(Record("rollouts", 0, -1, 9, RUN.encode(), FUTURE[change]))
    log.append([group("a", 1, [1.0])])
    reader = EventReader(log, ("rollouts",), {"rollouts": 1}, RUN, "test")
    assert [event.task_id for event in reader.poll(0.0)] == ["a"] and reader.num_broken == 1
    assert log.end_offsets(["dead-letters"]) == {("dead-letters", 0): 1}


def test_a_symbol_beyond_the_enum_is_undecodable() -> None:
    data = encode(group("a", 1, [1.0]))
    status = data.index(b"\x00" + encode_long(0) + encode_long(1) + encode_long(1), 60)
    with pytest.raises(Undecodable, match="RolloutGroupCompleted"):
        decode(data[:status] + encode_long(60) + data[status + 1 :])
    letters, _ = heard_by_a_pool(data[:status] + encode_long(60) + data[status + 1 :])
    assert [letter.reason for letter in letters] == [DeadLetterReason.UNDECODABLE]


def encode_long(value: int) -> bytes:
    return bytes([value << 1])


def test_a_new_field_is_passed_over_and_a_new_symbol_refused_once_the_schema_is_in_the_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = dict(_writers())
    for change in (with_field, with_symbol):
        schema = change(schema_of("RolloutGroupCompleted"))
        known[fingerprint_of(schema)] = (
            "RolloutGroupCompleted",
            fastavro.parse_schema(schema, named_schemas={}, _force=True),
        )
    monkeypatch.setattr("schemas.codec._writers", lambda: known)
    event = decode(FUTURE["field"])
    assert isinstance(event, RolloutGroupCompleted) and event == group(f"{RUN}-seed-0", 1, [0.5] * 4)
    with pytest.raises(Undecodable, match="abandoned"):
        decode(FUTURE["symbol"])
    letters, said = heard_by_a_pool(FUTURE["symbol"])
    assert [letter.reason for letter in letters] == [DeadLetterReason.UNDECODABLE] and len(said) > 4


def without(schema: dict, name: str) -> dict:
    return {**schema, "fields": [field for field in schema["fields"] if field["name"] != name]}


def retyped(schema: dict, name: str, kind: object) -> dict:
    return {
        **schema,
        "fields": [{**field, "type": kind} if field["name"] == name else field for field in schema["fields"]],
    }


BREAKS = {
    "a field without default": lambda s: {**s, "fields": [*s["fields"], {"name": "extra", "type": "int", "doc": "x"}]},
    "a removed field": lambda s: without(s, "policy_version"),
    "another type": lambda s: retyped(s, "step", "string"),
    "a renamed field": lambda s: {
        **s,
        "fields": [{**f, "name": "number"} if f["name"] == "step" else f for f in s["fields"]],
    },
    "a new symbol without default": with_symbol,
    "a nullable field that readers take as given": lambda s: retyped(s, "task_id", ["null", "string"]),
}


@pytest.mark.parametrize("change", BREAKS)
def test_the_check_that_ci_runs_refuses_an_incompatible_change(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(name: str) -> dict:
        return BREAKS[change](schema_of(name)) if name == "RolloutGroupCompleted" else schema_of(name)

    monkeypatch.setattr(test_contracts, "schema_of", changed)
    with pytest.raises(AssertionError, match="RolloutGroupCompleted"):
        test_contracts.test_every_schema_can_read_and_be_read_by_every_other_version()


def test_the_check_that_ci_runs_lets_a_field_with_default_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_contracts, "schema_of", lambda name: with_field(schema_of(name)))
    test_contracts.test_every_schema_can_read_and_be_read_by_every_other_version()


def test_a_changed_schema_must_be_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.publish.schema_of", lambda name: with_field(schema_of(name)))
    with pytest.raises(AssertionError, match="schemas.publish"):
        test_contracts.test_every_current_schema_is_in_the_history()
