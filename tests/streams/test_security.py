"""TLS and passwords reach every client from one place, and secrets stay where they are.

The broker is the embedded one behind a gate that does TLS and SASL/PLAIN as Kafka does.
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from commands.roles.process import role_command
from schemas.credentials import CredentialError
from streams.log import topics
from streams.log.connection import Connection
from streams.log.embedded_broker import free_port
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import ensure_topics, partitions_of
from streams.processes import Child
from tests.streams.building import RUN, opening
from tests.streams.gate import Gate, broker_behind

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the deployment's own script makes."""
    folder = tmp_path_factory.mktemp("tls")
    script = Path(__file__).parent.parent.parent / "deploy" / "tls" / "make.sh"
    copy = folder / "make.sh"
    copy.write_text(script.read_text())
    subprocess.run(["sh", str(copy), "localhost"], check=True, capture_output=True, cwd=folder)
    return folder / "made"


@pytest.fixture(scope="module")
def secured(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, Gate]]:
    """A broker that clients reach through the gate alone: it advertises the gate's address."""
    port = free_port()
    users = {"trainer": (certificates / "trainer.password").read_text().strip()}
    gate = Gate(users, certificates / "kafka.pem", certificates / "kafka.key", port)
    gate.upstream_port = free_port()
    broker = broker_behind(gate.upstream_port, f"localhost:{port}", tmp_path_factory.mktemp("broker") / "log")
    with gate:
        yield (
            Connection(
                f"localhost:{port}",
                embedded=True,
                client={
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": "trainer",
                    "sasl.password": f"file:{certificates / 'trainer.password'}",
                    "ssl.ca.location": str(certificates / "ca.pem"),
                },
            ),
            gate,
        )
    broker.kill()


def test_every_client_comes_through_tls_with_its_password(secured: tuple[Connection, Gate], tmp_path: Path) -> None:
    connection, gate = secured
    assert len(ensure_topics(connection)) == len(partitions_of(connection))
    log = KafkaLog(connection)
    events = opening(3, 1, {"batch_size": 3})
    log.append(events)
    ready = tmp_path / "ready"
    options = ("--datadir", str(tmp_path / "d"), "--ready-file", str(ready))
    worker = Child("worker", role_command("worker", connection, *options), tmp_path / "worker.log").start()
    try:
        worker.await_file(ready, DEADLINE_S)
        reader = EventReader(KafkaLog(connection), ("batches",), partitions_of(connection), RUN, "test")
        decided = []
        while len(decided) < 2:
            worker.require_alive()
            decided += reader.poll(1.0)
        assert [type(event).__name__ for event in decided] == ["EpochPlanned", "BatchPlanned"]
    finally:
        worker.stop()
    assert gate.num_let_in >= 6 and gate.num_refused == 0


def test_no_secret_is_on_a_command_line_or_in_a_log(secured: tuple[Connection, Gate], certificates: Path) -> None:
    connection, _ = secured
    password = (certificates / "trainer.password").read_text().strip()
    assert (
        password not in connection.to_json()
        and password not in repr(connection)
        and password not in repr(connection.security())
    )
    assert connection.settings()["sasl.password"] == password == connection.security().password


def test_a_wrong_password_is_refused_and_named_without_the_password(
    secured: tuple[Connection, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, gate = secured
    monkeypatch.setenv("RODS_TEST_WRONG", "wr0ng-secret")
    monkeypatch.setattr(topics, "ADMIN_TIMEOUT_S", 2.0)
    wrong = replace(connection, client={**connection.client, "sasl.password": "env:RODS_TEST_WRONG"})
    refused_before = gate.num_refused
    with pytest.raises(LogUnavailable) as caught:
        ensure_topics(wrong)
    assert gate.num_refused > refused_before and "wr0ng-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"sasl.password": "hunter2"}, r"sasl.password must be a reference, env:NAME or file:/path"),
        ({"sasl.password": "env:RODS_NOT_THERE"}, "RODS_NOT_THERE is not set"),
        ({"security.protocol": "TELNET"}, "security.protocol=TELNET"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/none/ca.pem"}, "TLS files cannot be used"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(client: dict[str, str], message: str) -> None:
    with pytest.raises(CredentialError, match=message) as caught:
        Connection("localhost:1", client=client).security()
    assert "hunter2" not in str(caught.value)


def test_plaintext_needs_no_credentials() -> None:
    assert Connection("localhost:1").security() is None


def test_verification_is_on_unless_it_is_switched_off(certificates: Path) -> None:
    strict = {"security.protocol": "ssl", "ssl.ca.location": str(certificates / "ca.pem")}
    assert Connection("x", client=strict).security().ssl_context.verify_mode is ssl.CERT_REQUIRED
    loose = {**strict, "enable.ssl.certificate.verification": "false"}
    assert Connection("x", client=loose).security().ssl_context.verify_mode is ssl.CERT_NONE
    nameless = {**strict, "ssl.endpoint.identification.algorithm": "none"}
    assert not Connection("x", client=nameless).security().ssl_context.check_hostname
