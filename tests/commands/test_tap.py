"""A tap as a user runs it: it follows, it ends, it hides nothing from its reader and disturbs nobody."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from cli import app
from commands import tap
from commands.config import ConfigError
from schemas import TOPICS, Event, as_record
from schemas.events import RolloutGroupCompleted, StepCompleted, TrajectoryRecorded
from streams.archive.archiver import mirror
from streams.archive.scan import scan_archive, scanned
from streams.archive.segments import ArchiveLog
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker
from streams.log.kafka import KafkaLog
from streams.log.port import LogGap, Place, Record, now_ms
from streams.log.topics import ensure_topics, partitions_of
from tests.streams.building import run_started
from tests.streams.recorded import PARTITIONS, T0_MS, record_run, run_log
from tests.streams.scripted import of

ROOT = Path(__file__).parent.parent.parent
RUNS = Path("no-runs-here")
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    root = tmp_path_factory.mktemp("tap") / "archive"
    return root, record_run(root)


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[ArchiveLog]:
    log = ArchiveLog(tmp_path / "growing", PARTITIONS)
    log.next_offsets()
    yield log
    log.close()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.05)


def say(log: ArchiveLog, number: int) -> None:
    log.append([run_started(run_id=f"run-{number}")])
    log.sync()


class Listening:
    """A tap that follows in a thread of its own."""

    def __init__(self, root: Path, **options: object) -> None:
        self._stop = threading.Event()
        self.num = -1
        self._thread = threading.Thread(target=self._listen, args=(root, options), daemon=True)
        self._thread.start()

    def _listen(self, root: Path, options: dict) -> None:
        self.num = tap.listen("RunStarted", str(root), RUNS, follow=True, stop=self._stop.is_set, **options)

    def end(self) -> int:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        return self.num


def batches_in(path: Path) -> list[pa.RecordBatch]:
    """Whole batches of an Arrow stream that is still being written."""
    found: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(io.BytesIO(path.read_bytes())) as stream:
            while True:
                found.append(stream.read_next_batch())
    except (pa.ArrowInvalid, OSError, StopIteration, FileNotFoundError):
        return found


def test_a_following_arrow_stream_holds_no_record_back(growing: ArchiveLog, tmp_path: Path) -> None:
    out = tmp_path / "runs.arrow"
    say(growing, 0)
    listening = Listening(growing.root, style="arrow", out=out)
    for number in range(1, 3):
        until(lambda n=number: sum(b.num_rows for b in batches_in(out)) == n, f"record {number} in the stream")
        say(growing, number)
    assert listening.end() == 3 == sum(b.num_rows for b in batches_in(out))


def test_a_following_tap_writes_what_comes_and_a_last_look_is_taken_when_it_ends(
    growing: ArchiveLog, tmp_path: Path
) -> None:
    out = tmp_path / "runs.jsonl"
    listening = Listening(growing.root, style="jsonl", out=out)
    for number in range(3):
        say(growing, number)
        until(lambda n=number: out.exists() and out.read_text().count("\n") == n + 1, f"line {number}")
    assert listening.end() == 3
    assert [json.loads(line)["run_id"] for line in out.read_text().splitlines()] == ["run-0", "run-1", "run-2"]


def test_a_following_tap_ends_by_itself_when_until_has_passed(growing: ArchiveLog, tmp_path: Path) -> None:
    say(growing, 0)
    end = datetime.fromtimestamp((now_ms() + 1500) / 1000, UTC).isoformat()
    started = time.monotonic()
    assert tap.listen("runs", str(growing.root), RUNS, follow=True, until=end, style="jsonl", out=tmp_path / "x") == 1
    assert 1.0 < time.monotonic() - started < DEADLINE_S


def test_since_and_until_choose_by_time_on_the_command_line(recorded: tuple[Path, list[Event]]) -> None:
    groups = ArchiveLog(recorded[0]).read({Place("rollouts", 0): 0}, 10**6, 0.0)
    since, end = groups[3].timestamp_ms, groups[7].timestamp_ms
    moments = [datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in (since, end)]
    wanted = [r.offset for r in groups if since <= r.timestamp_ms < end]
    arguments = ["tap", "rollouts", "--source", str(recorded[0]), "--format", "jsonl"]
    done = CliRunner().invoke(app, [*arguments, "--since", moments[0], "--until", moments[1]])
    assert done.exit_code == 0 and wanted
    assert [json.loads(line)["record"]["offset"] for line in done.stdout.splitlines()] == wanted
    assert CliRunner().invoke(app, [*arguments, "--since", "now"]).stdout == ""
    assert since >= T0_MS


def test_columns_and_lines_choose_the_same_events(recorded: tuple[Path, list[Event]], tmp_path: Path) -> None:
    some = of(recorded[1], TrajectoryRecorded)[0]
    where = [f"reward={some.reward}", "worker="]
    num = tap.listen("trajectories", str(recorded[0]), RUNS, where=where, style="parquet", out=tmp_path / "t.parquet")
    wanted = [e for e in of(recorded[1], TrajectoryRecorded) if (e.reward, e.worker) == (some.reward, "")]
    table = pq.read_table(tmp_path / "t.parquet")
    assert num == table.num_rows == len(wanted) > 1
    assert set(table.column("event_id").to_pylist()) == {e.event_id for e in wanted}
    for condition in ("timings_ms.rollout=900", "step=2", "event = StepCompleted", "group_ids=nothing"):
        lines = tap.listen(
            "steps", str(recorded[0]), RUNS, where=[condition, "event=StepCompleted"], style="jsonl", out=tmp_path / "l"
        )
        rows = tap.listen("StepCompleted", str(recorded[0]), RUNS, where=[condition], style="arrow", out=tmp_path / "a")
        assert rows == lines, condition
    assert len(of(recorded[1], StepCompleted)) == tap.listen(
        "StepCompleted", str(recorded[0]), RUNS, style="arrow", out=tmp_path / "a"
    )


def test_a_limit_and_an_undecodable_record_are_kept_to_by_columns(
    recorded: tuple[Path, list[Event]], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert tap.listen("rollouts", str(recorded[0]), RUNS, limit=2, style="parquet", out=tmp_path / "two") == 2
    assert pq.read_table(tmp_path / "two").num_rows == 2
    log = ArchiveLog(tmp_path / "spoilt", PARTITIONS)
    log.append_raw(Record("runs", 0, -1, 1, b"k", b"junk"))
    log.append([run_started()])
    log.close()
    assert tap.listen("RunStarted", str(tmp_path / "spoilt"), RUNS, style="parquet", out=tmp_path / "one") == 1
    assert "runs-0@0: no event" in capsys.readouterr().err


def test_a_parquet_file_is_there_whole_or_as_it_was(
    recorded: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "t.parquet"
    out.write_text("earlier")

    def ending(error: type[BaseException]) -> Callable:
        def read(*_: object) -> Iterator[Record]:
            yield from list(ArchiveLog(recorded[0]).read({Place("rollouts", 0): 0}, 5, 0.0))
            assert out.read_text() == "earlier"
            raise error("here")

        return read

    monkeypatch.setattr(tap, "records", ending(LogGap))
    with pytest.raises(LogGap):
        tap.listen("rollouts", str(recorded[0]), RUNS, style="parquet", out=out)
    assert out.read_text() == "earlier" and [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
    monkeypatch.setattr(tap, "records", ending(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tap.listen("rollouts", str(recorded[0]), RUNS, style="parquet", out=out)
    assert pq.read_table(out).num_rows == 5 and [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_control_characters_of_texts_do_not_reach_a_terminal(recorded: tuple[Path, list[Event]]) -> None:
    event = of(recorded[1], RolloutGroupCompleted)[0]
    hostile = replace(event, detail="\x1b]0;title\x07 \x9b31m\r\n\u202etxt")
    record = Record("rollouts", 0, 0, 0, b"k", b"")
    line = tap.line_of(tap.Tapped(record, "RolloutGroupCompleted", as_record(hostile)))
    assert line.isprintable() and "\\x1b]0;title" in line and "\\x9b" in line and "\\u202e" in line


def rods(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("options", [["--format", "jsonl"], ["--format", "table"], ["--format", "arrow", "--unpack"]])
def test_a_reader_that_has_enough_ends_the_tap_quietly(recorded: tuple[Path, list[Event]], options: list[str]) -> None:
    topic = "TrajectoryRecorded" if "arrow" in options else "all"
    process = rods("tap", topic, "--source", str(recorded[0]), *options)
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 0
    assert process.stderr.read() == b""


def test_a_tap_that_is_killed_disturbs_neither_broker_nor_archive(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(own_broker.bootstrap_servers, embedded=True, num_decision_partitions=2)
    ensure_topics(connection)
    said = run_log(num_epochs=2)[1]
    writer, stopping = KafkaLog(connection), threading.Event()
    archive = ArchiveLog(tmp_path / "archive", partitions_of(connection))
    archiver = threading.Thread(
        target=mirror, args=(KafkaLog(connection), archive, stopping.is_set, lambda: None), daemon=True
    )
    archiver.start()
    writer.append(said[:20])
    taps = [
        rods("tap", "all", "--follow", "--format", "jsonl", "--source", source)
        for source in (own_broker.bootstrap_servers, str(tmp_path / "archive"))
    ]
    admin = AdminClient(connection.settings())
    try:
        for process in taps:
            assert process.stdout.readline()
        groups = admin.list_consumer_groups(request_timeout=10.0).result()
    finally:
        for process in taps:
            os.kill(process.pid, signal.SIGKILL)
    assert groups.valid == [] and groups.errors == []
    assert [process.wait(DEADLINE_S) for process in taps] == [-signal.SIGKILL] * 2
    writer.append(said[20:])
    stopping.set()
    archiver.join(DEADLINE_S)
    writer.close()
    mirrored = scan_archive(tmp_path / "archive", TOPICS)
    assert sorted(scanned(record).event.event_id for record in mirrored) == sorted(event.event_id for event in said)


@pytest.mark.parametrize(
    ("style", "out", "message"),
    [("xml", None, "--format 'xml'"), ("arrow", None, "holds one event type"), ("parquet", None, "needs --out FILE")],
)
def test_a_format_that_cannot_be_is_refused_before_anything_is_opened(
    style: str, out: Path | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tap.listen("rollouts" if style == "parquet" else "runs", "no-such-run", RUNS, style=style, out=out)
