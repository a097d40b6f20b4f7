"""The log on any broker that speaks Kafka's protocol, through confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from schemas import Event
from streams.log.connection import Connection
from streams.log.embedded_broker import true_end_offsets
from streams.log.port import Cursor, LogGap, LogUnavailable, Place, Record, as_record, now_ms
from streams.log.topics import partitions_of, topic_ids

FLUSH_DEADLINE_S = 35.0
COMPARE_TOPICS_S = 5.0
PROBE_TIMEOUT_S = 5.0
TRANSIENT = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})


class KafkaLog:
    """Append and read through one producer and one group-less consumer, each made on first use. Not thread-safe.

    Args:
        connection: the broker.
        clock: stamps events, milliseconds since 1970.
        broker_silence_s: how long a lost connection is borne while reading.
    """

    def __init__(
        self, connection: Connection, clock: Callable[[], int] = now_ms, broker_silence_s: float = 30.0
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._partitions = partitions_of(connection)
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._positions: dict[Place, int] = {}
        self._failures: list[str] = []
        self._topic_ids: dict[str, str] = {}
        self._compare_at_s = 0.0
        self._broker_silence_s = broker_silence_s
        self._down_since = 0.0

    def append(self, events: Sequence[Event]) -> None:
        records = [as_record(event, self._partitions, self._clock) for event in events]
        for record in records:
            self._send(record)
        self._flush(
            f"{len(records)} events, last {type(events[-1]).__name__} {events[-1].event_id}" if events else "nothing"
        )

    def append_raw(self, record: Record) -> None:
        self._send(record)
        self._flush(f"one record to {record.topic}-{record.partition}")

    def send(self, records: Sequence[Record]) -> list[int]:
        """Write records with their own times and return the offsets they got, in order.

        Raises:
            LogUnavailable: not acknowledged in time.
        """
        offsets = [-1] * len(records)
        for index, record in enumerate(records):
            self._send(record, lambda message, index=index: offsets.__setitem__(index, message.offset()))
        self._flush(f"{len(records)} records")
        return offsets

    def _send(self, record: Record, delivered: Callable[[Message], None] | None = None) -> None:
        if self._producer is None:
            self._producer = Producer(self._connection.producer_settings())

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failures.append(f"{message.topic()}-{message.partition()}: {error.str()}")
            elif delivered is not None:
                delivered(message)

        values = {
            "topic": self._connection.full_name(record.topic),
            "partition": record.partition,
            "key": record.key,
            "value": record.value,
            "timestamp": record.timestamp_ms,
            "headers": list(record.headers),
            "on_delivery": on_delivery,
        }
        while True:
            try:
                self._producer.produce(**values)
                return
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:
                raise LogUnavailable(f"{record.topic}-{record.partition}: record refused: {error}") from error

    def _flush(self, what: str) -> None:
        left = self._producer.flush(FLUSH_DEADLINE_S) if self._producer else 0
        failures, self._failures = self._failures, []
        if left or failures:
            reason = failures[0] if failures else f"{left} records not acknowledged in {FLUSH_DEADLINE_S:.0f} s"
            raise LogUnavailable(
                f"broker {self._connection.bootstrap_servers} did not take {what}: {reason}; is it running? "
                "Writing the same events again is harmless"
            )

    def read(self, cursor: Cursor, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        if not cursor:
            return []
        self._require_same_topics({place.topic for place in cursor})
        self._seek(cursor)
        try:
            messages = self._consumer.consume(1, timeout_s)
            messages += self._consumer.consume(max_records - 1, 0.0) if messages else []
            if messages:
                self._down_since = 0.0
            elif self._down_since and time.monotonic() - self._down_since > self._broker_silence_s:
                self._probe()
            return self._taken(messages)
        except KafkaException as error:
            self._positions = {}
            raise LogUnavailable(f"broker {self._connection.bootstrap_servers}: {error}") from error
        except (LogGap, LogUnavailable):
            self._positions = {}
            raise

    def _require_same_topics(self, topics: Iterable[str]) -> None:
        """Now and then, compare the ids of topics with those they had when this log first read them.

        Raises:
            LogGap: a topic was deleted and made again, so that offsets mean other records.
        """
        if time.monotonic() < self._compare_at_s:
            return
        if self._admin is None:
            self._admin = AdminClient(self._connection.settings())
        names = [self._connection.full_name(topic) for topic in sorted(topics)]
        for name, id_ in topic_ids(self._admin, names).items():
            known = self._topic_ids.setdefault(name, id_)
            if known != id_:
                raise LogGap(
                    f"topic {name} was deleted and made again while it was read: its id was {known} and is {id_} now. "
                    "What it held is gone from the broker: restore it from an archive (rods archive push)"
                )
        self._compare_at_s = time.monotonic() + COMPARE_TOPICS_S

    def _taken(self, messages: Iterable[Message]) -> list[Record]:
        """Records of messages, each the one that follows in its partition; what was asked for before is passed over.

        Raises:
            LogGap: offsets are missing.
            LogUnavailable: the broker answered with an error.
        """
        records = []
        for record in [self._record(message) for message in messages if not self._is_error(message)]:
            expected = self._positions.get(record.place)
            if expected is None or record.offset < expected:
                continue
            if record.offset > expected:
                raise LogGap(
                    f"{record.topic}-{record.partition}: offsets {expected} to {record.offset - 1} are missing on the broker"
                )
            self._positions[record.place] = record.offset + 1
            records.append(record)
        return records

    def _seek(self, cursor: Cursor) -> None:
        if self._consumer is None:
            self._consumer = Consumer({**self._connection.consumer_settings(), "error_cb": self._on_client_error})
        if dict(cursor) != self._positions:
            self._consumer.assign(
                [
                    TopicPartition(self._connection.full_name(place.topic), place.partition, offset)
                    for place, offset in cursor.items()
                ]
            )
            self._positions = dict(cursor)

    def _is_error(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise LogGap(self._lost(message, error))
        if error.code() not in TRANSIENT:
            raise LogUnavailable(f"{message.topic()}-{message.partition()}: {error.str()}")
        return True

    def _lost(self, message: Message, error: KafkaError) -> str:
        """Which offsets the broker no longer holds, in words."""
        full, number = message.topic(), message.partition()
        wanted = self._positions.get(Place(full.removeprefix(self._connection.prefix), number), 0)
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(full, number), timeout=PROBE_TIMEOUT_S)
        except KafkaException:
            return f"{full}-{number}: {error.str()}; the broker does not hold offset {wanted}"
        if wanted < low:
            return f"{full}-{number}: the broker no longer holds offsets {wanted} to {low - 1}; what is left begins at {low}"
        return f"{full}-{number}: the broker does not hold offset {wanted}; it ends at {high}. Was the topic made anew?"

    def _on_client_error(self, error: KafkaError) -> None:
        if error.code() in TRANSIENT:
            self._down_since = self._down_since or time.monotonic()

    def _probe(self) -> None:
        """Ask whether the broker is really gone; clients report a lost connection but not its return."""
        try:
            self._consumer.list_topics(timeout=PROBE_TIMEOUT_S)
        except KafkaException as error:
            raise LogUnavailable(
                f"broker {self._connection.bootstrap_servers} is gone for {self._broker_silence_s:.0f} s: {error}"
            ) from error
        self._down_since = 0.0

    def _record(self, message: Message) -> Record:
        return Record(
            message.topic().removeprefix(self._connection.prefix),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )

    def end_offsets(self, topics: Iterable[str]) -> dict[Place, int]:
        places = [Place(self._connection.full_name(t), n) for t in topics for n in range(self._partitions[t])]
        ends = true_end_offsets(self._connection.settings(), places)
        return {
            Place(p.topic.removeprefix(self._connection.prefix), p.partition): end for p, end in sorted(ends.items())
        }

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        if self._producer is not None:
            self._producer.flush(FLUSH_DEADLINE_S)
        self._consumer = self._producer = None
        self._positions = {}
