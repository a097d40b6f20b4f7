"""Folds a log in bulk: how a starting worker, and everyone who asks a log for its pools, comes to them.

Of a group event only the head is read (``schemas.heads``), neighbouring groups are folded in one go, and a snapshot saves
the way to its cursor. The pools are those that hearing the records one by one gives.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, zip_longest
from pathlib import Path

from schemas import Event, Undecodable
from schemas.heads import GroupHead, head_of
from streams.archive.scan import places_in
from streams.archive.segments import read_segment, segments
from streams.log.port import Log, LogGap, LogUnavailable, Place, Record
from streams.log.reader import event_of
from streams.pool.pool import fold, initial
from streams.pool.snapshot import Snapshot

CHUNK = 4096
FIRST = ("runs",)
"""Topics to read before the others: they say how to read the groups."""


def fact_of(record: Record) -> Event | GroupHead:
    """What a record says, as far as the pool reads it.

    Raises:
        schemas.Undecodable: as :func:`streams.log.reader.event_of`, for the same records.
    """
    fact = head_of(record.value) if record.topic == "rollouts" and record.value is not None else None
    return fact if isinstance(fact, GroupHead) else event_of(record)


def folded(snapshot: Snapshot, records: Iterable[Record]) -> Snapshot:
    """A snapshot with more records folded in; records that are no events are passed over."""
    pools, cursor = dict(snapshot.pools), dict(snapshot.cursor)
    facts: dict[str, list[Event | GroupHead]] = {}
    reached: dict[tuple[str, int], int] = {}
    for record in records:
        reached[record.topic, record.partition] = record.offset + 1
        try:
            fact = fact_of(record)
        except Undecodable:
            continue
        facts.setdefault(fact.run_id, []).append(fact)
    for place, offset in reached.items():
        cursor[Place(*place)] = max(cursor.get(place, 0), offset)
    for run_id, heard in facts.items():
        pools[run_id] = fold(pools.get(run_id, initial()), heard)
    return Snapshot(pools, cursor)


def fold_archive(
    root: Path, topics: Iterable[str], start: Snapshot | None = None, on_records: Callable[[int], None] = lambda _: None
) -> Snapshot:
    """Fold an archive folder from a snapshot, or from the beginning, to its end.

    Args:
        root: the archive folder.
        topics: which topics.
        start: where to begin.
        on_records: told how many records were folded since the last call.

    Raises:
        LogGap: records are missing.
        FileNotFoundError: there is no archive.
    """
    state = start or Snapshot()
    with without_cycle_collection():
        for place in sorted(places_in(root, topics), key=lambda place: place.topic not in FIRST):
            records = archived(root, place, state.cursor.get(place, 0))
            while chunk := list(islice(records, CHUNK)):
                state = folded(state, chunk)
                on_records(len(chunk))
    return state


def archived(root: Path, place: Place, offset: int) -> Iterator[Record]:
    """Records of one partition of an archive from an offset on.

    Raises:
        LogGap: records are missing.
    """
    files = segments(root / place.topic / str(place.partition))
    for path, after in zip_longest(files, files[1:]):
        if after is not None and int(after.stem) <= offset:
            continue
        for record in read_segment(path, place, offset):
            if record.offset != offset:
                raise LogGap(
                    f"{place.topic}-{place.partition}: offsets {offset} to {record.offset - 1} are missing or damaged"
                )
            offset += 1
            yield record


def fold_log(
    log: Log,
    ends: Mapping[Place, int],
    start: Snapshot | None = None,
    timeout_s: float = 60.0,
    on_records: Callable[[int], None] = lambda _: None,
) -> Snapshot:
    """Fold a log from a snapshot, or from the beginning, to the given ends.

    Args:
        log: any log.
        ends: where to stop, by partition; see :meth:`streams.log.port.Log.end_offsets`.
        start: where to begin.
        timeout_s: how long the log may be silent before the end.
        on_records: told how many records were folded since the last call.

    Raises:
        LogUnavailable: the log cannot be read, or was silent for too long.
        LogGap: records are missing.
    """
    state = start or Snapshot()
    with without_cycle_collection():
        for are_first in (True, False):
            wanted = {place: end for place, end in ends.items() if (place.topic in FIRST) is are_first}
            cursor = {place: state.cursor.get(place, 0) for place in wanted}
            while any(cursor[place] < end for place, end in wanted.items()):
                records = log.read(cursor, max_records=CHUNK, timeout_s=timeout_s)
                if not records:
                    raise LogUnavailable(
                        f"no record for {timeout_s:.0f} s at {cursor}, the ends {wanted} were not reached"
                    )
                state = folded(state, records)
                cursor = {place: state.cursor.get(place, 0) for place in wanted}
                on_records(len(records))
    return state


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Facts are trees without cycles; a collector that walks a million of them again and again only costs time.

    Those that are there at the end stay out of its way for good; they go when nothing refers to them any more.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
