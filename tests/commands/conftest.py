"""A whole run that several modules look at; none changes it."""

from __future__ import annotations

import pytest

from commands.folder import RunFolder
from tests.chaos.harness import only_run
from tests.commands.test_run import CONFIG, run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = run(folder, "--config", str(CONFIG))
    assert code == 0, output
    return only_run(folder)
