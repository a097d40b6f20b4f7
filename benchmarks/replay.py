"""Recovery and throughput of the log, measured in one run against the scheme it replaces.

``python -m benchmarks.replay [--quick] [--json] [--sizes 1000,10000] [--live-up-to N]``

For each number of events of the same run (``benchmarks.workload``): fold the archive to a pool from zero and from a snapshot,
hear the events through the live Faust worker on the embedded broker, read them with a plain consume-and-decode loop, fold them
from the broker, and write and recover them as the method's authors describe (``benchmarks.jsonl_scheme``). Then: planning
an epoch over a large pool (``benchmarks.planning``) and exporting trajectories (``benchmarks.exporting``).
What each figure includes is said in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import exporting, live, planning, workload
from benchmarks.jsonl_scheme import JsonlScheme, Tracker, recovered
from schemas import TOPICS, as_record, decode
from streams.archive.segments import ArchiveLog
from streams.log.kafka import KafkaLog
from streams.log.port import Place, Record, beginning
from streams.log.port import as_record as log_record
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from streams.pool.pool import Pool
from streams.pool.refold import archived, fold_archive, folded
from streams.pool.snapshot import Snapshot, read_snapshot, write_snapshot

SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 2_000)
LIVE_UP_TO = 100_000
ROUNDS, ROUNDS_UP_TO = 3, 100_000
"""Recoveries are repeated and the best one counts, up to a size; larger ones are done once."""
TAIL = 10_000
"""A snapshot is this many events old when the process dies, or a tenth of the run if that is less."""
DECISION_TOPICS = INPUT_TOPICS + OUTPUT_TOPICS
PARTITIONS = dict.fromkeys(TOPICS, 1)
NUM_SYNCED = 200


@dataclass(slots=True)
class Row:
    """Figures of one size: ``_s`` wall time, ``_cpu_s`` CPU time of the process; ``None`` where it was not measured."""

    num_events: int
    fold_s: float = 0.0
    fold_cpu_s: float = 0.0
    snapshot_s: float = 0.0
    snapshot_cpu_s: float = 0.0
    snapshot_tail: int = 0
    jsonl_recovery_s: float = 0.0
    jsonl_recovery_cpu_s: float = 0.0
    jsonl_orjson_recovery_s: float = 0.0
    jsonl_append_per_s: float = 0.0
    jsonl_synced_append_per_s: float = 0.0
    archive_append_per_s: float = 0.0
    live_events_per_s: float | None = None
    live_events_per_cpu_s: float | None = None
    consume_decode_per_s: float | None = None
    broker_fold_per_s: float | None = None
    archive_mb: float = 0.0
    jsonl_mb: float = 0.0

    def figures(self) -> dict[str, float | None]:
        """All figures and what follows from them; a ratio above 1 says that the JSON lines take longer."""
        measured = {
            key: value if value is None or isinstance(value, int) else round(value, 4)
            for key, value in asdict(self).items()
        }
        return measured | {
            "fold_events_per_s": round(self.num_events / self.fold_s),
            "fold_events_per_cpu_s": round(self.num_events / self.fold_cpu_s),
            "ratio_vs_jsonl": round(self.jsonl_recovery_s / self.fold_s, 2),
            "ratio_vs_jsonl_cpu": round(self.jsonl_recovery_cpu_s / self.fold_cpu_s, 2),
            "ratio_snapshot_vs_jsonl": round(self.jsonl_recovery_s / self.snapshot_s, 2),
        }


@dataclass(frozen=True, slots=True)
class Timed:
    """What some work gave, and the least it took: seconds of wall time and of CPU."""

    result: object
    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object], num_rounds: int = 1) -> Timed:
    """Do something a few times."""
    wall_s = cpu_s = float("inf")
    for _ in range(num_rounds):
        result = None
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        wall_s, cpu_s = min(wall_s, time.perf_counter() - wall), min(cpu_s, time.process_time() - cpu)
    return Timed(result, wall_s, cpu_s)


def write_all(sizes: Sequence[int], root: Path, tick: Callable[[int], None]) -> dict[int, Row]:
    """One pass over the run: archives and JSON lines of every size."""
    rows = {size: Row(size) for size in sizes}
    archives = {size: ArchiveLog(root / f"{size}" / "archive", PARTITIONS) for size in sizes}
    schemes = {size: JsonlScheme(root / f"{size}" / "jsonl") for size in sizes}
    spent = {size: [0.0, 0.0] for size in sizes}
    offsets = beginning(TOPICS, PARTITIONS)
    for number, event in enumerate(workload.events(max(sizes))):
        record, values = log_record(event, PARTITIONS), as_record(event)
        record = Record(*record.place, offsets[record.place], record.timestamp_ms, record.key, record.value)
        offsets[record.place] += 1
        for size in (size for size in sizes if number < size):
            start = time.perf_counter()
            archives[size].mirror([record])
            middle = time.perf_counter()
            schemes[size].append(type(event).__name__, values)
            spent[size][0] += middle - start
            spent[size][1] += time.perf_counter() - middle
        tick(1)
    for size, row in rows.items():
        archives[size].close()
        schemes[size].close()
        row.archive_append_per_s, row.jsonl_append_per_s = (size / seconds for seconds in spent[size])
        row.archive_mb, row.jsonl_mb = (mebibytes(root / f"{size}" / name) for name in ("archive", "jsonl"))
    return rows


def mebibytes(folder: Path) -> float:
    """Size of the files in a folder, MiB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def measure_recovery(row: Row, root: Path) -> None:
    """Fold from zero, from a snapshot, and read the JSON lines again; all must know the same."""
    archive, jsonl = root / "archive", root / "jsonl"
    rounds = ROUNDS if row.num_events <= ROUNDS_UP_TO else 1
    whole = timed(lambda: fold_archive(archive, DECISION_TOPICS), rounds)
    row.fold_s, row.fold_cpu_s = whole.wall_s, whole.cpu_s
    row.snapshot_tail = min(TAIL, row.num_events // 10)
    write_snapshot(root / "snapshot", snapshot_before(archive, whole.result, row.snapshot_tail))
    resumed = timed(lambda: fold_archive(archive, DECISION_TOPICS, read_snapshot(root / "snapshot")), rounds)
    row.snapshot_s, row.snapshot_cpu_s = resumed.wall_s, resumed.cpu_s
    if resumed.result != whole.result:
        raise RuntimeError(f"{row.num_events} events: the fold from a snapshot differs from the fold from zero")
    del resumed
    lines = timed(lambda: recovered(jsonl), rounds)
    row.jsonl_recovery_s, row.jsonl_recovery_cpu_s = lines.wall_s, lines.cpu_s
    require_same(lines.result, whole.result.pools[workload.RUN])
    row.jsonl_orjson_recovery_s = timed(lambda: recovered(jsonl, orjson.loads), rounds).wall_s


def require_same(tracker: Tracker, pool: Pool) -> None:
    """Both schemes must have recovered the same observations, or the comparison is worth nothing.

    Raises:
        RuntimeError: they differ.
    """
    ours = {t: [(e.step, e.mean, e.variance, e.zone.value) for e in seen] for t, seen in pool.observations.items()}
    if ours != tracker.history or tracker.ended != set(pool.ended):
        raise RuntimeError("JSON lines and archive recover different observations")


def snapshot_before(archive: Path, whole: Snapshot, tail: int) -> Snapshot:
    """The fold up to ``tail`` records before the end, the tail shared among the partitions by their size."""
    total, state = sum(whole.cursor.values()), Snapshot()
    for place in sorted(whole.cursor, key=lambda p: p.topic != "runs"):
        keep = whole.cursor[place] - round(tail * whole.cursor[place] / total)
        state = folded(state, (record for record in archived(archive, place, 0) if record.offset < keep))
    return state


def measure_synced(row: Row, root: Path) -> None:
    """JSON lines that survive a loss of power: one sync each."""
    scheme = JsonlScheme(root / "synced", sync=True)
    lines = [(type(event).__name__, as_record(event)) for event in workload.events(NUM_SYNCED)]

    def append_all() -> None:
        for kind, values in lines:
            scheme.append(kind, values)

    row.jsonl_synced_append_per_s = NUM_SYNCED / timed(append_all).wall_s
    scheme.close()


def measure_live(row: Row, root: Path, servers: str) -> None:
    """The inputs through the Faust worker from a backlog, until its last decision; then the topics are read again.

    Raises:
        RuntimeError: the worker decided something else.
    """
    archive = root / "archive"
    inputs = [record for topic in INPUT_TOPICS for record in archived(archive, Place(topic, 0), 0)]
    decided = [decode(record.value).event_id for record in archived(archive, Place("batches", 0), 0)]
    num_opening = len(workload.opening())
    connection = live.fresh_topics(servers)
    log = KafkaLog(connection)
    with live.worker(connection, root) as child:
        live.send(log, inputs[:num_opening])
        live.await_records(log, "batches", 2, child)
        before, started = live.cpu_s(child.process.pid), time.monotonic()
        live.send(log, inputs[num_opening:])
        spent_s = live.await_records(log, "batches", len(decided), child) - started
        row.live_events_per_s = (len(inputs) - num_opening) / spent_s
        row.live_events_per_cpu_s = (len(inputs) - num_opening) / (live.cpu_s(child.process.pid) - before)
    said = [
        decode(record.value).event_id for record in log.read({Place("batches", 0): 0}, len(decided), live.SILENCE_S)
    ]
    if not said or said != decided[: len(said)]:
        raise RuntimeError(f"{row.num_events} events: the live worker decided something else")
    number, seconds = live.consume_and_decode(connection, log.end_offsets(INPUT_TOPICS))
    row.consume_decode_per_s = number / seconds
    state, seconds = live.fold_from_broker(log)
    row.broker_fold_per_s = sum(state.cursor.values()) / seconds
    log.close()


def measure(
    sizes: Sequence[int], live_up_to: int, plan_sizes: Sequence[int], export_mb: int, progress: Progress
) -> dict:
    """Everything, as plain values."""
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rods-bench-")))
        writing = progress.add_task("writing", total=max(sizes))
        rows = write_all(sizes, root, lambda count: progress.advance(writing, count))
        live_sizes = [size for size in sizes if size <= live_up_to]
        steps = progress.add_task(
            "measuring", total=len(sizes) + len(live_sizes) + len(plan_sizes) * len(planning.SHAPES) + 1
        )
        for size, row in rows.items():
            measure_recovery(row, root / f"{size}")
            measure_synced(row, root / f"{size}")
            progress.advance(steps)
        running = stack.enter_context(live.broker(root))
        for size in live_sizes:
            measure_live(rows[size], root / f"{size}", running.bootstrap_servers)
            progress.advance(steps)
        planned = planning.measure(plan_sizes, on_done=lambda _: progress.advance(steps))
        export = exporting.measure(root / "export", export_mb)
        progress.advance(steps)
    return report([row.figures() for row in rows.values()], planned, export) | {
        "load_1m": [round(before, 1), round(os.getloadavg()[0], 1)],
        "num_cpus": os.cpu_count(),
    }


def report(by_size: Sequence[dict], planned: Sequence[planning.Planned], export: exporting.Exported) -> dict:
    """The figures under their published names: rates of the best size, ratios of the largest."""
    return {
        "fold_events_per_s": max(row["fold_events_per_s"] for row in by_size),
        "fold_events_per_cpu_s": max(row["fold_events_per_cpu_s"] for row in by_size),
        "live_events_per_s": round(max(row["live_events_per_s"] or 0.0 for row in by_size)),
        "ratio_vs_jsonl_recovery": by_size[-1]["ratio_vs_jsonl"],
        "ratio_snapshot_vs_jsonl_recovery": by_size[-1]["ratio_snapshot_vs_jsonl"],
        "export_mb_per_s": round(export.mb_per_s, 1),
        "tap_mb_per_s": round(export.tap_mb_per_s, 1),
        "by_size": list(by_size),
        "plan_epoch": [
            {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(each).items()} for each in planned
        ],
        "export": asdict(export),
    }


RECOVERY = {
    "events": ("num_events", "{:,}"),
    "fold s": ("fold_s", "{:.2f}"),
    "snapshot s": ("snapshot_s", "{:.2f}"),
    "JSONL s": ("jsonl_recovery_s", "{:.2f}"),
    "JSONL/fold": ("ratio_vs_jsonl", "{:.2f}"),
    "by CPU": ("ratio_vs_jsonl_cpu", "{:.2f}"),
    "JSONL/snapshot": ("ratio_snapshot_vs_jsonl", "{:.2f}"),
    "archive MiB": ("archive_mb", "{:.1f}"),
    "JSONL MiB": ("jsonl_mb", "{:.1f}"),
}
THROUGHPUT = {
    "events": ("num_events", "{:,}"),
    "fold": ("fold_events_per_s", "{:,}"),
    "a CPU s": ("fold_events_per_cpu_s", "{:,}"),
    "live": ("live_events_per_s", "{:,.0f}"),
    "a CPU s ": ("live_events_per_cpu_s", "{:,.0f}"),
    "consume": ("consume_decode_per_s", "{:,.0f}"),
    "broker fold": ("broker_fold_per_s", "{:,.0f}"),
    "JSONL append": ("jsonl_append_per_s", "{:,.0f}"),
    "synced": ("jsonl_synced_append_per_s", "{:,.0f}"),
}
"""Columns: heading, figure and its format."""


def show(figures: dict, console: Console) -> None:
    """The tables for people."""
    for title, columns in (("Recovery of one run", RECOVERY), ("Throughput, events a second", THROUGHPUT)):
        table = Table(title=title)
        for name in columns:
            table.add_column(name, justify="right")
        for row in figures["by_size"]:
            table.add_row(*("-" if row[key] is None else form.format(row[key]) for key, form in columns.values()))
        console.print(table)
    plans = Table(title="Planning one epoch, s")
    for name in ("pool", "tasks", "in training", "wall", "CPU"):
        plans.add_column(name, justify="right")
    for each in figures["plan_epoch"]:
        plans.add_row(
            each["shape"],
            f"{each['num_tasks']:,}",
            f"{each['num_active']:,}",
            f"{each['wall_s']:.3f}",
            f"{each['cpu_s']:.3f}",
        )
    console.print(plans)
    export, load = figures["export"], figures["load_1m"]
    console.print(
        f"export: {export['num_trajectories']:,} trajectories, {export['event_mb']:.0f} MB in {export['seconds']:.1f} s = "
        f"{export['mb_per_s']:.0f} MB/s, tapped {export['tap_mb_per_s']:.0f} MB/s; machine load {load[0]} to {load[1]} on {figures['num_cpus']} CPUs"
    )


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="print one JSON object as the last line, no tables")
    options.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    options.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], help="numbers of events")
    options.add_argument("--live-up-to", type=int, default=LIVE_UP_TO, help="largest size for the Faust worker")
    chosen = options.parse_args()
    sizes = sorted(chosen.sizes or (QUICK_SIZES if chosen.quick else SIZES))
    console = Console(stderr=chosen.json)
    with Progress(console=console, transient=True) as progress:
        figures = measure(
            sizes,
            QUICK_SIZES[0] if chosen.quick else chosen.live_up_to,
            SIZES[:1] if chosen.quick else SIZES,
            1 if chosen.quick else exporting.MEBIBYTES,
            progress,
        )
    if chosen.json:
        print(json.dumps(figures))
    else:
        show(figures, console)


if __name__ == "__main__":
    main()
