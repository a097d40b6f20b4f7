"""Client settings for the broker in use, in one place for every client.

Security settings have librdkafka's names, whichever client they reach. Secrets are references (``schemas.credentials``)
that are looked up when a client is made, so none stands on a command line, in a log or in an event.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from schemas.credentials import CredentialError, is_reference, resolved
from streams.log import embedded_broker
from streams.log.port import MAX_TOPIC_BYTES

SECRET_KEYS = frozenset(
    {"sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret"}
)
MECHANISMS = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})


@dataclass(frozen=True, slots=True)
class Security:
    """The security settings of a client that is not librdkafka.

    Attributes:
        mechanism: SASL mechanism; empty without SASL.
        username, password: its credentials.
        ssl_context: TLS; ``None`` without.
    """

    mechanism: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    ssl_context: ssl.SSLContext | None


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
        """Settings that every client shares, secrets looked up.

        Raises:
            CredentialError: a secret stands in the open, or its reference leads nowhere.
        """
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **self._resolved()}

    def _resolved(self) -> dict[str, str]:
        for key in sorted(SECRET_KEYS & self.client.keys()):
            if not is_reference(self.client[key]):
                raise CredentialError(f"kafka.client {key} must be a reference, env:NAME or file:/path, not the secret")
        return {key: resolved(f"kafka.client {key}", value) for key, value in self.client.items()}

    def security(self) -> Security | None:
        """The same security for Faust's client; ``None`` for plaintext.

        Raises:
            CredentialError: a setting that Faust's client cannot follow.
        """
        client = self._resolved()
        protocol = client.get("security.protocol", "plaintext").upper()
        if protocol == "PLAINTEXT":
            return None
        if protocol not in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise CredentialError(
                f"kafka.client security.protocol={protocol}: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
            )
        context = ssl_context(client) if protocol.endswith("SSL") else None
        if protocol == "SSL":
            return Security("", "", "", context)
        mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", "PLAIN"))
        if mechanism not in MECHANISMS:
            known = ", ".join(sorted(MECHANISMS))
            raise CredentialError(f"kafka.client sasl.mechanism={mechanism}: the pool worker speaks {known}")
        return Security(mechanism, client.get("sasl.username", ""), client.get("sasl.password", ""), context)

    def producer_settings(self) -> dict[str, object]:
        """Idempotent, acknowledged by all in-sync replicas, zstd."""
        return {
            **self.settings(),
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 5,
            "message.max.bytes": MAX_TOPIC_BYTES,
            "delivery.timeout.ms": 30_000,
            **(embedded_broker.PRODUCER_SETTINGS if self.embedded else {}),
        }

    def consumer_settings(self, group: str = "rods-reader") -> dict[str, object]:
        """A consumer that commits nothing by itself and starts at explicit offsets."""
        return {
            **self.settings(),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": MAX_TOPIC_BYTES,
            "enable.partition.eof": False,
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


def ssl_context(client: Mapping[str, str]) -> ssl.SSLContext:
    """Python's TLS settings from librdkafka's.

    Args:
        client: resolved settings.

    Raises:
        CredentialError: a certificate or key cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=client.get("ssl.ca.location"), cadata=client.get("ssl.ca.pem"))
        if "ssl.certificate.location" in client:
            context.load_cert_chain(
                client["ssl.certificate.location"], client.get("ssl.key.location"), client.get("ssl.key.password")
            )
    except OSError as error:
        raise CredentialError(f"kafka.client: TLS files cannot be used: {error}") from error
    if client.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if client.get("enable.ssl.certificate.verification", "true") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
