"""The stack as processes: a short run goes through every service, in the Confluent wire format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from analysis.index import RunIndex
from analysis.summary import summary_of
from commands.report import report_html
from schemas import Event, decode
from schemas import registry as schema_registry
from schemas.events import BoundaryDetected, EpochPlanned, SynthesisFailed, TaskSeeded, TaskSynthesized
from streams.archive.segments import ArchiveLog
from streams.health import PORT
from streams.log.kafka import KafkaLog
from streams.log.port import beginning
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from tests.stack.short_run import ALL_TOPICS, DEADLINE_S, RUN_ID
from tests.stack.stack import ROOT, SERVICES, Stack


def fetched(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20) as answer:
        return answer.read().decode()


def test_a_run_goes_through_every_service(stack: Stack, heard: list[Event]) -> None:
    signals = {event.signal_id for event in heard if isinstance(event, BoundaryDetected)}
    ended = [event.signal_id for event in heard if isinstance(event, TaskSynthesized | SynthesisFailed)]
    assert signals and sorted(ended) == sorted(signals)
    variants = {event.task.task_id for event in heard if isinstance(event, TaskSynthesized)}
    injected = {task_id for event in heard if isinstance(event, EpochPlanned) for task_id in event.injected}
    assert injected and injected <= variants
    assert summary_of(RunIndex().add(heard))["conservation"]["missing"] == 0


def test_every_record_is_in_the_confluent_wire_format(stack: Stack, heard: list[Event]) -> None:
    log = KafkaLog(stack.connection)
    cursor = beginning(ALL_TOPICS, partitions_of(stack.connection))
    records = []
    while batch := log.read(cursor, timeout_s=1.0):
        records += batch
        for record in batch:
            cursor[record.place] = record.offset + 1
    log.close()
    assert len(records) >= len(heard) > 50 and {record.value[:1] for record in records} == {b"\0"}


def test_every_service_answers_its_health_check(stack: Stack, heard: list[Event]) -> None:
    for name in SERVICES:
        if name == "dashboard":
            assert json.loads(fetched(stack.dashboard_port, "healthz"))["healthy"]
            continue
        done = subprocess.run(
            [sys.executable, "-m", "cli", "health"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, PORT: str(stack.port(name))},
            check=False,
        )
        assert done.returncode == 0 and json.loads(done.stdout)["service"] == name, done.stderr


def test_the_exporter_and_the_dashboard_show_the_run(stack: Stack, heard: list[Event]) -> None:
    want = sum(isinstance(event, TaskSynthesized) for event in heard)
    give_up_s = time.monotonic() + DEADLINE_S
    shown = -1.0
    while shown != want:
        assert time.monotonic() < give_up_s, f"{shown} of {want}"
        shown = next(
            (
                sample.value
                for family in text_string_to_metric_families(fetched(stack.port("metrics"), "metrics"))
                for sample in family.samples
                if sample.name == "rods_synthesis_outcomes_total"
                and sample.labels == {"run": RUN_ID, "outcome": "synthesized"}
            ),
            -1.0,
        )
    summary = json.loads(fetched(stack.dashboard_port, "summary.json"))
    assert (summary["run_id"], summary["tasks_synthesized"], summary["outcome"]) == (RUN_ID, want, "completed")
    assert f"Run {RUN_ID}" in fetched(stack.dashboard_port, "")


def test_a_synthesizer_that_is_killed_and_started_again_repeats_nothing(stack: Stack, heard: list[Event]) -> None:
    stack.children["synthesizer"].kill()
    stack.launch("synthesizer")
    stack.await_health("synthesizer")
    reader = EventReader(
        KafkaLog(stack.connection), ("tasks", "synthesis-outcomes"), partitions_of(stack.connection), RUN_ID, "test"
    )
    again = [event.event_id for event in reader.catch_up()]
    assert sorted(again) == sorted(
        e.event_id
        for e in heard
        if isinstance(e, TaskSeeded | TaskSynthesized | SynthesisFailed) or type(e).__name__ == "VariantRejected"
    )
    assert reader.num_duplicates == 0


@pytest.mark.slow
def test_the_two_core_trainer_runs_against_the_stack_to_its_end(
    stack: Stack, heard: list[Event], tmp_path: Path
) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(
        '[tasks]\ntrain = ["multi_turn_base_144", "multi_turn_base_133"]\nheldout = ["multi_turn_base_132"]\n'
        '[[stages]]\nname = "full"\nepochs = 1\n[pool]\nbatch_size = 2\n'
        "[trainer]\ngroup_size = 2\nmax_message_tokens = 32\nmax_episode_tokens = 512\neval_rollouts = 0\n"
    )
    trainer = stack.launch("cpu-trainer", "--config", str(config))
    assert trainer.process.wait(DEADLINE_S) == 0, trainer.last_words()
    reader = EventReader(KafkaLog(stack.connection), ALL_TOPICS, partitions_of(stack.connection), "cpu-1", "test")
    said = [type(event).__name__ for event in reader.catch_up()]
    assert said.count("RolloutGroupCompleted") == 2 and said.count("StepCompleted") == said.count("RunFinished") == 1
    assert list((stack.folder / "data" / "runs" / "cpu-1" / "checkpoints").iterdir())


def test_the_archive_is_whole_and_needs_no_registry(
    stack: Stack, heard: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.children["archiver"].stop(30.0)
    assert stack.children["archiver"].exit_code == 0, stack.children["archiver"].last_words()
    monkeypatch.delenv(schema_registry.URL)
    archive = ArchiveLog(stack.archive)
    events = EventReader(archive, ALL_TOPICS, archive.partitions, RUN_ID).catch_up()
    assert {event.event_id for event in events} == {event.event_id for event in heard}
    assert len(report_html(RunIndex().add(events))) > 20_000
    record = archive.read(beginning(("runs",), archive.partitions), max_records=1, timeout_s=0.0)[0]
    assert record.value[:2] == b"\xc3\x01" and decode(record.value).run_id == RUN_ID
