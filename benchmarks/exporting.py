"""How fast trajectories become Parquet: megabytes a second of uncompressed events, archive on disk to data set on disk.

Both ways there are measured: ``rods export`` (one data set an event type) and ``rods tap --format parquet`` (one file).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.export import export_archive
from analysis.tap import Selection
from commands import tap
from commands.source import LogSource
from schemas import TOPICS, encode, make
from schemas.events import Call, FinishReason, Message, MessageOutcome, TrajectoryRecorded
from schemas.packed import pack_ids, pack_logprobs, pack_mask
from streams.archive.segments import ArchiveLog, partitions_in
from streams.log.port import partition_counts

EVENT_TYPE = "TrajectoryRecorded"
MEBIBYTES = 256
CHUNK = 64
NUM_TOKENS, NUM_MESSAGES, VOCABULARY = 4096, 8, 150_000


@dataclass(frozen=True, slots=True)
class Exported:
    """One export.

    Attributes:
        num_trajectories: events.
        event_mb: their values, uncompressed, MB (10^6 bytes).
        archive_mb: the archive on disk, MB.
        seconds: wall time.
        mb_per_s: event_mb a second.
        tap_seconds, tap_mb_per_s: the same of a tap.
    """

    num_trajectories: int
    event_mb: float
    archive_mb: float
    seconds: float
    mb_per_s: float
    tap_seconds: float
    tap_mb_per_s: float


def trajectory(index: int, rng: np.random.Generator) -> TrajectoryRecorded:
    """One rollout of NUM_TOKENS tokens; token ids and log-probabilities as incompressible as real ones."""
    text = " ".join(f"w{word}" for word in rng.integers(0, 5000, 60))
    call = Call(name="get_file", arguments_json=f'{{"name":"{text[:20]}"}}')
    messages = tuple(
        Message(turn=turn // 2, text=text, outcome=MessageOutcome.CALLS, calls=(call,), results=(text[:80],), code=-1)
        for turn in range(NUM_MESSAGES)
    )
    return make(
        TrajectoryRecorded,
        "20260131-120000-bench",
        occurred_at_ms=1_790_000_000_000 + index,
        group_id=f"{index // 16:032x}",
        task_id=f"multi_turn_base_{index // 16 % 400}",
        step=1 + index // 512,
        rollout_index=index % 16,
        policy_version=index // 512,
        token_ids=pack_ids(rng.integers(0, VOCABULARY, NUM_TOKENS)),
        logprobs=pack_logprobs(-rng.exponential(0.5, NUM_TOKENS)),
        mask=pack_mask(rng.integers(0, 2, NUM_TOKENS)),
        messages=messages,
        turn_verdicts=(1, 0, 1),
        reward=2 / 3,
        format_reward=None,
        finish_reason=FinishReason.FINISHED,
    )


def write_archive(root: Path, mebibytes: int) -> int:
    """An archive of about so many MiB of events; returns how many."""
    rng, log = np.random.default_rng(7), ArchiveLog(root, partition_counts(TOPICS, 1, 2))
    count = max(CHUNK, int(mebibytes * 2**20 / len(encode(trajectory(0, rng)))))
    for at in range(0, count, CHUNK):
        log.append([trajectory(index, rng) for index in range(at, min(count, at + CHUNK))])
    log.close()
    return count


def tapped_s(archive: Path, to: Path) -> float:
    """Seconds in which a tap writes an archive's trajectories to one Parquet file."""
    sink = tap.ColumnSink("parquet", EVENT_TYPE, to, unpack=True)
    source = LogSource("benchmark", ArchiveLog(archive), partitions_in(archive), archive)
    started = time.perf_counter()
    tap.write(source, Selection((EVENT_TYPE,)), sink)
    return time.perf_counter() - started


def measure(folder: Path, mebibytes: int = MEBIBYTES) -> Exported:
    """Write an archive, export its trajectories, and tap them."""
    write_archive(folder / "archive", mebibytes)
    archive_mb = sum(path.stat().st_size for path in (folder / "archive").rglob("*.avro")) / 1e6
    started = time.perf_counter()
    done = export_archive(folder / "archive", folder / "parquet", (EVENT_TYPE,))
    seconds = time.perf_counter() - started
    event_mb, tap_seconds = done.num_bytes / 1e6, tapped_s(folder / "archive", folder / "tap.parquet")
    return Exported(
        done.rows[EVENT_TYPE], event_mb, archive_mb, seconds, event_mb / seconds, tap_seconds, event_mb / tap_seconds
    )
