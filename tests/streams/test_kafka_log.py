"""Reading from a broker that fails, forgets or skips: nothing is lost silently, and each range is named."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streams.log import kafka as kafka_log
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, LogUnavailable, Place

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
