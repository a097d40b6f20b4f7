"""Finds out what a broker holds, for readers that were given nothing but its address."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas import SPREAD_TOPICS, TOPICS
from streams.log.connection import Connection
from streams.log.port import LogUnavailable

ANSWER_TIMEOUT_S = 10.0


def partitions_on(connection: Connection) -> dict[str, int]:
    """Partitions of those of our topics that the broker has, by name without prefix.

    Raises:
        LogUnavailable: the broker does not answer.
    """
    try:
        topics = AdminClient(connection.settings()).list_topics(timeout=ANSWER_TIMEOUT_S).topics
    except KafkaException as error:
        raise LogUnavailable(
            f"broker {connection.bootstrap_servers} did not answer: {error}; is it running?"
        ) from error
    return {name: len(topics[full].partitions) for name in TOPICS if (full := connection.full_name(name)) in topics}


def existing(bootstrap_servers: str, prefix: str, client: Mapping[str, str]) -> Connection:
    """A connection to the topics that are there. The embedded broker's client settings are right for every broker.

    Raises:
        LogUnavailable: no answer, or none of our topics.
    """
    asking = Connection(bootstrap_servers, embedded=True, prefix=prefix, client=client)
    found = partitions_on(asking)
    if not found:
        raise LogUnavailable(
            f"broker {bootstrap_servers} has no topics that begin with {prefix!r}; set RODS_KAFKA__TOPIC_PREFIX to "
            "the prefix in use"
        )
    return sized(bootstrap_servers, prefix, client, found)


def sized(bootstrap_servers: str, prefix: str, client: Mapping[str, str], partitions: Mapping[str, int]) -> Connection:
    """A connection with the partition counts of a log."""
    spread = max(partitions.get(topic, 1) for topic in SPREAD_TOPICS)
    decision = max((count for topic, count in partitions.items() if topic not in SPREAD_TOPICS), default=1)
    return Connection(
        bootstrap_servers,
        embedded=True,
        prefix=prefix,
        num_decision_partitions=decision,
        num_spread_partitions=spread,
        client=client,
    )
