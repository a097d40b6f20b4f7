"""``rods tap``: listen to a topic of a run that goes on or has ended, without disturbing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import orjson

from commands.analysis import analysis_extra, mendable
from commands.config import ConfigError
from commands.source import Source, open_source
from schemas import BY_NAME, CATALOGUE, TOPICS, as_record
from streams.event_values import event_types_of, plain, topics_of
from streams.log import Record, now_ms
from streams.scan import Scanned
from streams.tap import BadSelection, Selection, chosen, following, moment_ms, parse_condition, subject

FORMATS = ("table", "jsonl", "parquet", "arrow")
BATCH_ROWS = 500
MOST_LINE, MOST_TEXT = 400, 60
MARKER = "!!"
"""Begins the line of a record that is no event."""


def listen(
    topic: str, name: str | None, runs: Path, *, run_id: str = "", since: str = "", until: str = "",
    where: Sequence[str] = (), follow: bool = False, limit: int = 0, style: str = "table", out: Path | None = None,
    unpack: bool = False, stop: Callable[[], bool] = lambda: False,
) -> int:
    """Write the wanted records; returns how many.

    Args:
        topic: topic, event type, or ``all``.
        name: run, archive folder or broker; the newest run if ``None``.
        runs: folder of the run folders.
        run_id: only this run.
        since, until: moments as :func:`streams.tap.moment_ms` reads them.
        where: comparisons; all must hold.
        follow: go on at the end of the log.
        limit: stop after so many; 0 for no limit.
        style: one of ``FORMATS``.
        out: file; standard output if ``None``.
        unpack: packed arrays as lists.
        stop: asked between reads.

    Raises:
        ConfigError: something cannot be meant.
    """
    selection = selection_of(topic, run_id, since, until, where)
    with mendable(FileNotFoundError):
        source = open_source(name, runs)
    num = 0
    with analysis_extra(f"tap --format {style}"), sink(style, selection.event_types, out, unpack) as write:
        for item in chosen(records(source, selection, follow, stop), selection):
            write(item)
            num += 1
            if num == limit:
                break
    source.log.close()
    return num


def records(source: Source, selection: Selection, follow: bool, stop: Callable[[], bool]) -> Iterator[Record]:
    """Records of the topics that a selection needs, up to their end now or as they come until ``until`` has passed."""
    topics = topics_of(selection.event_types)
    if not follow:
        return source.records(topics)
    until_ms = selection.until_ms
    return following(source.tail(topics), lambda: stop() or (until_ms is not None and now_ms() > until_ms))


def selection_of(topic: str, run_id: str, since: str, until: str, where: Sequence[str]) -> Selection:
    """The selection that the options mean.

    Raises:
        ConfigError: unknown topic, moment or field.
    """
    event_types = event_types_of(topic)
    if not event_types:
        raise ConfigError(
            f"{topic!r} is neither a topic ({', '.join(TOPICS)}), nor an event type "
            f"({', '.join(entry.name for entry in CATALOGUE)}), nor all"
        )
    now = now_ms()
    with mendable(BadSelection):
        return Selection(
            event_types,
            run_id,
            moment_ms(since, now) if since else None,
            moment_ms(until, now) if until else None,
            tuple(parse_condition(text) for text in where),
        ).check()


def sink(
    style: str, event_types: tuple[str, ...], out: Path | None, unpack: bool
) -> AbstractContextManager[Callable[[Scanned], None]]:
    """Where records go, one call a record.

    Raises:
        ConfigError: unknown format, or a columnar one for several event types.
    """
    if style not in FORMATS:
        raise ConfigError(f"--format {style!r}: choose one of {', '.join(FORMATS)}")
    if style in ("table", "jsonl"):
        return LineSink(out, line_of if style == "table" else lambda item: json_line(item, unpack))
    if len(event_types) != 1:
        raise ConfigError(
            f"--format {style} holds one event type: name one of {', '.join(event_types)} instead of the topic"
        )
    if style == "parquet" and out is None:
        raise ConfigError("--format parquet needs --out FILE")
    return ColumnSink(style, event_types[0], out, unpack)


def time_text(timestamp_ms: int) -> str:
    """A record's time for people, in UTC; the bare number where the calendar ends."""
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC)
            .isoformat(sep=" ", timespec="milliseconds")
            .removesuffix("+00:00")
        )
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def line_of(item: Scanned) -> str:
    """A record on one line for people."""
    head = f"{time_text(item.record.timestamp_ms)}  {item.where:<24}"
    if item.event is None:
        return f"{head}  {MARKER} no event: {item.error}"
    entry = BY_NAME[type(item.event).__name__]
    hidden = {"event_id", "run_id", "caused_by", "occurred_at_ms", "input_cursor", entry.alias, *entry.identity}
    shown = " ".join(
        f"{name}={_short(value)}"
        for name, value in _flat(as_record(item.event))
        if name not in hidden and value not in ("", [])
    )
    return f"{head}  {entry.name:<21}  {subject(item.event)}  {shown}"[:MOST_LINE].replace("\n", " ").replace("\r", " ")


def _flat(values: dict) -> Iterator[tuple[str, object]]:
    """Fields with those of records one level down."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", part) for inner, part in value.items() if not isinstance(part, dict))
        else:
            yield name, value


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, list):
        text = (
            "[" + ", ".join(map(_short, value)) + "]"
            if not any(isinstance(part, dict | list) for part in value)
            else f"<{len(value)} items>"
        )
    else:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."


def json_line(item: Scanned, unpack: bool) -> str:
    """A record as one JSON object: its place, then the event's fields or why there are none."""
    place = {
        "topic": item.record.topic,
        "partition": item.record.partition,
        "offset": item.record.offset,
        "timestamp_ms": item.record.timestamp_ms,
    }
    if item.event is None:
        return orjson.dumps(
            {"record": place, "undecodable": str(item.error), "num_bytes": len(item.record.value or b"")}
        ).decode()
    return orjson.dumps({"event": type(item.event).__name__, "record": place, **plain(item.event, unpack)}).decode()


class LineSink(AbstractContextManager):
    """Lines to a file or standard output, each visible at once."""

    def __init__(self, out: Path | None, text_of: Callable[[Scanned], str]) -> None:
        self._out = out
        self._text_of = text_of

    def __enter__(self) -> Callable[[Scanned], None]:
        self._file = self._out.open("w", encoding="utf-8") if self._out else sys.stdout
        return lambda item: print(self._text_of(item), file=self._file, flush=True)

    def __exit__(self, *exc: object) -> None:
        if self._out:
            self._file.close()


class ColumnSink(AbstractContextManager):
    """Parquet or an Arrow stream, a batch at a time; records that are no events are reported on standard error."""

    def __init__(self, style: str, event_type: str, out: Path | None, unpack: bool) -> None:
        self._style = style
        self._event_type = event_type
        self._out = out
        self._unpack = unpack
        self._items: list[Scanned] = []

    def __enter__(self) -> Callable[[Scanned], None]:
        import pyarrow as pa

        from streams.arrow_tables import schema_for
        from streams.export import writer_for

        target: Path | BinaryIO = self._out or sys.stdout.buffer
        if self._style == "parquet":
            self._writer = writer_for(self._event_type, target, self._unpack)
        else:
            self._writer = pa.ipc.new_stream(target, schema_for(self._event_type, self._unpack))
        return self._add

    def _add(self, item: Scanned) -> None:
        if item.event is None:
            print(f"{item.where}: no event: {item.error}", file=sys.stderr)
            return
        self._items.append(item)
        if len(self._items) == BATCH_ROWS:
            self._flush(self._items)
            self._items = []

    def _flush(self, items: Iterable[Scanned]) -> None:
        from streams.arrow_tables import table_of

        self._writer.write_table(
            table_of(self._event_type, [(item.record, as_record(item.event)) for item in items], self._unpack)
        )

    def __exit__(self, *exc: object) -> None:
        if self._items:
            self._flush(self._items)
        self._writer.close()
