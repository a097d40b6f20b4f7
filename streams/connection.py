"""Client settings for the broker in use, in one place for every client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from streams import embedded_broker

SECRET_KEYS = frozenset({"sasl.password", "ssl.key.password", "ssl.keystore.password", "sasl.oauthbearer.client.secret"})


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the log.

    Attributes:
        bootstrap_servers: ``host:port`` list.
        embedded: whether it is the embedded broker.
        prefix: put before every topic name.
        num_decision_partitions: partitions of topics that hold one run in one partition.
        num_spread_partitions: partitions of ``trajectories``.
        replication_factor: copies of each topic.
        client: further librdkafka settings (security), passed to every client.
    """

    bootstrap_servers: str
    embedded: bool = False
    prefix: str = "rods."
    num_decision_partitions: int = 1
    num_spread_partitions: int = 2
    replication_factor: int = 1
    client: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, object]:
        """Settings that every client shares."""
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **self.client}

    def producer_settings(self) -> dict[str, object]:
        """Idempotent, acknowledged by all in-sync replicas, zstd."""
        return {
            **self.settings(), "acks": "all", "enable.idempotence": True, "compression.type": "zstd",
            "linger.ms": 5, "message.max.bytes": 8_000_000, "delivery.timeout.ms": 30_000,
            **(embedded_broker.PRODUCER_SETTINGS if self.embedded else {}),
        }

    def consumer_settings(self, group: str = "rods-reader") -> dict[str, object]:
        """A consumer that commits nothing by itself and starts at explicit offsets."""
        return {
            **self.settings(), "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error",
            "fetch.message.max.bytes": 8_000_000, "enable.partition.eof": False,
            **(embedded_broker.CONSUMER_SETTINGS if self.embedded else {}),
        }

    def full_name(self, topic: str) -> str:
        """Topic name on the broker."""
        return self.prefix + topic

    def to_json(self) -> str:
        """All fields as JSON, for a child process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Connection:
        """The inverse of :meth:`to_json`."""
        return cls(**json.loads(text))
