"""The operator's documents name what there is: roles read and write what the code does, commands and metrics exist."""

from __future__ import annotations

import re

from analysis.index import RunIndex
from analysis.measures import measures
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from synthesizer.service import TOPICS as SYNTHESIZER_TOPICS
from tests.stack.stack import ROOT, compose
from trainer.view import TOPICS as TRAINER_TOPICS
from trainer.view import WORKER_TOPICS

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()


def rights() -> dict[str, tuple[set[str], set[str]]]:
    """Topics read and written by role, as the table says."""
    rows = re.findall(r"^\| `(\w+)`[^|]*\| ([^|]*)\| ([^|]*)\| [^|]*\|$", OPERATIONS, re.M)
    return {role: tuple(set(re.findall(r"`([a-z-]+)`", cell)) for cell in cells) for role, *cells in rows}


def test_every_role_may_read_what_its_process_reads() -> None:
    table = rights()
    assert set(table) >= {"admin", "trainer", "rollouts", "worker", "synthesizer", "archiver", "observer"}
    assert set(TRAINER_TOPICS) <= table["trainer"][0] and set(WORKER_TOPICS) <= table["rollouts"][0]
    assert set(INPUT_TOPICS + OUTPUT_TOPICS) <= table["worker"][0] and set(OUTPUT_TOPICS) <= table["worker"][1]
    assert {"runs", *SYNTHESIZER_TOPICS} <= table["synthesizer"][0]
    assert table["synthesizer"][1] == {"tasks", "synthesis-outcomes", "dead-letters"}
    assert all("dead-letters" in table[role][1] for role in ("trainer", "rollouts", "worker", "synthesizer"))


def test_metrics_that_are_explained_are_exported() -> None:
    named = set(re.findall(r"`(rods_\w+?)(?:\{[^}]*\})?`", OPERATIONS))
    exported = {measure.name for measure in measures(RunIndex())} | {
        "rods_waiting",
        "rods_consumer_lag_records",
        "rods_rollout_staleness_updates",
    }
    assert len(named) > 12 and named <= exported, named - exported


def test_ports_and_profiles_are_those_of_the_compose_file() -> None:
    services = compose()["services"]
    published = {port.rpartition(":")[2] for service in services.values() for port in service.get("ports", [])}
    assert set(re.findall(r"localhost:(\d+)", OPERATIONS)) - {"19092"} <= published
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    assert set(re.findall(r"--profile (\w+)", OPERATIONS + DEPLOYMENT)) == profiles


def test_files_that_are_named_are_there() -> None:
    for text in (OPERATIONS, DEPLOYMENT):
        for name in re.findall(r"`((?:deploy|docs|tests|streams)/[\w./-]+)`", text):
            assert (ROOT / name).exists(), name
