"""Processes of a run that need no model, and what a stack is set up and asked with."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from commands.config import ConfigError, load_config
from commands.options import AsJson, Broker, ConfigFile, OfRun, Overrides, ReadyFile, columns, console
from commands.roles.process import await_broker, begin, stack_connection
from schemas import CATALOGUE
from schemas import registry as schema_registry
from schemas.definitions import fingerprint_of, schema_of
from streams.health import PORT, probe, serve_if_asked
from streams.log.topics import ensure_topics, partitions_of

logger = logging.getLogger("rods.service")


def worker(
    config: ConfigFile = None,
    overrides: Overrides = None,
    connection: Broker = "",
    folder: OfRun = None,
    ready_file: ReadyFile = None,
    datadir: Annotated[Path, typer.Option("--datadir", help="This worker's own folder.")] = Path("worker-data"),
    app_id: Annotated[
        str, typer.Option("--app-id", help="Workers with the same one share the partitions.")
    ] = "rods-pool",
) -> None:
    """Decide for the runs of a broker: the pool worker; start at most as many as there are partitions."""
    from streams.pool.worker import WorkerSettings, run

    ready = ready_file or datadir / "ready"
    datadir.mkdir(parents=True, exist_ok=True)
    ready.unlink(missing_ok=True)
    process = begin(config, overrides, connection, folder, ready)
    serve_if_asked("worker", os.environ, {"folded": lambda: "" if ready.exists() else "the pool is not folded yet"})
    run(WorkerSettings(process.connection, datadir, app_id, str(ready), process.journal("worker")))


def archiver(
    config: ConfigFile = None,
    overrides: Overrides = None,
    connection: Broker = "",
    folder: OfRun = None,
    ready_file: ReadyFile = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", help="Folder that gets every topic; that of the run, else ./archive.")
    ] = None,
) -> None:
    """Mirror every topic of a broker into a folder until stopped, then up to the log's end."""
    from streams.archive.archiver import mirror
    from streams.archive.segments import ArchiveLog
    from streams.log.kafka import KafkaLog

    process = begin(config, overrides, connection, folder, ready_file)
    root = archive or (process.folder.archive if process.folder else Path("archive"))
    root.mkdir(parents=True, exist_ok=True)
    serve_if_asked("archiver", os.environ)
    log = KafkaLog(process.connection)
    try:
        copied = mirror(log, ArchiveLog(root, partitions_of(process.connection)), process.stop.is_set, process.ready)
    finally:
        log.close()
    logger.info("%s", json.dumps({"copied": copied, "into": str(root)}))


def init_topics(config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Create the topics of a broker, refuse unfit ones and register the schemas; safe to repeat."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    connection = stack_connection(load_config(config, os.environ, overrides or []))
    created = len(await_broker(lambda: ensure_topics(connection)))
    there = len(partitions_of(connection)) - created
    console.print(f"topics: {created} created, {there} there already", highlight=False)
    named = schema_registry.settings_from(os.environ)
    if named is not None:
        num = len(schema_registry.registry_of(named).register_all())
        console.print(f"schemas: {num} registered at {named.url}, {schema_registry.COMPATIBILITY}", highlight=False)


def health() -> bool:
    """Ask the service on RODS_METRICS_PORT whether it is well; exit code 1 if not."""
    port = os.environ.get(PORT, "")
    if not port.isdigit() or port == "0":
        raise ConfigError(f"{PORT} says where to ask; it is {port!r}")
    healthy, answer = probe(int(port))
    console.print(answer, highlight=False, soft_wrap=True)
    return healthy


def topics(as_json: AsJson = False) -> None:
    """Every event type with its topic, key, schema fingerprint and meaning."""
    rows = [
        {
            "topic": entry.topic,
            "event": entry.name,
            "key": entry.key,
            "fingerprint": fingerprint_of(schema_of(entry.name)).hex(),
            "doc": schema_of(entry.name)["doc"],
        }
        for entry in CATALOGUE
    ]
    if as_json:
        print(json.dumps(rows))
        return
    table = columns("topic", "event", "key", "fingerprint", "meaning")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
