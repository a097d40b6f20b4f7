"""``rods sql``: ask a run with SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.table import Table

from analysis.event_values import table_name
from commands.options import AsJson, RunOption, Runs, console, visible
from commands.source import analysis_extra, archive_folder, mendable
from schemas import BY_NAME
from streams.archive.index import require_whole

MAX_ROWS_SHOWN = 200


def sql(
    query: Annotated[str, typer.Argument(help="SQL; the list of views if not given.")] = "",
    name: RunOption = None,
    runs: Runs = Path("runs"),
    export: Annotated[Path | None, typer.Option("--from", help="Ask an export instead of an archive.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a run with SQL (DuckDB): one view an event type, and shipped views."""
    with analysis_extra("sql"):
        import duckdb

        from analysis.sql_views import NoExport, described, open_archive, open_export
    if not query.strip():
        list_views(described(), as_json)
        return
    if not export:
        root = archive_folder(name, runs)
        require_whole(root, trust_closed=True)
    with mendable(NoExport, duckdb.Error):
        database = open_export(export) if export else open_archive(root, query)
        answer = database.execute(query)
        columns = [column[0] for column in answer.description or ()]
        rows = answer.fetchall()
    if as_json:
        print(orjson.dumps([dict(zip(columns, row, strict=True)) for row in rows], default=str).decode())
    else:
        show(columns, rows)


def list_views(shipped: dict[str, str], as_json: bool) -> None:
    """What can be asked."""
    if as_json:
        print(orjson.dumps({"events": [table_name(name) for name in BY_NAME], "views": shipped}).decode())
        return
    console.print("one view an event type: " + ", ".join(table_name(name) for name in BY_NAME), highlight=False)
    for view, meaning in shipped.items():
        console.print(f"  {view:<24} {meaning}", highlight=False, soft_wrap=True)


def cell(value: object) -> str:
    """A value for people."""
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else visible(str(value), keep="\n")
    return text if len(text) <= 80 else text[:77] + "..."


def show(columns: list[str], rows: list[tuple]) -> None:
    """Rows as a table, the first ones of many."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows[:MAX_ROWS_SHOWN]:
        table.add_row(*map(cell, row))
    console.print(table, markup=False, highlight=False)
    if len(rows) > MAX_ROWS_SHOWN:
        console.print(f"{len(rows)} rows, the first {MAX_ROWS_SHOWN} shown; use --json or LIMIT", highlight=False)
