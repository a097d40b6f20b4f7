"""The system's topics: created by itself, with a retention that keeps the truth, and refused without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from schemas import TOPICS
from streams.log.connection import Connection
from streams.log.port import MAX_TOPIC_BYTES, LogUnavailable, partition_counts

KEEP_FOREVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(MAX_TOPIC_BYTES),
    "compression.type": "producer",
}
ADMIN_TIMEOUT_S = 20.0
DESCRIBE_TIMEOUT_S = 2.0


class UnsafeTopic(RuntimeError):
    """A topic exists whose settings would lose or misplace events; the text says which and how to repair it."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic as the broker has it."""

    name: str
    num_partitions: int
    config: Mapping[str, str]


def partitions_of(connection: Connection) -> dict[str, int]:
    """Partitions by topic name without prefix."""
    return partition_counts(TOPICS, connection.num_decision_partitions, connection.num_spread_partitions)


def complaint(state: TopicState, num_partitions: int) -> str:
    """What is wrong with an existing topic, or an empty text."""
    if state.num_partitions != num_partitions:
        return (
            f"topic {state.name} has {state.num_partitions} partitions, {num_partitions} are configured: set "
            "kafka.num_decision_partitions/num_spread_partitions to match or use another kafka.topic_prefix"
        )
    for key in ("retention.ms", "retention.bytes"):
        if state.config.get(key, "-1") != "-1":
            return (
                f"topic {state.name} has {key}={state.config[key]} and would forget the run: set {key}=-1 "
                "(kafka-configs --alter) or use another kafka.topic_prefix"
            )
    if state.config.get("cleanup.policy", "delete") != "delete":
        return f"topic {state.name} has cleanup.policy={state.config['cleanup.policy']}: set cleanup.policy=delete"
    return ""


def ensure_topics(connection: Connection) -> list[str]:
    """Create missing topics and check the others; returns the names that were created.

    Raises:
        UnsafeTopic: an existing topic is unfit.
        LogUnavailable: the broker does not answer.
    """
    admin = AdminClient(connection.settings())
    wanted = {connection.full_name(topic): number for topic, number in partitions_of(connection).items()}
    try:
        existing = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        new = [
            NewTopic(name, num_partitions=number, replication_factor=connection.replication_factor, config=KEEP_FOREVER)
            for name, number in wanted.items()
            if name not in existing
        ]
        created = _create(admin, new) if new else []
        states = describe_topics(admin, wanted)
    except KafkaException as error:
        raise LogUnavailable(
            f"broker {connection.bootstrap_servers} did not answer: {error}; is it running?"
        ) from error
    complaints = [complaint(state, wanted[state.name]) for state in states]
    if any(complaints):
        raise UnsafeTopic("\n".join(filter(None, complaints)))
    return created


def _create(admin: AdminClient, new: list[NewTopic]) -> list[str]:
    created = []
    for name, future in admin.create_topics(new, operation_timeout=ADMIN_TIMEOUT_S).items():
        try:
            future.result(ADMIN_TIMEOUT_S)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return created


def describe_topics(admin: AdminClient, names: Mapping[str, int]) -> list[TopicState]:
    """Partitions and settings of existing topics, in the given order."""
    topics = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    configs = {
        resource.name: future.result(ADMIN_TIMEOUT_S) for resource, future in admin.describe_configs(resources).items()
    }
    return [
        TopicState(name, len(topics[name].partitions), {key: entry.value for key, entry in configs[name].items()})
        for name in names
        if name in topics
    ]


def topic_ids(admin: AdminClient, names: Sequence[str]) -> dict[str, str]:
    """The id that the broker gave each topic when it was made, by name; without those it gives none for, or does not hold."""
    found = {}
    for name, future in admin.describe_topics(TopicCollection(list(names)), request_timeout=DESCRIBE_TIMEOUT_S).items():
        try:
            found[name] = str(future.result(DESCRIBE_TIMEOUT_S).topic_id)
        except (KafkaException, TimeoutError):
            continue
    return found
