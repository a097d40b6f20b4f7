"""The dashboard in a real browser: what is drawn, that it follows a run, and that it stays inside its walls."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.index import RunIndex
from analysis.series import busiest_task, family
from analysis.summary import summary_of
from commands.config import ConfigError, load_config
from commands.dashboard import RunSource, archive_source, kafka_source, listen, make_app
from commands.folder import RunFolder
from schemas import TOPICS
from streams.archive.segments import ArchiveLog
from streams.log.connection import Connection
from streams.log.kafka import KafkaLog
from streams.log.port import partition_counts
from tests.commands.browser import drawn, screenshot
from tests.streams.building import RUN
from tests.streams.scripted import play
from tests.streams.test_fold import mean_of

_, LOG = play(
    8, 4, {"batch_size": 4, "cooldown": 1, "injection_frac": 0.5}, mean_of, lambda task_id: task_id.endswith("3")
)


class Serving:
    """A dashboard on a thread of its own."""

    def __init__(self, source: RunSource) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._runner, self.port = asyncio.run_coroutine_threadsafe(
            listen(make_app(source), "127.0.0.1", 0), self._loop
        ).result(20)
        self.address = f"http://127.0.0.1:{self.port}/"

    def get(self, path: str = "") -> str:
        with urllib.request.urlopen(self.address + path, timeout=20) as answer:
            return answer.read().decode()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[ArchiveLog]:
    folder = RunFolder(tmp_path / RUN).create(load_config(None, {}, []))
    log = ArchiveLog(folder.archive, partition_counts(TOPICS, 1, 2))
    yield log
    log.close()


@pytest.fixture
def serving(archive: ArchiveLog, tmp_path: Path) -> Iterator[Serving]:
    archive.append(LOG[:20])
    running = Serving(archive_source(RUN, tmp_path))
    yield running
    running.close()


def test_a_browser_draws_the_run_and_keeps_it_fresh(archive: ArchiveLog, serving: Serving, tmp_path: Path) -> None:
    early = drawn(serving.address)
    archive.append(LOG[20:])
    dom = drawn(serving.address)
    state, refreshes = re.search(r'<body data-state="(\w+)" data-refreshes="(\d+)"', dom).groups()
    assert state == "live" and int(refreshes) >= 1
    steps = [int(re.search(r"<b>(\d+) / \d+</b><span>steps / epochs", page).group(1)) for page in (early, dom)]
    assert steps[0] < steps[1] == summary_of(RunIndex().add(LOG))["steps"]
    for name in ("composition", "zones", "generated-zones", "zone-rewards", "yield", "retirements"):
        assert f'<section id="{name}"' in dom
    pool = RunIndex().add(LOG).pool
    nodes = re.findall(r'<g class="node"', dom)
    assert len(nodes) == len(family(pool, busiest_task(pool))) > 1
    picture = screenshot(serving.address, tmp_path / "page.png")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > 50_000


def test_the_page_says_what_the_run_waits_for(serving: Serving) -> None:
    assert re.search(r'id="wait">waiting for .* from the (trainer|pool worker)', serving.get("panels"))


def test_lineage_of_any_task_and_of_none(serving: Serving) -> None:
    assert "tasks in its family" in serving.get(f"lineage?task={RUN}-seed-1")
    assert "no task &lt;img onerror=x&gt; in this run" in serving.get("lineage?task=%3Cimg%20onerror=x%3E")


def test_the_page_may_load_nothing_and_frame_nowhere(serving: Serving) -> None:
    with urllib.request.urlopen(serving.address, timeout=20) as answer:
        policy, page = answer.headers["Content-Security-Policy"], answer.read().decode()
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert re.search(r"script-src 'nonce-([^']+)'", policy).group(1) in page
    assert not re.search(r"(src|href)\s*=\s*[\"']", page)


def test_figures_are_there_for_machines(serving: Serving) -> None:
    assert json.loads(serving.get("summary.json"))["run_id"] == RUN
    assert json.loads(serving.get("healthz"))["healthy"] is True


def test_looking_at_an_archive_writes_nothing(archive: ArchiveLog, serving: Serving, tmp_path: Path) -> None:
    def state() -> dict[str, int]:
        return {str(path): path.stat().st_size for path in (tmp_path / RUN / "archive").rglob("*.avro")}

    before = state()
    serving.get()
    serving.get("panels")
    assert state() == before


def test_a_live_run_is_followed_through_its_topics(connection: Connection) -> None:
    config = load_config(
        None,
        {},
        [
            f"kafka.bootstrap_servers='{connection.bootstrap_servers}'",
            f"kafka.topic_prefix='{connection.prefix}'",
            "kafka.num_decision_partitions=2",
        ],
    )
    log = KafkaLog(connection)
    log.append(LOG)
    source, give_up = kafka_source(None, config), time.monotonic() + 30.0
    while source.facts().counts != RunIndex().add(LOG).counts:
        assert time.monotonic() < give_up, source.facts().counts
    assert source.facts().pool.run_id == RUN
    log.close()


def test_a_dashboard_without_a_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers is empty"):
        kafka_source(None, load_config(None, {}, []))
    with pytest.raises(ConfigError, match="no run"):
        archive_source("none", tmp_path)
