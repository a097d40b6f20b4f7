"""Reading from a broker that fails, forgets or skips: nothing is lost silently, and each range is named."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from analysis.checkup import redriven_event
from schemas import make
from schemas.events import RunFinished, RunOutcome
from streams.log import kafka as kafka_log
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import MAX_RECORD_BYTES, LogGap, LogUnavailable, Place, Record
from streams.log.reader import EventReader
from streams.log.topics import ensure_topics, partitions_of

ONE, TWO = Place("batches", 0), Place("steps", 0)
CONNECTION = Connection("127.0.0.1:1", embedded=True)


@dataclass(frozen=True)
class Message:
    """A message as the client library gives it; with a code, an error instead of a record."""

    place: Place
    at: int
    code: int | None = None

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code, "it is so")

    def topic(self) -> str:
        return CONNECTION.full_name(self.place.topic)

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 7

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return str(self.at).encode()

    def headers(self) -> None:
        return None


@dataclass
class Broker:
    """Holds some offsets of each place; ``next_errors`` come instead of what a call would give."""

    held: dict[Place, list[int]]
    next_errors: list[Message | KafkaException | None] = field(default_factory=list)
    at: dict[Place, int] = field(default_factory=dict)
    num_assigned: int = 0

    def assign(self, places: list[TopicPartition]) -> None:
        self.num_assigned += 1
        self.at = {Place(p.topic.removeprefix(CONNECTION.prefix), p.partition): p.offset for p in places}

    def consume(self, most: int, timeout: float) -> list[Message]:
        error = self.next_errors.pop(0) if self.next_errors else None
        if isinstance(error, KafkaException):
            raise error
        found = [
            Message(place, offset) for place, start in self.at.items() for offset in self.held[place] if offset >= start
        ]
        taken = found[:most]
        for message in taken:
            self.at[message.place] = message.at + 1
        return [*taken, error] if error is not None else taken

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        held = self.held[Place(place.topic.removeprefix(CONNECTION.prefix), place.partition)]
        return held[0], held[-1] + 1


def opened(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> KafkaLog:
    monkeypatch.setattr(kafka_log, "Consumer", lambda settings: broker)
    monkeypatch.setattr(kafka_log, "topic_ids", lambda admin, names: {})
    return KafkaLog(CONNECTION)


@pytest.mark.parametrize(
    "errors",
    [
        [None, KafkaException(KafkaError(KafkaError._FAIL))],
        [Message(ONE, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED)],
        [None, Message(ONE, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED)],
    ],
)
def test_what_was_consumed_when_an_error_came_is_read_again(
    monkeypatch: pytest.MonkeyPatch, errors: list[Message | KafkaException | None]
) -> None:
    broker = Broker({ONE: list(range(5))}, errors)
    log = opened(monkeypatch, broker)
    with pytest.raises(LogUnavailable):
        log.read({ONE: 0})
    assert [record.offset for record in log.read({ONE: 0})] == [0, 1, 2, 3, 4]
    assert broker.num_assigned == 2


def test_reading_on_does_not_seek_and_a_passing_error_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker({ONE: list(range(4))}, [Message(ONE, -1, KafkaError._TRANSPORT)])
    log = opened(monkeypatch, broker)
    assert [r.offset for r in log.read({ONE: 0}, max_records=2)] == [0, 1]
    assert [r.offset for r in log.read({ONE: 2})] == [2, 3]
    assert broker.num_assigned == 1


def test_a_gap_in_a_topic_is_refused_with_its_range_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(monkeypatch, Broker({ONE: [0, 1, 2, 6, 7], TWO: [0, 1]}))
    for _ in range(2):
        with pytest.raises(LogGap, match="batches-0: offsets 3 to 5 are missing"):
            log.read({ONE: 0, TWO: 0})
    assert [r.offset for r in log.read({TWO: 0})] == [0, 1]


def test_forgotten_offsets_are_named_from_the_wanted_to_the_first_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = Message(ONE, -1, KafkaError._AUTO_OFFSET_RESET)
    log = opened(monkeypatch, Broker({ONE: [40, 41]}, [reset]))
    with pytest.raises(LogGap, match="batches-0: the broker no longer holds offsets 12 to 39"):
        log.read({ONE: 12}, max_records=1)


def test_a_place_beyond_the_end_is_told_from_a_forgotten_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = Message(ONE, -1, KafkaError._AUTO_OFFSET_RESET)
    log = opened(monkeypatch, Broker({ONE: [0, 1]}, [reset]))
    with pytest.raises(LogGap, match="does not hold offset 12; it ends at 2"):
        log.read({ONE: 12})


def test_a_record_that_fills_a_topic_is_dead_lettered_with_its_beginning_and_read_past(connection: Connection) -> None:
    log = KafkaLog(connection)
    junk = bytes(range(256)) * 31_250 + b"x" * 250_000
    log.append_raw(Record("tasks", 0, -1, 1, b"k" * 70_000, junk[: MAX_RECORD_BYTES - 70_040]))
    log.append_raw(Record("tasks", 0, -1, 2, b"k", junk))
    log.append_raw(Record("tasks", 0, -1, 3, b"k", b"small junk"))
    for name in ("reader", "a reader that comes later"):
        reader = EventReader(KafkaLog(connection), ["tasks"], partitions_of(connection), "r", name)
        assert reader.catch_up() == [] and reader.num_broken == 3
    letters = EventReader(log, ["dead-letters"], partitions_of(connection), None, "test").catch_up()
    first, second, third = letters
    assert (second.num_value_bytes, second.value_sha256) == (len(junk), hashlib.sha256(junk).hexdigest())
    assert junk.startswith(second.value) and len(first.key) < 70_000
    assert all("lies at tasks-0@" in letter.detail and redriven_event(letter) is None for letter in (first, second))
    assert (third.value, third.num_value_bytes) == (b"small junk", 10) and "lies at" not in third.detail


def test_a_topic_that_was_made_anew_while_it_was_read_is_a_gap(own_broker: EmbeddedBroker, monkeypatch) -> None:
    monkeypatch.setattr("streams.log.kafka.COMPARE_TOPICS_S", 0.0)
    connection = Connection(own_broker.bootstrap_servers, True, prefix="t.", num_decision_partitions=1)
    ensure_topics(connection)
    log, cursor = KafkaLog(connection), {Place("runs", 0): 3}
    log.append([finished(step) for step in range(3)])
    assert log.read(cursor, timeout_s=0.1) == []
    log.close()  # a client that has the topic open crashes when it is deleted
    admin = AdminClient(connection.settings())
    admin.delete_topics(["t.runs"])["t.runs"].result(10)
    ensure_topics(connection)
    writer = KafkaLog(connection)
    writer.append([finished(step) for step in range(10, 15)])
    with pytest.raises(LogGap, match=r"t\.runs was deleted and made again .* its id was \S+ and is \S+ now"):
        log.read(cursor, timeout_s=1.0)
    assert len(KafkaLog(connection).read({Place("runs", 0): 0}, timeout_s=5.0)) == 5


def finished(step: int) -> RunFinished:
    return make(RunFinished, "r", outcome=RunOutcome.COMPLETED, step=step, epoch=0, reason="", weights_digest="")
