"""Exporter, health server, Grafana board and alerts: one set of names, one truth."""

from __future__ import annotations

import json
import re
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from commands.config import ConfigError
from commands.roles.metrics import NUM_RUNS, RunBoard, exporter
from commands.roles.services import health
from schemas import make
from schemas.events import RunFinished, RunOutcome, SynthesisFailed
from streams.health import HOST, PORT, PORT_FILE, HealthServer, probe, serve_if_asked
from tests.commands.test_report import run_events
from tests.streams.building import RUN, opening, step_completed

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
NOT_OURS = {"rods_up", "up"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def scraped(board: RunBoard) -> dict[str, list]:
    """Samples by name, as a Prometheus server would read them."""
    server = exporter(board, {PORT: "0"})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.stop()
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def full_board() -> RunBoard:
    """A board on which every metric has a sample."""
    events = run_events()
    last = max((e for e in events if type(e).__name__ == "BatchPlanned"), key=lambda e: e.step)
    done = replace(
        step_completed(last),
        event_id="last",
        step=last.step + 1,
        metrics={"loss": 0.1, "logprob_gap_mean": 0.001, "logprob_gap_max": 0.1},
        timings_ms={"rollout": 800.0, "update": 200.0},
    )
    board = RunBoard(60.0)
    board.add([*events, done])
    board.lag = {"rods-pool": 3}
    return board


def test_a_prometheus_server_can_read_every_figure() -> None:
    found = scraped(full_board())
    failed = sum(isinstance(event, SynthesisFailed) for event in run_events())
    outcomes = {s.labels["outcome"]: s.value for s in found["rods_synthesis_outcomes_total"] if s.labels["run"] == RUN}
    assert outcomes["vm_exec_failed"] == failed > 0
    assert {s.labels["zone"] for s in found["rods_pool_zone_share"]} == {"hard", "boundary", "mastered", "unknown"}
    assert {s.labels["phase"]: s.value for s in found["rods_step_time_ms"]} == {"rollout": 800.0, "update": 200.0}
    assert found["rods_consumer_lag_records"][0].value == 3
    assert next(s.value for s in found["rods_rollout_staleness_updates_bucket"] if s.labels["le"] == "+Inf") > 0
    assert found["rods_up"][0].labels == {"service": "metrics"} and "process_resident_memory_bytes" in found


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:rods_\w+|up)\b", re.sub(r'"[^"]*"', "", expression)))


def test_board_and_alerts_ask_for_metrics_that_are_exported() -> None:
    exported = set(scraped(full_board())) | NOT_OURS
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "rods.json").read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"] for name in names_in(target["expr"])}
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    asked |= {name for rule in rules for name in names_in(rule["expr"])}
    assert len(asked) > 15 and asked <= exported, asked - exported


def test_the_board_is_provisioned_with_the_source_it_asks() -> None:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "rods.json").read_text())
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    assert {target["datasource"]["uid"] for panel in board["panels"] for target in panel["targets"]} == {source["uid"]}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 15
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(places)) == len(places)


def test_a_silent_run_becomes_a_metric_and_one_complaint() -> None:
    clock = Clock()
    board = RunBoard(60.0, clock)
    board.add(opening(2, 1, {}))
    assert scraped(board)["rods_waiting"][0].value == 0 and board.new_complaints() == {}
    clock.now_s = 61.0
    sample = scraped(board)["rods_waiting"][0]
    assert (sample.value, sample.labels["event"], sample.labels["owed_by"]) == (1.0, "EpochPlanned", "the pool worker")
    assert (
        board.new_complaints()[RUN] == "nothing came for 61 s: waiting for EpochPlanned of epoch 1 from the pool worker"
    )
    clock.now_s = 90.0
    assert board.new_complaints() == {} and board.complaints()


def test_runs_do_not_mix() -> None:
    board = RunBoard(60.0)
    board.add([*opening(2, 1, {}), *opening(3, 1, {}, run_id="other")])
    seeds = {s.labels["run"]: s.value for s in scraped(board)["rods_events_total"] if s.labels["event"] == "TaskSeeded"}
    assert seeds == {RUN: 2, "other": 3}


def test_a_free_port_is_taken_and_written_down(tmp_path: Path) -> None:
    file = tmp_path / "port"
    server = serve_if_asked("worker", {PORT: "0", PORT_FILE: str(file)})
    assert int(file.read_text()) == server.port > 0
    assert probe(server.port) == (True, '{"service": "worker", "healthy": true, "complaints": {}}')
    server.stop()
    healthy, reason = probe(server.port)
    assert not healthy and "no answer" in reason


def test_nothing_listens_unless_asked() -> None:
    assert serve_if_asked("worker", {}) is None and serve_if_asked("worker", {HOST: "127.0.0.1"}) is None


def test_a_complaint_makes_a_process_unhealthy_and_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    complaint = ["the pool is not folded yet"]
    server = HealthServer("worker", checks={"folded": lambda: complaint[0]}).start()
    healthy, answer = probe(server.port)
    assert not healthy and json.loads(answer)["complaints"] == {"folded": "the pool is not folded yet"}
    monkeypatch.setenv(PORT, str(server.port))
    assert health() is False
    complaint[0] = ""
    assert health() is True
    server.stop()


def test_the_server_has_two_pages() -> None:
    server = HealthServer("worker").start()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/etc/passwd", timeout=5)
    server.stop()


@pytest.mark.parametrize("environment", [{}, {PORT: "0"}, {PORT: "many"}])
def test_a_health_check_without_a_port_says_so(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="RODS_METRICS_PORT"):
        health()


def test_series_of_old_runs_expire_and_the_newest_and_the_live_ones_stay() -> None:
    day_ms, now_ms = 24 * 3_600_000, 10**12
    board = RunBoard(60.0, wall_ms=lambda: now_ms)

    def heard(run_id: str, age_ms: int, finished: bool) -> None:
        events = opening(1, 1, {})
        end = make(RunFinished, RUN, outcome=RunOutcome.COMPLETED, step=1, epoch=0, reason="", weights_digest="")
        for event in [*events, *([end] if finished else [])]:
            board.add([replace(event, run_id=run_id, event_id=run_id + event.event_id, occurred_at_ms=now_ms - age_ms)])

    heard("going-on", 3 * 3_600_000, finished=False)
    for number in range(400):
        heard(f"old-{number:03}", 90 * day_ms - number, finished=number % 2 == 0)
    for number in range(NUM_RUNS):
        heard(f"new-{number:03}", 3_600_000 - number, finished=True)
    runs = {sample.labels["run"] for sample in scraped(board)["rods_step"]}
    assert runs == {"going-on", *(f"new-{number:03}" for number in range(NUM_RUNS))}
    heard("old-003", 0, finished=False)
    assert "old-003" not in board.runs
