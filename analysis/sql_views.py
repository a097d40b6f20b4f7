"""Runs in SQL: one view an event type over an archive or an export, and the shipped views of ``analysis/sql``.

Event views are named like the data sets of an export (``rollout_group_completed``). The first line of a shipped view's
file says what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import duckdb
import pyarrow as pa

from analysis.columns import Row, schema_for, table_of
from analysis.event_values import table_name, topics_of, values_of
from analysis.index import Firsts
from schemas import BY_NAME
from streams.archive.scan import scan_archive
from streams.pool.settings import PoolConfig

FOLDER = Path(__file__).parent / "sql"
SHIPPED = (
    "runs",
    "observations",
    "injections",
    "task_origins",
    "trained_groups",
    "synthesis_outcomes",
    "pool_over_time",
    "zone_variance",
    "injected_first_rewards",
    "staleness",
    "synthesis_yield",
    "cost",
    "why",
    "why_step",
    "why_rollout",
)
"""Shipped views; each may use those before it."""
SETTINGS = ("alpha_low", "alpha_high", "zone_slack", "min_valid_frac", "signal")
CHUNK_ROWS = 2000


class NoExport(FileNotFoundError):
    """A folder that holds no export; the text says so."""


def view_text(name: str) -> str:
    """The SQL of a shipped view."""
    return (FOLDER / f"{name}.sql").read_text()


def described() -> dict[str, str]:
    """What each shipped view shows."""
    return {name: view_text(name).partition("\n")[0].removeprefix("-- ") for name in SHIPPED}


def needed_types(sql: str) -> tuple[str, ...]:
    """Event types that a query reads, directly or through shipped views; by its words, so rather too many."""
    words = set(re.findall(r"\w+", sql.lower()))
    for name in reversed(SHIPPED):
        if name in words:
            words |= set(re.findall(r"\w+", re.sub(r"--.*", "", view_text(name)).lower()))
    return tuple(name for name in BY_NAME if table_name(name) in words or name == "RunStarted")


def tables_in(
    root: Path, event_types: Iterable[str], on_bytes: Callable[[int], None] = lambda _: None
) -> dict[str, pa.Table]:
    """Every event of some types as tables, each event once; records that are no events are left out.

    Raises:
        LogGap: the archive has a hole.
        FileNotFoundError: there is no archive.
    """
    wanted = tuple(event_types)
    chunks: dict[str, list[pa.Table]] = {name: [schema_for(name).empty_table()] for name in wanted}
    rows: dict[str, list[Row]] = {name: [] for name in wanted}
    firsts = Firsts()
    for record, name, values in values_of(scan_archive(root, topics_of(wanted), on_bytes), wanted, lambda *_: None):
        if firsts.is_first(values["event_id"]):
            rows[name].append((record, values))
            if len(rows[name]) == CHUNK_ROWS:
                chunks[name].append(table_of(name, rows[name]))
                rows[name] = []
    return {name: pa.concat_tables([*chunks[name], table_of(name, rows[name])]) for name in wanted}


def open_archive(
    root: Path, sql: str = " ".join(SHIPPED), on_bytes: Callable[[int], None] = lambda _: None
) -> duckdb.DuckDBPyConnection:
    """A database over an archive as it is now; only topics that the query needs are read.

    Args:
        root: the archive folder; another process may be writing it.
        sql: the query that will be asked.
        on_bytes: told how many bytes on disk were read since the last call.
    """
    connection = duckdb.connect()
    for name, table in tables_in(root, needed_types(sql), on_bytes).items():
        connection.register(table_name(name), table)
    return _with_views(connection, {table_name(name) for name in needed_types(sql)})


def open_export(folder: Path) -> duckdb.DuckDBPyConnection:
    """A database over an export; only what a query needs is read.

    Raises:
        NoExport: the folder holds none.
    """
    connection = duckdb.connect()
    present = {table_name(name) for name in BY_NAME if any(folder.glob(f"{table_name(name)}/run=*/day=*/*.parquet"))}
    if not present:
        raise NoExport(f"{folder} holds no export; make one with: rods export RUN --to {folder}")
    for table in sorted(present):
        pattern = str(folder / table / "run=*" / "day=*" / "*.parquet").replace("'", "''")
        connection.execute(
            f"CREATE TEMP VIEW {table} AS SELECT * FROM read_parquet('{pattern}', hive_partitioning = true, "
            "hive_types = {'run': VARCHAR, 'day': DATE}, union_by_name = true)"
        )
    return _with_views(connection, present)


def _with_views(connection: duckdb.DuckDBPyConnection, present: set[str]) -> duckdb.DuckDBPyConnection:
    """Add empty tables for what is not there, the settings of each run, and the shipped views."""
    for name in BY_NAME:
        if table_name(name) not in present:
            connection.register(table_name(name), schema_for(name).empty_table())
    connection.register("pool_settings", _settings(connection))
    for name in SHIPPED:
        connection.execute(view_text(name))
    return connection


def _settings(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """The settings of each run that zones are judged by, defaults filled in."""
    rows = connection.execute(
        "SELECT run_id, config_json::JSON -> 'pool' FROM run_started ORDER BY run_id, log_offset"
    ).fetchall()
    settings = {run_id: PoolConfig.model_validate_json(text or "{}") for run_id, text in rows}
    columns = {"run_id": pa.array(list(settings), pa.string())}
    for name in SETTINGS:
        columns[name] = pa.array(
            [getattr(config, name) for config in settings.values()], pa.string() if name == "signal" else pa.float64()
        )
    return pa.table(columns)
