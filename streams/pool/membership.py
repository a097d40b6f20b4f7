"""Who answers for which partition of a topic: one process for all, or the members of a consumer group.

What is open and what is done stands in the log itself; a group decides only who works on what, and its committed
offsets say how far that work has come. A member consumes nothing through its group: its partitions are paused from
the moment they are assigned, so a slow consumer is never thrown out and its back pressure is simply not to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from streams.log.connection import Connection
from streams.log.port import LogUnavailable

COMMIT_PATIENCE_S = 10.0


class Membership:
    """One process's part in the work on a topic.

    Args:
        connection: the broker.
        group: consumer group; its committed offsets are the progress.
        topic: topic without prefix.
        num_partitions: its partitions.
        alone: answer for all partitions without joining the group; joining costs seconds on the embedded broker.

    Attributes:
        owned: partitions this process answers for now.
        num_changes: how often ``owned`` grew; whoever works then reads the log to its end first.
    """

    def __init__(self, connection: Connection, group: str, topic: str, num_partitions: int, alone: bool = True) -> None:
        self._topic = connection.full_name(topic)
        self._servers = connection.bootstrap_servers
        self._group = group
        self._consumer = Consumer({**connection.consumer_settings(group), "auto.offset.reset": "latest"})
        self._committed: dict[int, int] = {}
        self.owned: frozenset[int] = frozenset(range(num_partitions)) if alone else frozenset()
        self.num_changes = 1 if alone else 0
        self._alone = alone
        if not alone:
            self._consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)
        self.owned = frozenset(place.partition for place in partitions)
        self.num_changes += 1

    def _on_revoke(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.owned -= {place.partition for place in partitions}
        consumer.unassign()

    def poll(self) -> None:
        """Take part in the group; call it at least every few minutes.

        Raises:
            LogUnavailable: the group cannot be reached.
        """
        if self._alone:
            return
        message = self._consumer.poll(0)
        if message is not None and message.error() is not None and message.error().fatal():
            raise LogUnavailable(f"broker {self._servers}, group {self._group}: {message.error().str()}")

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Store how far the owned partitions are done; offsets that did not move are not sent.

        A commit that the broker refuses (a rebalance is on its way) is left to the next one: the log, not the offset,
        says what is done.
        """
        moved = {
            number: offset
            for number, offset in offsets.items()
            if number in self.owned and self._committed.get(number) != offset
        }
        if not moved:
            return
        places = [TopicPartition(self._topic, number, offset) for number, offset in sorted(moved.items())]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return
        self._committed.update(moved)

    def committed(self, num_partitions: int) -> dict[int, int]:
        """Committed offsets as the broker has them; partitions without one are left out.

        Raises:
            LogUnavailable: the broker does not say.
        """
        places = [TopicPartition(self._topic, number) for number in range(num_partitions)]
        try:
            found = self._consumer.committed(places, timeout=COMMIT_PATIENCE_S)
        except KafkaException as error:
            raise LogUnavailable(f"broker {self._servers}, group {self._group}: {error}") from error
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()
