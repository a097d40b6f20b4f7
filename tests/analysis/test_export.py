"""Arrow tables and Parquet exports: every value comes back, faults are counted, nothing half is left behind."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from analysis.columns import packed_column, schema_for, table_of
from analysis.event_values import event_types_of, table_name
from analysis.export import INCOMING, ExportExists, day_of, export_archive
from schemas import EVENTS, as_record, decode, encode
from schemas.codec import Undecodable
from schemas.events import RolloutGroupCompleted, TrajectoryRecorded
from schemas.packed import unpack_logprobs
from schemas.plain_records import plain_record
from streams.archive.scan import archive_bytes
from streams.archive.segments import ArchiveLog, segments
from streams.log.port import LogGap, Record
from tests.streams.recorded import PARTITIONS, T0_MS, body, record_run

DAY = "2026-09-21"


def read(folder: Path) -> pa.Table:
    return pads.dataset(folder, partitioning="hive").to_table()


def test_every_event_type_has_a_schema_with_all_its_fields_in_order() -> None:
    for cls in EVENTS:
        names = schema_for(cls.__name__).names
        assert names == [*(f.name for f in fields(cls)), "log_partition", "log_offset", "log_timestamp_ms"]


def test_plain_records_are_the_typed_events_values_and_refuse_the_same_bytes(tmp_path: Path) -> None:
    for event in record_run(tmp_path):
        data = encode(event)
        assert plain_record(data) == (type(event).__name__, as_record(decode(data)))
    for broken in (b"", data[:-1], data + b"x", b"\xc3\x01" + bytes(8), data[:10]):
        with pytest.raises(Undecodable) as fast:
            plain_record(broken)
        with pytest.raises(Undecodable) as typed:
            decode(broken)
        assert str(fast.value) == str(typed.value)


def test_an_export_holds_every_event_once_with_its_values(tmp_path: Path) -> None:
    said = record_run(tmp_path / "a")
    report = export_archive(tmp_path / "a", tmp_path / "out")
    assert sum(report.rows.values()) == len(said) and not report.faults and not report.num_duplicates
    assert not list((tmp_path / "out").glob(".*"))
    for cls in {type(event) for event in said}:
        rows = {row["event_id"]: row for row in read(tmp_path / "out" / table_name(cls.__name__)).to_pylist()}
        mine = [event for event in said if type(event) is cls]
        assert len(rows) == len(mine) and {row["run"] for row in rows.values()} == {"run-1"}
        for event in mine:
            for name, value in as_record(event).items():
                if isinstance(value, dict | bytes) or name == "occurred_at_ms":
                    continue
                assert rows[event.event_id][name] == value, f"{cls.__name__}.{name}"


def test_packed_arrays_come_back_as_lists_of_the_same_numbers(tmp_path: Path) -> None:
    said = [event for event in record_run(tmp_path / "a") if isinstance(event, TrajectoryRecorded)]
    export_archive(tmp_path / "a", tmp_path / "out", ("TrajectoryRecorded",))
    table = read(tmp_path / "out" / "trajectory_recorded")
    assert table.schema.field("token_ids").type == pa.list_(pa.int32()) and table.schema.field(
        "logprobs"
    ).type == pa.list_(pa.float32())
    rows = {row["event_id"]: row for row in table.select(["event_id", "token_ids", "logprobs", "mask"]).to_pylist()}
    for event in said:
        row = rows[event.event_id]
        assert np.array_equal(np.array(row["logprobs"], np.float32), unpack_logprobs(event.logprobs))
        assert row["mask"] == list(event.mask) and len(row["token_ids"]) == len(event.mask)


def test_the_layout_is_run_and_day_and_files_are_readable_alone(tmp_path: Path) -> None:
    record_run(tmp_path / "a")
    report = export_archive(tmp_path / "a", tmp_path / "out", event_types_of("rollouts"))
    assert report.files == [f"rollout_group_completed/run=run-1/day={DAY}/rollouts-0.parquet"]
    alone = pq.read_table(tmp_path / "out" / report.files[0])
    assert "run_id" in alone.column_names and alone.column("log_offset").to_pylist() == list(range(alone.num_rows))


def test_unreadable_and_repeated_records_are_counted_and_named_and_left_out(tmp_path: Path) -> None:
    said = record_run(tmp_path / "a")
    group = next(event for event in said if isinstance(event, RolloutGroupCompleted))
    log = ArchiveLog(tmp_path / "a")
    end = log.next_offsets()[("rollouts", 0)]
    log.append([group])
    log.append_raw(Record("rollouts", 0, -1, 1, None, b"junk"))
    log.append_raw(Record("steps", 0, -1, 1, None, encode(group)))
    log.append([replace(body("t", 1, 0, 1.0, "g"), token_ids=b"abc")])
    log.close()
    report = export_archive(tmp_path / "a", tmp_path / "out")
    assert (report.num_duplicates, report.num_undecodable, report.num_broken) == (1, 2, 1)
    assert any(fault.startswith(f"rollouts-0@{end + 1}:") for fault in report.faults)
    assert any("belongs on topic 'rollouts'" in fault for fault in report.faults)


def test_an_earlier_export_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    record_run(tmp_path / "a")
    export_archive(tmp_path / "a", tmp_path / "out", event_types_of("steps"))
    with pytest.raises(ExportExists, match="step_completed/run=run-1 is there already"):
        export_archive(tmp_path / "a", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step_completed"]
    export_archive(tmp_path / "a", tmp_path / "out", overwrite=True)
    assert read(tmp_path / "out" / "rollout_group_completed").num_rows > 0


def rows_in(folder: Path) -> int:
    return read(folder / "step_completed").num_rows


def test_an_export_killed_while_it_replaces_another_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(tmp_path / "a")
    out, rename = tmp_path / "out", Path.replace
    export_archive(tmp_path / "a", out, event_types_of("steps"))
    before = rows_in(out)

    def killed(self: Path, target: Path) -> Path:
        if INCOMING in str(self) and "aside" not in str(self):
            raise SystemExit("killed")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    monkeypatch.setattr("analysis.export.clear", lambda *_: None)
    with pytest.raises(SystemExit):
        export_archive(tmp_path / "a", out, event_types_of("steps"), overwrite=True)
    monkeypatch.undo()
    assert not (out / "step_completed" / "run=run-1").exists() and len(list(out.glob(f"{INCOMING}*"))) == 1
    with pytest.raises(ExportExists):
        export_archive(tmp_path / "a", out, event_types_of("steps"))
    assert rows_in(out) == before and [path.name for path in out.iterdir()] == ["step_completed"]


def test_two_exports_into_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    record_run(tmp_path / "a")
    out, inner = tmp_path / "out", []

    def another(_: int) -> None:
        if not inner:
            inner.append(True)
            export_archive(tmp_path / "a", out, event_types_of("steps"))

    export_archive(tmp_path / "a", out, event_types_of("rollouts"), on_bytes=another)
    assert sorted(path.name for path in out.iterdir()) == ["rollout_group_completed", "step_completed"]
    inner.clear()
    with pytest.raises(ExportExists):
        export_archive(
            tmp_path / "a",
            tmp_path / "other",
            event_types_of("steps"),
            on_bytes=lambda size: (
                export_archive(tmp_path / "a", tmp_path / "other", event_types_of("steps"))
                if not inner and not inner.append(True)
                else None
            ),
        )
    assert rows_in(tmp_path / "other") == rows_in(out)


def test_a_hole_ends_the_export_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path / "a", {"trajectories": 1}, segment_bytes=1000)
    for number in range(40):
        log.append([body(f"t{number}", 1, 0, 1.0, "g")])
    log.close()
    files = segments(tmp_path / "a" / "trajectories" / "0")
    files[1].unlink()
    hole = f"trajectories-0: offsets {int(files[1].stem)} to {int(files[2].stem) - 1} are missing"
    with pytest.raises(LogGap, match=hole):
        export_archive(tmp_path / "a", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_progress_ends_at_the_size_on_disk_less_the_headers(tmp_path: Path) -> None:
    record_run(tmp_path / "a")
    heard: list[int] = []
    export_archive(tmp_path / "a", tmp_path / "out", on_bytes=heard.append)
    total = archive_bytes(tmp_path / "a", PARTITIONS)
    assert 0 < total - sum(heard) < 700 * len(list((tmp_path / "a").rglob("*.avro")))


def test_packed_columns_are_split_by_row_and_broken_rows_are_null() -> None:
    values = [np.array([1, 2], "<i4").tobytes(), b"", b"\x01\x02\x03", np.array([-5], "<i4").tobytes()]
    assert packed_column(values, np.dtype("<i4")).to_pylist() == [[1, 2], [], None, [-5]]


def test_an_empty_table_and_days_outside_of_the_calendar_are_data() -> None:
    assert table_of("EpochPlanned", []).num_rows == 0
    assert day_of(T0_MS) == DAY and day_of(-(10**18)) == "1970-01-01" and day_of(-1) == "1969-12-31"
