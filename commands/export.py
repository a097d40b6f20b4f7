"""``rods export``: a run as Parquet."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from analysis.event_values import event_types_of, topics_of
from commands.config import ConfigError
from commands.options import AsJson, RunName, Runs, console
from commands.source import analysis_extra, archive_folder
from streams.archive.index import require_whole
from streams.archive.scan import archive_bytes


def export(
    to: Annotated[Path, typer.Option("--to", help="Target folder; other runs in it stay.")],
    name: RunName = None,
    runs: Runs = Path("runs"),
    only: Annotated[
        list[str] | None, typer.Option(help="Topic or event type; all if not given. May be repeated.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier export of the same run.")] = False,
    as_json: AsJson = False,
) -> dict:
    """Write a run as Parquet: one data set an event type, partitioned by run and day."""
    with analysis_extra("export"):
        from analysis.export import export_archive
    root = archive_folder(name, runs)
    event_types = chosen_types(only or [])
    require_whole(root)
    started_s = time.perf_counter()
    columns = (TextColumn("export"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=as_json) as progress:
        total = archive_bytes(root, topics_of(event_types))
        bar = progress.add_task("export", total=total)
        report = export_archive(root, to, event_types, overwrite, lambda size: progress.advance(bar, size))
        progress.update(bar, completed=total)
    seconds = time.perf_counter() - started_s
    figures = asdict(report) | {"seconds": seconds, "mb_per_s": report.num_bytes / 1e6 / seconds}
    if as_json:
        print(json.dumps(figures))
        return figures
    show(figures, to)
    return figures


def show(figures: dict, to: Path) -> None:
    """The report for people."""
    for event_type, num_rows in sorted(figures["rows"].items()):
        console.print(f"{event_type:<22} {num_rows:>9} rows", highlight=False)
    for fault in figures["faults"]:
        console.print(f"[yellow]left out[/yellow] {escape(fault)}", highlight=False, soft_wrap=True)
    console.print(
        f"{figures['num_bytes'] / 1e6:.1f} MB in {figures['seconds']:.2f} s ({figures['mb_per_s']:.0f} MB/s) to {to}: "
        f"{len(figures['files'])} files, {figures['num_duplicates']} repeated and {figures['num_undecodable']} "
        f"unreadable records left out, {figures['num_broken']} packed fields that did not unpack",
        highlight=False,
        soft_wrap=True,
    )


def chosen_types(only: list[str]) -> tuple[str, ...]:
    """Event types named by topics, event types or data sets; all if none is given.

    Raises:
        ConfigError: an unknown name.
    """
    found: list[str] = []
    for name in only or ["all"]:
        types = event_types_of(name)
        if not types:
            raise ConfigError(f"--only {name!r} is neither a topic nor an event type; see `rods topics`")
        found += types
    return tuple(dict.fromkeys(found))
