"""How far a consumer group is behind the end of its topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from streams.log.connection import Connection
from streams.log.port import Place


class LagMeter:
    """Asks the broker for the committed offsets of one group.

    Args:
        connection: the broker.
        group: consumer group.
        places: partitions the group reads.
    """

    def __init__(self, connection: Connection, group: str, places: Iterable[Place]) -> None:
        self._connection = connection
        self._places = [TopicPartition(connection.full_name(p.topic), p.partition) for p in places]
        self._consumer = Consumer(connection.consumer_settings(group))

    def lag(self, ends: Mapping[Place, int]) -> int | None:
        """Records between the committed offsets and the given ends; ``None`` if the broker does not say."""
        try:
            committed = self._consumer.committed(self._places, timeout=1.0)
        except KafkaException:
            return None
        behind = 0
        for place in committed:
            end = ends.get(Place(place.topic.removeprefix(self._connection.prefix), place.partition), 0)
            behind += max(0, end - max(0, place.offset))
        return behind

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()
