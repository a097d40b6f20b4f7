"""Check an archive against its manifest, and move it between folder and broker."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from commands.config import ConfigError
from commands.options import AsJson, RunName, Runs, console
from commands.source import archive_folder, existing_broker, fresh_broker, is_address, run_folder
from streams.archive.archiver import mirror, restore
from streams.archive.index import Verification, refresh, require_whole
from streams.archive.journal import ends_file
from streams.archive.segments import ArchiveLog, partitions_in
from streams.log.kafka import KafkaLog
from streams.log.topics import ensure_topics, partitions_of

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def verify(name: RunName = None, runs: Runs = Path("runs"), as_json: AsJson = False) -> bool:
    """Compare an archive with its manifest; names every damaged or missing range. Exit code 1 if there is one."""
    root = archive_folder(name, runs)
    result = refresh(root)
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        show(root, result)
    return not result.problems


def show(root: Path, result: Verification) -> None:
    """The result for people: faults first, then one line."""
    for problem in result.problems:
        console.print(f"[red]damaged[/red] {escape(str(problem))}", highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(f"[dim]note[/dim] {escape(note)}", highlight=False, soft_wrap=True)
    records, size = sum(entry.count for entry in result.entries), sum(entry.bytes for entry in result.entries)
    verdict = "[red]not whole[/red]" if result.problems else "[green]whole[/green]"
    console.print(
        f"{root}: {verdict}, {len(result.entries)} segments, {records} records, {size / 1e6:.1f} MB verified",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def push(
    to: Annotated[str, typer.Option("--to", help="Broker as host:port; its topics must be empty or missing.")],
    name: RunName = None,
    runs: Runs = Path("runs"),
) -> int:
    """Fill a broker from an archive, offsets kept."""
    require_address(to, "--to")
    root = archive_folder(name, runs)
    folder = run_folder(root)
    with folder.lock() if folder else nullcontext():
        require_whole(root)
        connection = fresh_broker(to, partitions_in(root))
        ensure_topics(connection)
        log = KafkaLog(connection)
        with console.status(f"writing {root} to {to}"):
            restored = restore(ArchiveLog(root), log)
        log.close()
    console.print(f"{restored} records restored to {to}, offsets kept", highlight=False, soft_wrap=True)
    return restored


@app.command()
def pull(
    source: Annotated[str, typer.Option("--from", help="Broker as host:port.")],
    to: Annotated[Path, typer.Option("--to", help="Archive folder; an earlier pull is continued.")],
) -> int:
    """Copy a broker's topics into an archive folder, offsets kept."""
    require_address(source, "--from")
    connection = existing_broker(source)
    if to.is_dir():
        require_whole(to)
    to.mkdir(parents=True, exist_ok=True)
    log = KafkaLog(connection)
    with console.status(f"reading {source} into {to}"):
        copied = mirror(log, ArchiveLog(to, partitions_of(connection)), lambda: True, lambda: None)
    log.close()
    ends_file(to).unlink(missing_ok=True)
    show(to, refresh(to, trust_closed=True))
    console.print(f"{copied} records copied from {source}", highlight=False, soft_wrap=True)
    return copied


def require_address(text: str, option: str) -> None:
    """Refuse what is no broker address.

    Raises:
        ConfigError: it is none.
    """
    if not is_address(text):
        raise ConfigError(f"{option} {text!r}: expected a broker as host:port")
