"""Every command and program of docs/interoperability.md, run as it stands there against a stack."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas import TOPICS, Event
from schemas.events import RolloutGroupCompleted, StepCompleted
from streams.log.connection import Connection
from streams.log.embedded_broker import free_port
from streams.log.kafka import KafkaLog
from streams.log.topics import ensure_topics
from tests.stack.short_run import RUN_ID
from tests.stack.stack import ROOT, Stack
from tests.streams.gate import OldApiVersions, broker_behind

TEXT = (ROOT / "docs" / "interoperability.md").read_text()
BASH = re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S)
PYTHON = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)


def run(command: list[str], stack: Stack, folder: Path, broker: str = "") -> str:
    env = {
        **os.environ,
        "BROKER": broker or stack.broker.bootstrap_servers,
        "REGISTRY": stack.registry_url,
        "ARCHIVE": str(stack.archive),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt-get install kcat)")
def test_kcat_sees_topics_records_and_the_framing(stack: Stack, heard: list[Event], tmp_path: Path) -> None:
    """The run again on a broker of its own, behind the manners that Debian's kcat needs."""
    relay = OldApiVersions(free_port())
    relay.upstream_port = free_port()
    broker = broker_behind(relay.upstream_port, address := f"127.0.0.1:{relay.port}", tmp_path / "broker.log")
    try:
        with relay:
            connection = Connection(address, prefix="rods.", num_decision_partitions=4, num_spread_partitions=4)
            ensure_topics(connection)
            log = KafkaLog(connection)
            log.append(heard)
            log.close()
            topics, records, framing, subjects = (
                run(["bash", "-euc", block], stack, tmp_path, address) for block in BASH
            )
    finally:
        broker.kill()
    assert 'topic "rods.steps" with 4 partitions' in topics
    steps = [event for event in heard if isinstance(event, StepCompleted)]
    assert len(records.splitlines()) == len(steps) > 0 and f"key {RUN_ID}" in records
    assert re.fullmatch(r"\s*00( [0-9a-f]{2}){4}\s*", framing)
    assert "rods.steps-rods.StepCompleted" in json.loads(subjects)


def test_pandas_duckdb_and_fastavro_read_the_run(stack: Stack, heard: list[Event], tmp_path: Path) -> None:
    (tmp_path / "schemas").symlink_to(ROOT / "schemas")
    frame, table, archive = (run([sys.executable, "-c", block], stack, tmp_path) for block in PYTHON)
    groups = sum(isinstance(event, RolloutGroupCompleted) for event in heard)
    assert frame.count(RUN_ID) >= 1 and "0.5" in frame
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == groups > 0
    assert RUN_ID in table and "0.5" in table
    assert re.search(rf"rollouts +RolloutGroupCompleted +{RUN_ID} +{groups}\n", archive)


def test_the_connect_sink_reads_our_topics_by_our_subjects() -> None:
    config = json.loads((ROOT / "deploy" / "connect" / "events-to-s3.json").read_text())["config"]
    matching = {topic for topic in TOPICS if re.fullmatch(config["topics.regex"], f"rods.{topic}")}
    assert set(TOPICS) - matching <= {"dead-letters"}
    assert config["value.converter.value.subject.name.strategy"].endswith(".TopicRecordNameStrategy")
    assert config["schema.compatibility"] == "NONE"
    assert "deploy/connect/events-to-s3.json" in TEXT
