"""Replay: a recorded run is decided again byte for byte, and one changed thing is named."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import fastavro
import pytest

from analysis.index import LogIndex, RunIndex
from analysis.replay import MISSING, Divergence, Repetition, plans_of, unreadable_in
from schemas import Event, Undecodable, as_record, codec, decode, encode
from schemas.definitions import fingerprint_of, schema_of
from schemas.events import BatchPlanned, BoundaryDetected, EpochPlanned, RolloutGroupCompleted, RunStarted
from schemas.registry import URL, active
from streams.archive.scan import scanned
from streams.log.port import MemoryLog, Record, beginning
from streams.log.reader import dead_letter
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS, PoolKeeper
from tests.schemas.registry_server import RegistryServer
from tests.streams.building import RUN, opening, reply
from tests.streams.test_fold import SETTINGS, mean_of

TOPICS = [*INPUT_TOPICS, *OUTPUT_TOPICS]
PARTITIONS = dict.fromkeys(TOPICS, 1)


def live_run(num_epochs: int = 3) -> list[Record]:
    """Records of a run as the keeper really decides it, cursors and all."""
    log, keeper, cursor = MemoryLog(PARTITIONS, clock=lambda: 9), PoolKeeper(), beginning(INPUT_TOPICS, PARTITIONS)
    keeper.refold(log, [0])
    log.append(opening(7, num_epochs, SETTINGS))
    while records := log.read(cursor, timeout_s=0.0):
        for record in records:
            cursor[record.place] = record.offset + 1
            heard = keeper.hear(record)
            log.append(heard.say)
            log.append([a for event in heard.say for a in reply(event, mean_of, lambda t: t.endswith("3"))])
    return [r for place in beginning(TOPICS, PARTITIONS) for r in log.read({place: 0}, 10_000, 0.0)]


def indexed(records: list[Record]) -> LogIndex:
    return LogIndex(whole=True).add_records(map(scanned, records))


def run_of(records: list[Record]) -> RunIndex:
    return indexed(records).run(RUN)


def replayed(records: list[Record]) -> Divergence | None:
    return Repetition(run_of(records)).repeat(is_complete=True)


def changed(records: list[Record], kind: type, index: int, **values: object) -> list[Record]:
    """The records with one event of a type altered."""
    spots = [i for i, r in enumerate(records) if isinstance(decode(r.value), kind)]
    event: Event = replace(decode(records[spots[index]].value), **values)
    return [r._replace(value=encode(event)) if i == spots[index] else r for i, r in enumerate(records)]


def test_a_recorded_run_is_decided_again_byte_for_byte() -> None:
    records = live_run()
    assert sum(r.topic == "batches" for r in records) > 6
    assert replayed(records) is None


def test_records_heard_twice_do_not_matter() -> None:
    records = live_run()
    doubled = [*records, *(r._replace(offset=r.offset + 1000) for r in records if r.topic in OUTPUT_TOPICS)]
    assert replayed(doubled) is None


def test_another_batch_order_is_named() -> None:
    records = live_run()
    batch = [decode(r.value) for r in records if r.topic == "batches" and isinstance(decode(r.value), BatchPlanned)][2]
    difference = replayed(changed(records, BatchPlanned, 2, task_ids=batch.task_ids[::-1]))
    assert batch.event_id in difference.what and "task_ids" in difference.what


def test_another_epoch_plan_is_named() -> None:
    difference = replayed(changed(live_run(), EpochPlanned, 1, num_queued=99))
    assert "EpochPlanned" in difference.what and "num_queued" in difference.what and difference.recorded == "99"


def test_another_reward_changes_the_evidence_and_is_named_with_its_group() -> None:
    records = live_run()
    difference = replayed(changed(records, RolloutGroupCompleted, 0, rewards=(0.5, 0.5, 0.5, 0.4)))
    assert difference is not None and difference.cause


def test_another_setting_changes_the_first_plan_it_touches() -> None:
    config = json.dumps({"pool": {**SETTINGS, "batch_size": 3}})
    difference = replayed(changed(live_run(), RunStarted, 0, config_json=config))
    assert "EpochPlanned" in difference.what and "num_steps" in difference.what


def test_a_missing_or_additional_decision_is_named() -> None:
    records = live_run()
    without = [r for r in records if not (r.topic == "boundary-signals" and r.offset == 1)]
    assert replayed(without).where == MISSING
    extra = changed(records, BatchPlanned, 0, step=77, event_id="0" * 32)
    forged = [*records, *[r._replace(offset=900) for r in extra if r not in records]]
    assert "event_id of BatchPlanned" in replayed(forged).what


def test_unreadable_records_are_listed_with_their_place() -> None:
    records = live_run()
    broken = [records[5]._replace(value=records[5].value[:-3]), *records]
    assert f"{records[5].topic}-0@{records[5].offset}" in unreadable_in(indexed(broken))[0].where


def letter(record: Record, consumer: str) -> Record:
    """The record of the dead letter that a consumer wrote of a record."""
    event = dead_letter(record, Undecodable("spoilt"), RUN, consumer)
    return record._replace(topic="dead-letters", offset=0, key=RUN.encode(), value=encode(event))


def test_a_record_that_the_pool_agent_passed_over_is_no_difference_and_one_that_another_refused_is() -> None:
    records = live_run()
    spoilt = records[5]._replace(value=b"no event", offset=7777)
    assert not unreadable_in(indexed([*records, spoilt, letter(spoilt, "pool")]))
    assert unreadable_in(indexed([*records, spoilt, letter(spoilt, "trainer")]))
    elsewhere = spoilt._replace(offset=7778)
    assert unreadable_in(indexed([*records, spoilt, letter(elsewhere, "pool")]))
    assert replayed([*records, spoilt, letter(spoilt, "pool")]) is None


@pytest.mark.parametrize("topic", ["batches", "boundary-signals"])
def test_a_hole_in_the_middle_of_an_unfinished_run_is_a_difference(topic: str) -> None:
    records = live_run()
    without = [r for r in records if not (r.topic == topic and r.offset == 1)]
    difference = Repetition(run_of(without)).repeat(is_complete=False)
    assert difference is not None and difference.where == MISSING


def test_a_decision_that_was_cut_off_behind_the_last_plan_hides_no_other_difference() -> None:
    records = live_run()
    last = [r for r in records if r.topic == "batches"][-1]
    cut = [r for r in records if r is not last]
    assert Repetition(run_of(cut)).repeat(is_complete=False) is None
    assert Repetition(run_of(cut)).repeat(is_complete=True).where == MISSING
    spoilt = changed(cut, BoundaryDetected, 0, rank=99)
    assert "rank" in Repetition(run_of(spoilt)).repeat(is_complete=False).what


def test_facts_that_contradict_each_other_are_a_difference_and_no_crash() -> None:
    records = [r for r in live_run() if not isinstance(decode(r.value), EpochPlanned)]
    assert replayed(records) is not None


def test_the_framing_of_a_schema_registry_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    records = live_run()
    with RegistryServer() as registry:
        monkeypatch.setenv(URL, registry.url)
        active().register_all()
        framed = [r._replace(value=encode(decode(r.value))) for r in records]
        assert all(f.value != r.value for f, r in zip(framed, records, strict=True))
        assert replayed(records) is None and replayed(framed) is None


def test_an_older_schema_version_is_no_difference_and_another_value_in_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    records = live_run()
    schema = schema_of("BatchPlanned")
    older = {**schema, "fields": schema["fields"][::-1]}
    parsed = fastavro.parse_schema(older, named_schemas={}, _force=True)
    monkeypatch.setitem(codec._writers(), fingerprint_of(older), ("BatchPlanned", parsed))

    def rewritten(record: Record) -> Record:
        event = decode(record.value)
        if not isinstance(event, BatchPlanned):
            return record
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, as_record(event))
        return record._replace(value=codec.MAGIC + fingerprint_of(older) + body.getvalue())

    old = [rewritten(record) for record in records]
    assert old != records and replayed(old) is None
    other = [rewritten(record) for record in changed(records, BatchPlanned, 2, task_ids=())]
    assert "task_ids" in replayed(other).what


@pytest.mark.parametrize("num_plans", range(1, 9))
def test_a_run_cut_off_anywhere_replays_as_far_as_it_went(num_plans: int) -> None:
    records = live_run()
    last = plans_of(run_of(records))[num_plans - 1]
    limits = {(c.topic, c.partition): c.next_offset for c in last.event.input_cursor}
    inputs = [r for r in records if r.topic in INPUT_TOPICS and r.offset < limits.get((r.topic, r.partition), 0)]
    steps = [r for r in inputs if r.topic == "steps"]
    plans = [r for r in records if r.topic == "batches" and r.offset <= last.record.offset]
    signals = [r for r in records if r.topic == "boundary-signals" and decode(r.value).step <= len(steps)]
    assert Repetition(run_of([*inputs, *plans, *signals])).repeat(is_complete=False) is None
