"""The analysis commands over real archives, files and an embedded broker."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from analysis.export import ExportExists
from analysis.fork import ForkMode
from commands import archive, doctor, explain, export, fork, rescore, sql, tap, why
from commands.config import ConfigError, load_config
from commands.folder import RunFolder, RunInUse
from commands.source import analysis_extra, archive_folder, is_address, open_source, the_run
from schemas import Event, encode
from schemas.events import (
    BatchPlanned,
    BoundaryDetected,
    Completion,
    RolloutGroupCompleted,
    TaskRetired,
    TaskSynthesized,
    TrajectoryRecorded,
)
from streams.archive.index import MANIFEST, load_manifest
from streams.archive.segments import ArchiveLog
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, LogUnavailable, Record
from streams.log.reader import EventReader
from streams.log.topics import partitions_of
from tests.streams.recorded import PARTITIONS, record_run

RUNS = Path("no-runs-here")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A run folder named like its run."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run-1").create(load_config(None, {}, []))
    return folder.path, record_run(folder.archive)


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    """The terminal."""
    console = Console(record=True, width=200, file=io.StringIO())
    for module in (archive, export, sql):
        monkeypatch.setattr(module, "console", console)
    return console


def test_sources_are_runs_archives_and_addresses(run: tuple[Path, list[Event]]) -> None:
    folder = run[0]
    assert (
        archive_folder("run-1", folder.parent)
        == archive_folder(str(folder), RUNS)
        == archive_folder(None, folder.parent)
    )
    assert archive_folder(str(folder / "archive"), RUNS) == folder / "archive"
    assert is_address("kafka:9092") and not is_address(str(folder)) and not is_address("run-1")
    with pytest.raises(ConfigError, match="no run 'nobody'"):
        archive_folder("nobody", RUNS)
    assert the_run(open_source(str(folder), RUNS)) == "run-1"
    with pytest.raises(ConfigError, match="holds the runs .'run-1'."):
        the_run(open_source(str(folder), RUNS), "run-2")


def test_verify_writes_the_manifest_and_names_damage(
    tmp_path: Path, console: Console, capsys: pytest.CaptureFixture
) -> None:
    record_run(tmp_path)
    assert archive.verify(str(tmp_path), RUNS, False) and (tmp_path / MANIFEST).exists()
    assert "whole" in console.export_text()
    path = next((tmp_path / "rollouts" / "0").glob("*.avro"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert not archive.verify(str(tmp_path), RUNS, True)
    result = json.loads(capsys.readouterr().out)
    assert (
        not result["healthy"]
        and result["problems"][0]["topic"] == "rollouts"
        and result["problems"][0]["last_offset"] == 42
    )


def test_push_and_pull_keep_every_record_and_a_tap_reads_the_broker(
    run: tuple[Path, list[Event]],
    tmp_path: Path,
    own_broker: EmbeddedBroker,
    console: Console,
    capsys: pytest.CaptureFixture,
) -> None:
    address = own_broker.bootstrap_servers
    assert archive.push(address, str(run[0]), RUNS) == len(run[1])
    assert archive.pull(address, tmp_path / "copy") == len(run[1])
    before, after = ArchiveLog(run[0] / "archive"), ArchiveLog(tmp_path / "copy")
    assert after.partitions == before.partitions == PARTITIONS
    for place, end in before.end_offsets(PARTITIONS).items():
        if end:
            assert after.read({place: 0}, 10_000, 0.0) == before.read({place: 0}, 10_000, 0.0)
    assert sum(entry.count for entry in load_manifest(tmp_path / "copy")) == len(run[1])
    assert archive.pull(address, tmp_path / "copy") == 0
    with pytest.raises(LogGap, match="topics that hold records"):
        archive.push(address, str(run[0]), RUNS)
    capsys.readouterr()
    num = tap.listen("boundary-signals", address, RUNS, where=["rank=0"], style="jsonl")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == num == sum(isinstance(e, BoundaryDetected) and e.rank == 0 for e in run[1])


def test_a_run_that_goes_on_and_a_damaged_archive_are_not_pushed(
    run: tuple[Path, list[Event]], tmp_path: Path, console: Console
) -> None:
    with RunFolder(run[0]).lock(), pytest.raises(RunInUse):
        archive.push("127.0.0.1:1", str(run[0]), RUNS)
    record_run(tmp_path)
    next((tmp_path / "trajectories" / "1").glob("*.avro")).write_bytes(
        b"nothing of worth, long enough to be no header at all"
    )
    (tmp_path / "trajectories" / "1" / f"{10**6:020d}.avro").touch()
    with pytest.raises(LogGap, match="trajectories-1 offsets 0 to 999999"):
        archive.push("127.0.0.1:1", str(tmp_path), RUNS)
    with pytest.raises(ConfigError, match="host:port"):
        archive.push("nowhere", str(tmp_path), RUNS)


def test_a_broker_that_is_not_there_is_named(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.log.discovery.ANSWER_TIMEOUT_S", 0.3)
    with pytest.raises(LogUnavailable, match="127.0.0.1:1"):
        archive.pull("127.0.0.1:1", tmp_path)


def test_a_tap_prints_lines_for_people_and_objects_for_machines(
    run: tuple[Path, list[Event]], capsys: pytest.CaptureFixture
) -> None:
    assert tap.listen("steps", str(run[0]), RUNS, limit=2) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "StepCompleted" in lines[0] and "steps-0@0" in lines[0]
    tap.listen("trajectories", str(run[0]), RUNS, style="jsonl", unpack=True, where=["rollout_index=1"], limit=1)
    event = json.loads(capsys.readouterr().out)
    assert event["event"] == "TrajectoryRecorded" and event["token_ids"][0] == 100 and len(event["mask"]) == 12


def test_a_tap_writes_parquet_and_arrow_of_one_event_type(run: tuple[Path, list[Event]], tmp_path: Path) -> None:
    num = tap.listen("trajectories", str(run[0]), RUNS, style="parquet", unpack=True, out=tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.num_rows == num and table.schema.field("token_ids").type == pa.list_(pa.int32())
    tap.listen("rollouts", str(run[0]), RUNS, style="arrow", out=tmp_path / "r.arrow")
    with pa.ipc.open_stream((tmp_path / "r.arrow").read_bytes()) as stream:
        assert stream.read_all().num_rows == sum(isinstance(e, RolloutGroupCompleted) for e in run[1])
    with pytest.raises(ConfigError, match="holds one event type"):
        tap.listen("runs", str(run[0]), RUNS, style="parquet", out=tmp_path / "x")
    with pytest.raises(ConfigError, match="needs --out"):
        tap.listen("rollouts", str(run[0]), RUNS, style="parquet")


def test_a_tap_shows_what_is_no_event_and_leaves_the_archive_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    record_run(tmp_path)
    log = ArchiveLog(tmp_path)
    log.append_raw(Record("rollouts", 0, -1, 1, b"run-1", b"\x1b[31mjunk"))
    log.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.avro")}
    tap.listen("rollouts", str(tmp_path), RUNS)
    assert tap.MARKER in capsys.readouterr().out
    tap.listen("rollouts", str(tmp_path), RUNS, style="jsonl")
    assert "no header" in json.loads(capsys.readouterr().out.splitlines()[-1])["undecodable"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.avro")} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "rollout"}, "neither a topic"),
        ({"topic": "rollouts", "since": "soon"}, "no moment"),
        ({"topic": "rollouts", "where": ["reward=1"]}, "no such field"),
        ({"topic": "rollouts", "style": "xml"}, "--format 'xml'"),
    ],
)
def test_a_tap_that_means_nothing_is_refused_by_name(
    run: tuple[Path, list[Event]], options: dict, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tap.listen(options.pop("topic"), str(run[0]), RUNS, **options)


def test_an_export_reports_rows_and_pace(
    run: tuple[Path, list[Event]], tmp_path: Path, console: Console, capsys: pytest.CaptureFixture
) -> None:
    figures = export.export(tmp_path / "out", str(run[0]), RUNS, ["rollouts", "TaskSeeded"], False, False)
    assert set(figures["rows"]) == {"RolloutGroupCompleted", "TaskSeeded"} and figures["mb_per_s"] > 0
    assert "MB/s" in console.export_text()
    with pytest.raises(ExportExists, match="--overwrite"):
        export.export(tmp_path / "out", str(run[0]), RUNS, [], False, True)
    with pytest.raises(ConfigError, match="--only 'x'"):
        export.export(tmp_path / "out", str(run[0]), RUNS, ["x"], False, True)


def test_sql_answers_as_table_and_as_json(
    run: tuple[Path, list[Event]], console: Console, capsys: pytest.CaptureFixture
) -> None:
    sql.sql("SELECT count(*) AS n FROM step_completed", str(run[0]), RUNS, None, True)
    assert json.loads(capsys.readouterr().out) == [{"n": 11}]
    sql.sql("SELECT '[red]' AS text, NULL AS nothing", str(run[0]), RUNS, None, False)
    assert "[red]" in console.export_text()
    sql.sql("", None, RUNS, None, True)
    assert "zone_variance" in json.loads(capsys.readouterr().out)["views"]
    with pytest.raises(ConfigError, match="no_such_table"):
        sql.sql("SELECT * FROM no_such_table", str(run[0]), RUNS, None, True)


def test_why_prints_a_tree_and_the_same_as_json(
    run: tuple[Path, list[Event]], console: Console, capsys: pytest.CaptureFixture
) -> None:
    retired = next(e for e in run[1] if isinstance(e, TaskRetired))
    why.show(retired.task_id, str(run[0]), "", RUNS, False, console)
    text = console.export_text()
    assert all(
        word in text for word in ("seed", "signal", "injected into epoch", "trained in step", "retired before epoch")
    )
    body = next(e for e in run[1] if isinstance(e, TrajectoryRecorded))
    capsys.readouterr()
    why.show(body.trajectory_id, str(run[0]), "", RUNS, True, console)
    assert json.loads(capsys.readouterr().out)["causes"][0]["kind"] == "message"
    with pytest.raises(ConfigError, match="nothing in this run"):
        why.show("nobody", str(run[0]), "", RUNS, True, console)


def test_why_shows_what_a_model_was_asked_and_what_it_said_and_takes_a_batch_by_its_event_id(
    tmp_path: Path, console: Console
) -> None:
    said = record_run(tmp_path / "first", num_epochs=2)
    made = next(e for e in said if isinstance(e, TaskSynthesized))
    prompt = json.dumps([{"role": "system", "content": "rules"}, {"role": "user", "content": "make it harder"}])
    asked = Completion(
        attempt=0, role="planner", model="m", prompt_hash="h", prompt=prompt, text="\x1b[31m[bold]a plan\nof two"
    )
    bare = replace(asked, prompt="not json", text="")
    log = ArchiveLog(tmp_path / "told", PARTITIONS)
    log.append([replace(e, completions=(asked, bare)) if e is made else e for e in said])
    log.close()
    why.show(made.task.task_id, str(tmp_path / "told"), "", RUNS, False, console)
    text = console.export_text()
    for words in ("asked: make it harder", "answered: \\x1b[31m[bold]a plan", "of two", "asked: not json"):
        assert words in text
    assert "\x1b" not in text and "rules" not in text
    batch = next(e for e in said if isinstance(e, BatchPlanned) and e.step == 2)
    why.show(batch.event_id, str(tmp_path / "told"), "", RUNS, False, console)
    assert f"batch {batch.event_id}" in console.export_text()


def test_explain_prints_three_answers(
    run: tuple[Path, list[Event]], console: Console, capsys: pytest.CaptureFixture
) -> None:
    signal = next(e for e in run[1] if isinstance(e, BoundaryDetected))
    explain.show(signal.task_id, signal.step, str(run[0]), "", RUNS, True, console)
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [a["question"] for a in answers] == ["seed", "injected", "retired"] and answers[0]["verdict"]
    explain.show(signal.task_id, signal.step, str(run[0]), "", RUNS, False, console)
    assert "is boundary, phi" in console.export_text()
    with pytest.raises(ConfigError, match="steps 1 to 11"):
        explain.show(signal.task_id, 99, str(run[0]), "", RUNS, True, console)


@pytest.mark.parametrize(
    "ask",
    [
        lambda run, out, console: fork.fork(run, 2, ForkMode.RETRAIN, [], out),
        lambda run, out, console: rescore.rescore(str(run.path), [], RUNS, True),
        lambda run, out, console: export.export(out, str(run.path), RUNS, ["steps"], False, True),
        lambda run, out, console: sql.sql("SELECT count(*) FROM step_completed", str(run.path), RUNS, None, True),
    ],
    ids=["fork", "rescore", "export", "sql"],
)
def test_nothing_is_concluded_from_a_damaged_archive(ask: Callable, tmp_path: Path, console: Console) -> None:
    folder = RunFolder(tmp_path / "run-1").create(load_config(None, {}, []))
    record_run(folder.archive)
    archive.verify(str(folder.path), RUNS, True)
    path = next((folder.archive / "rollouts" / "0").glob("*.avro"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogGap, match="rollouts-0"):
        ask(folder, tmp_path / "out", console)
    assert not (tmp_path / "out").exists()


def test_the_doctor_finds_a_healthy_run_healthy_and_damage_not(
    run: tuple[Path, list[Event]], tmp_path: Path, console: Console, capsys: pytest.CaptureFixture
) -> None:
    assert doctor.show(str(run[0]), "", RUNS, "", False, console)
    record_run(tmp_path)
    archive.verify(str(tmp_path), RUNS, True)
    next((tmp_path / "steps" / "0").glob("*.avro")).unlink()
    capsys.readouterr()
    assert not doctor.show(str(tmp_path), "", RUNS, "", True, console)
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings["storage"]["first"][0].startswith("steps-0 offsets 0 to 10") and findings["lost"]["count"] == 11


def test_the_doctor_redrives_what_can_be_read_now_and_only_once(
    tmp_path: Path, connection: Connection, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RODS_KAFKA__TOPIC_PREFIX", connection.prefix)
    said = record_run(tmp_path / "a")
    group = next(e for e in said if isinstance(e, RolloutGroupCompleted))
    log = KafkaLog(connection)
    log.append([event for event in said if event is not group])
    log.append_raw(Record("steps", 0, -1, 1, b"run-1", encode(group)))
    log.append_raw(Record("steps", 1, -1, 1, b"run-1", b"junk"))
    EventReader(log, ("steps",), partitions_of(connection), "run-1", "pool").catch_up()
    address = connection.bootstrap_servers
    assert not doctor.show(address, "", RUNS, address, False, console)
    assert "redriven to rollouts-" in console.export_text()
    assert not doctor.show(address, "", RUNS, address, False, console)
    text = console.export_text()
    assert "nothing to redrive" in text and "redriven to" not in text and "(1 open)" in text
    log.close()


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, console: Console
) -> None:
    for name in ("duckdb", "analysis.sql_views"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"needs duckdb: pip install 'rods-streams\[analysis\]'"):
        sql.sql("select 1", str(tmp_path), RUNS, None, False)
    with pytest.raises(ModuleNotFoundError, match="other"), analysis_extra("sql"):
        raise ModuleNotFoundError("other", name="other")
