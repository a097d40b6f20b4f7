"""Keeps every schema that was ever released: ``python -m schemas.publish`` adds the current ones to ``history/``.

Files are never changed or removed. A file is named by event type and fingerprint.
"""

from __future__ import annotations

import json
from pathlib import Path

from schemas.catalogue import CATALOGUE
from schemas.codec import HISTORY
from schemas.definitions import fingerprint_of, schema_of


def history_path(name: str) -> Path:
    """Where the current schema of an event type is kept."""
    return HISTORY / name / f"{fingerprint_of(schema_of(name)).hex()}.avsc"


def publish() -> list[Path]:
    """Write the missing files and return them."""
    missing = [(entry.name, history_path(entry.name)) for entry in CATALOGUE]
    written = [(name, path) for name, path in missing if not path.exists()]
    for name, path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(schema_of(name), indent=2) + "\n")
    return [path for _, path in written]


if __name__ == "__main__":
    for path in publish():
        print(path)
