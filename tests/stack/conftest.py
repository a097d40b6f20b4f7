"""One stack and one short run through it, for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from schemas import Event
from schemas import registry as schema_registry
from tests.stack.short_run import train
from tests.stack.stack import Stack, use_registry


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The services as processes; this process writes in their wire format."""
    running = Stack(tmp_path_factory.mktemp("stack"))
    before = os.environ.get(schema_registry.URL)
    try:
        running.start()
        use_registry(running.registry_url)
        yield running
    finally:
        os.environ.pop(schema_registry.URL, None)
        if before:
            os.environ[schema_registry.URL] = before
        running.stop()


@pytest.fixture(scope="package")
def heard(stack: Stack) -> list[Event]:
    """Everything said in one run through the stack."""
    return train(stack)
