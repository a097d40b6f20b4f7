"""Follows an archive that another process writes: each call gives, and reads, only what was added."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import fastavro
from backports import zstd

from streams.archive.blocks import BROKEN, RECORD_SCHEMA, SYNC_MARKER_BYTES, header_of, varint
from streams.archive.scan import places_in
from streams.archive.segments import record_of, refuse_damage, segments
from streams.log.port import LogGap, Place, Record

POLL_S = 0.1
HEADER_BYTES = 4096


class _LaneTail:
    """The read position in one partition."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._folder = folder
        self._place = place
        self._path: Path | None = None
        self._sync = b""
        self._position = 0
        self._next_offset = 0

    def read(self) -> Iterator[Record]:
        """Records of whole blocks behind the position, through later segments.

        Raises:
            LogGap: offsets are missing, or a block is damaged.
        """
        files = segments(self._folder)
        for path in files if self._path is None else [f for f in files if f >= self._path]:
            if path != self._path:
                self._path, self._sync, self._position = path, b"", 0
            yield from self._grown(path)

    def _grown(self, path: Path) -> Iterator[Record]:
        if path.stat().st_size <= self._position:
            return
        with path.open("rb") as file:
            if not self._sync:
                header = header_of(file.read(HEADER_BYTES))
                if header is None:
                    refuse_damage(path, 0, self._next_offset)
                    return
                self._sync, self._position = header
            file.seek(self._position)
            data = file.read()
        at = 0
        for end, count, payload in _whole_blocks(data, self._sync):
            yield from self._records(payload, count, path)
            self._position += end - at
            at = end
        if at < len(data):
            refuse_damage(path, self._position, self._next_offset)

    def _records(self, payload: bytes, count: int, path: Path) -> Iterator[Record]:
        try:
            stream = io.BytesIO(zstd.decompress(payload))
            data = [fastavro.schemaless_reader(stream, RECORD_SCHEMA, None) for _ in range(count)]
        except BROKEN as error:
            raise LogGap(
                f"{path}: the block at byte {self._position} is damaged; `rods archive verify` says more"
            ) from error
        for datum in data:
            if datum["offset"] != self._next_offset:
                raise LogGap(
                    f"{self._place.topic}-{self._place.partition}: offsets {self._next_offset} to "
                    f"{datum['offset'] - 1} are missing"
                )
            self._next_offset += 1
            yield record_of(datum, self._place)


def _whole_blocks(data: bytes, sync: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(end, number of records, compressed records) of each block that is there whole."""
    position = 0
    while True:
        count, at = varint(data, position)
        size, payload = varint(data, at)
        end = payload + size + SYNC_MARKER_BYTES
        if count < 0 or size < 0 or data[payload + size : end] != sync:
            return
        yield end, count, data[payload : payload + size]
        position = end


class ArchiveTail:
    """Some topics of an archive, from the beginning on.

    Args:
        root: the archive folder.
        topics: topic names.
    """

    def __init__(self, root: Path, topics: Iterable[str]) -> None:
        self._lanes = [_LaneTail(root / place.topic / str(place.partition), place) for place in places_in(root, topics)]

    def read(self, timeout_s: float) -> list[Record]:
        """What was added since the last call; ``[]`` when nothing came in time.

        Raises:
            LogGap: the archive has a hole or a damaged block.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = [record for lane in self._lanes for record in lane.read()]
            if found or time.monotonic() >= deadline:
                return found
            time.sleep(min(POLL_S, timeout_s))
