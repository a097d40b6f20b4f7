"""Makes a golden record of the schemas: ``python -m tests.golden.make v2`` when new schemas are released.

``<version>/archive`` is a small run as this version writes it, ``pool.json`` what it folds to, ``samples.json`` one event of every
type as bytes and as values. A version is made once and never changed; one that exists is refused.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import asdict
from pathlib import Path

from schemas import CATALOGUE, as_record, encode, events
from schemas.codec import from_record
from schemas.definitions import fingerprint_of, schema_of
from streams.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from streams.pool import Pool
from streams.refold import fold_archive
from streams.rows import rows_of
from tests.streams.building import RUN
from tests.streams.recorded import record_run

GOLDEN = Path(__file__).parent
DECISION_TOPICS = INPUT_TOPICS + OUTPUT_TOPICS
PLAIN = {"string": "text", "bytes": b"\x00\xff", "int": 7, "long": 2**40, "float": 0.5, "double": 0.25, "boolean": True}


def sample(schema: object, types: dict[str, object]) -> object:
    """A value of an Avro type with nothing left out.

    Args:
        schema: the type.
        types: named types met so far; grows.
    """
    if isinstance(schema, list):
        return sample(schema[-1], types)
    if isinstance(schema, str):
        return PLAIN[schema] if schema in PLAIN else sample(types[schema], types)
    if schema["type"] in ("record", "enum"):
        types[f"{schema['namespace']}.{schema['name']}"] = schema
    if schema["type"] == "enum":
        return schema["symbols"][-1]
    if schema["type"] == "record":
        return {field["name"]: sample(field["type"], types) for field in schema["fields"]}
    if schema["type"] == "array":
        return [sample(schema["items"], types) for _ in range(2)]
    if schema["type"] == "map":
        return {"key": sample(schema["values"], types)}
    return PLAIN[schema["type"]]


def readable(value: object) -> object:
    """A value as JSON can hold it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: readable(item) for key, item in value.items()}
    return [readable(item) for item in value] if isinstance(value, list | tuple) else value


def samples() -> dict[str, dict[str, object]]:
    """One event of every type: fingerprint of its schema, bytes, values."""
    made = {}
    for entry in CATALOGUE:
        event = from_record(getattr(events, entry.name), sample(schema_of(entry.name), {}))
        made[entry.name] = {
            "fingerprint": fingerprint_of(schema_of(entry.name)).hex(), "bytes": base64.b64encode(encode(event)).decode(),
            "values": readable(as_record(event)),
        }
    return made


def state_of_pool(pool: Pool) -> dict[str, object]:
    """Everything of a pool that a release must fold to: rows, plans, signals."""
    plans = {"epochs": pool.epochs, "batches": pool.batches, "signals": pool.signals, "retired": pool.retired}
    return {
        "rows": {task_id: asdict(row) for task_id, row in rows_of(pool).items()},
        **{name: {str(key): readable(as_record(events_by[key])) for key in sorted(events_by)} for name, events_by in plans.items()},
        "ended": sorted([step, task_id, group_id] for (step, task_id), group_id in pool.ended.items()),
    }


def write(version: str) -> Path:
    """Make one version; returns its folder.

    Raises:
        FileExistsError: it was made before.
    """
    folder = GOLDEN / version
    folder.mkdir()
    record_run(folder / "archive", num_seeds=6, num_epochs=3)
    pool = fold_archive(folder / "archive", DECISION_TOPICS).pools[RUN]
    for name, content in (("pool.json", state_of_pool(pool)), ("samples.json", samples())):
        (folder / name).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return folder


if __name__ == "__main__":
    print(write(sys.argv[1]))
