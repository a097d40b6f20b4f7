"""``rods topics``: the catalogue for people and machines."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from schemas import CATALOGUE
from schemas.definitions import fingerprint_of, schema_of


def show(as_json: bool, console: Console) -> None:
    """Print every event type with topic, key, schema fingerprint and meaning."""
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
    table = Table(box=None, pad_edge=False)
    for heading in ("topic", "event", "key", "fingerprint", "meaning"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
