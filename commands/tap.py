"""``rods tap``: listen to a topic of a run that goes on or has ended, without disturbing it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import orjson
import typer

from analysis.event_values import event_types_of, plain, topics_of
from analysis.tap import BadSelection, Selection, Tapped, following, moment_ms, parse_condition, subject
from commands.config import ConfigError
from commands.options import Runs, SourceName, visible
from commands.source import LogSource, analysis_extra, mendable, open_source
from schemas import BY_NAME, CATALOGUE, TOPICS
from streams.log.port import Record, now_ms

FORMATS = ("table", "jsonl", "parquet", "arrow")
COLUMNAR = FORMATS[2:]
MOST_WAIT_S = 1.0
"""How long a following Arrow stream may hold a record back."""
MOST_LINE, MOST_TEXT = 400, 60
MARKER = "!!"
"""Begins the line of a record that is no event."""


def tap(
    topic: Annotated[str, typer.Argument(help="Topic, event type, or all.")],
    name: SourceName = None,
    runs: Runs = Path("runs"),
    run_id: Annotated[str, typer.Option("--run", help="Only events of this run id.")] = "",
    since: Annotated[str, typer.Option(help="now, -10m (s, m, h, d), or an ISO time; UTC if it names no zone.")] = "",
    until: Annotated[str, typer.Option(help="As --since; this moment is excluded.")] = "",
    where: Annotated[list[str] | None, typer.Option(help="field=value; may be repeated, all must hold.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on at the end until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many records; 0 for no limit.")] = 0,
    style: Annotated[str, typer.Option("--format", help="table, jsonl, parquet or arrow.")] = "table",
    out: Annotated[Path | None, typer.Option(help="File; standard output if not given.")] = None,
    unpack: Annotated[bool, typer.Option(help="Packed token arrays as lists of numbers.")] = False,
) -> None:
    """Listen to a topic of a run that goes on or has ended, without disturbing it."""
    bounds = {"run_id": run_id, "since": since, "until": until, "where": where or [], "follow": follow, "limit": limit}
    try:
        listen(topic, name, runs, **bounds, style=style, out=out, unpack=unpack)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def listen(
    topic: str,
    name: str | None,
    runs: Path,
    *,
    run_id: str = "",
    since: str = "",
    until: str = "",
    where: Sequence[str] = (),
    follow: bool = False,
    limit: int = 0,
    style: str = "table",
    out: Path | None = None,
    unpack: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Write the wanted records; returns how many.

    Args:
        topic: topic, event type, or ``all``.
        name: run, archive folder or broker; the newest run if ``None``.
        runs: folder of the run folders.
        run_id: only this run.
        since, until: moments as :func:`analysis.tap.moment_ms` reads them.
        where: texts ``field=value``; all must hold.
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
    check_style(style, selection.event_types, out)
    with mendable(FileNotFoundError):
        source = open_source(name, runs)
    try:
        with analysis_extra(f"tap --format {style}"):
            if style in COLUMNAR:
                sink = ColumnSink(style, selection.event_types[0], out, unpack)
            else:
                sink = LineSink(out, line_of if style == "table" else lambda item: json_line(item, unpack))
            return write(source, selection, sink, follow=follow, stop=stop, limit=limit)
    finally:
        source.log.close()


def write(
    source: LogSource,
    selection: Selection,
    sink: LineSink | ColumnSink,
    *,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
    limit: int = 0,
) -> int:
    """Write the wanted records; returns how many."""
    num = 0
    with sink:
        coming = selection.chosen(records(source, selection, follow, stop, sink.flush_what_waits))
        for item in islice(filter(sink.accepts, coming), limit or None):
            sink.write(item)
            num += 1
    return num


def records(
    source: LogSource,
    selection: Selection,
    follow: bool,
    stop: Callable[[], bool],
    after_read: Callable[[], None] = lambda: None,
) -> Iterator[Record]:
    """Records of the topics that a selection needs, up to their end now or as they come until ``until`` has passed."""
    topics = topics_of(selection.event_types)
    if not follow:
        return source.records(topics)
    until_ms = selection.until_ms
    is_over = (lambda: False) if until_ms is None else (lambda: now_ms() > until_ms)
    return following(source.tail(topics), lambda: stop() or is_over(), after_read)


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


def check_style(style: str, event_types: tuple[str, ...], out: Path | None) -> None:
    """Whether events of these types can be written so.

    Raises:
        ConfigError: unknown format, or a columnar one for several event types or without a file it needs.
    """
    if style not in FORMATS:
        raise ConfigError(f"--format {style!r}: choose one of {', '.join(FORMATS)}")
    if style in COLUMNAR and len(event_types) != 1:
        raise ConfigError(
            f"--format {style} holds one event type: name one of {', '.join(event_types)} instead of the topic"
        )
    if style == "parquet" and out is None:
        raise ConfigError("--format parquet needs --out FILE")


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


def line_of(item: Tapped) -> str:
    """A record on one line for people."""
    head = f"{time_text(item.record.timestamp_ms)}  {item.where:<24}"
    if item.error is not None:
        return visible(f"{head}  {MARKER} no event: {item.error}")
    entry = BY_NAME[item.event_type]
    hidden = {"event_id", "run_id", "caused_by", "occurred_at_ms", "input_cursor", entry.alias, *entry.identity}
    shown = " ".join(
        f"{name}={_short(value)}" for name, value in _flat(item.values) if name not in hidden and value not in ("", [])
    )
    return visible(f"{head}  {entry.name:<21}  {subject(item.event_type, item.values)}  {shown}"[:MOST_LINE])


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
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


def json_line(item: Tapped, unpack: bool) -> str:
    """A record as one JSON object: its place, then the event's fields or why there are none."""
    place = {
        "topic": item.record.topic,
        "partition": item.record.partition,
        "offset": item.record.offset,
        "timestamp_ms": item.record.timestamp_ms,
    }
    if item.error is not None:
        return orjson.dumps(
            {"record": place, "undecodable": str(item.error), "num_bytes": len(item.record.value or b"")}
        ).decode()
    fields = plain(item.event_type, item.values, unpack)
    return orjson.dumps({"event": item.event_type, "record": place, **fields}).decode()


class LineSink(AbstractContextManager):
    """Lines to a file or standard output, each visible at once; a record that is no event is a line too."""

    def __init__(self, out: Path | None, text_of: Callable[[Tapped], str]) -> None:
        self._out = out
        self._text_of = text_of

    def __enter__(self) -> LineSink:
        self._file = self._out.open("w", encoding="utf-8") if self._out else sys.stdout
        return self

    def accepts(self, item: Tapped) -> bool:
        """Whether a record can be written."""
        return True

    def write(self, item: Tapped) -> None:
        """Write a record."""
        print(self._text_of(item), file=self._file, flush=True)

    def flush_what_waits(self) -> None:
        """Nothing waits."""

    def __exit__(self, *exc: object) -> None:
        if self._out:
            self._file.close()


class ColumnSink(AbstractContextManager):
    """Parquet or an Arrow stream.

    A Parquet file is made aside and moved into place when the tap ends or is stopped; one that fails leaves none. An
    Arrow stream can be read while it grows. A record that is no event is named on standard error.
    """

    def __init__(self, style: str, event_type: str, out: Path | None, unpack: bool) -> None:
        self._style = style
        self._event_type = event_type
        self._out = out
        self._part = out.with_name(f".{out.name}.{os.getpid()}.part") if out and style == "parquet" else out
        self._unpack = unpack

    def __enter__(self) -> ColumnSink:
        from analysis.columns import ColumnFile

        self._file: BinaryIO = self._part.open("wb") if self._part else sys.stdout.buffer
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._columns = ColumnFile(self._event_type, self._file, self._thread, self._style, self._unpack)
        return self

    def accepts(self, item: Tapped) -> bool:
        """Whether a record holds an event."""
        if item.error is not None:
            print(f"{item.where}: no event: {item.error}", file=sys.stderr)
        return item.error is None

    def write(self, item: Tapped) -> None:
        """Write an event, sooner or later."""
        self._columns.add(item.record, item.values)

    def flush_what_waits(self) -> None:
        """Write what a following Arrow stream has held back long enough; a Parquet file has no use for small batches."""
        if self._style == "arrow" and self._columns.waiting_s >= MOST_WAIT_S:
            self._columns.flush()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        is_whole = False
        try:
            self._columns.close()
            is_whole = kind in (None, KeyboardInterrupt)
        finally:
            self._thread.shutdown(wait=True)
            if self._part:
                self._file.close()
            if self._part != self._out and is_whole:
                self._part.replace(self._out)
            elif self._part != self._out:
                self._part.unlink()
