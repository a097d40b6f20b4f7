"""Fixtures that several rooms share: a real broker on a loopback port."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.topics import ensure_topics


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, bool]]:
    """(bootstrap servers, embedded): the broker named by KAFKA_BOOTSTRAP_SERVERS, else an embedded one."""
    named = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if named:
        yield named, False
        return
    with EmbeddedBroker(tmp_path_factory.mktemp("broker") / "broker.log") as broker:
        yield broker.bootstrap_servers, True


@pytest.fixture
def connection(broker_address: tuple[str, bool]) -> Connection:
    """Fresh topics on the broker."""
    servers, embedded = broker_address
    fresh = Connection(servers, embedded, prefix=f"t{uuid.uuid4().hex[:8]}.", num_decision_partitions=2)
    ensure_topics(fresh)
    return fresh


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker of this test's own, to be killed at will."""
    with EmbeddedBroker(tmp_path / "broker.log") as broker:
        yield broker
