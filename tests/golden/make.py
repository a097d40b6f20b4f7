"""Makes a golden record of the schemas: ``python -m tests.golden.make v2`` when new schemas are released.

``<version>/archive`` is a small run as this version writes it, ``pool.json`` what it folds to, ``samples.json`` one event of every
type as bytes and as values. A version is made once and never changed; one that exists is refused.

``NAME=FINGERPRINT`` behind the version takes an older published schema for a type: ``v0`` is what a program wrote before the
five schemas changed that had another form at first::

    python -m tests.golden.make v0 RolloutGroupCompleted=89ad9dd55e02960f RunStarted=73c8b9631d87b5e3 \\
        SynthesisFailed=b579e6561f6d74a7 TaskSynthesized=f0727f488c7cb7b1 TrajectoryRecorded=c727ff55c58b9cf6
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import fastavro

from schemas import CATALOGUE, as_record, decode
from schemas.codec import HISTORY, MAGIC
from schemas.definitions import fingerprint_of, schema_of
from streams.archive.segments import ArchiveLog
from streams.pool.keeper import INPUT_TOPICS, OUTPUT_TOPICS
from streams.pool.pool import Pool
from streams.pool.refold import fold_archive
from streams.pool.rows import rows_of
from tests.streams.building import RUN
from tests.streams.recorded import PARTITIONS, run_log

GOLDEN = Path(__file__).parent
DECISION_TOPICS = INPUT_TOPICS + OUTPUT_TOPICS
NONE: Mapping[str, str] = MappingProxyType({})
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


def schemas_of(older: Mapping[str, str]) -> dict[str, dict]:
    """The schema of every event type: the older published one where its fingerprint is given, else the current one."""
    schemas = {entry.name: schema_of(entry.name) for entry in CATALOGUE}
    return schemas | {name: json.loads((HISTORY / name / f"{mark}.avsc").read_text()) for name, mark in older.items()}


def written(schema: dict, values: object) -> bytes:
    """An event's bytes as a program with this schema writes them; fields it does not know are passed over."""
    out = io.BytesIO()
    out.write(MAGIC + fingerprint_of(schema))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas={}, _force=True), values)
    return out.getvalue()


def samples(older: Mapping[str, str] = NONE) -> dict[str, dict[str, object]]:
    """One event of every type: fingerprint of its schema, bytes, values."""
    made = {}
    for name, schema in schemas_of(older).items():
        values = sample(schema, {})
        made[name] = {
            "fingerprint": fingerprint_of(schema).hex(),
            "bytes": base64.b64encode(written(schema, values)).decode(),
            "values": readable(values),
        }
    return made


def write_archive(root: Path, older: Mapping[str, str]) -> None:
    """A small run, written with these schemas."""
    log, _ = run_log(num_seeds=6, num_epochs=3)
    schemas, archive = schemas_of(older), ArchiveLog(root, PARTITIONS)
    archive.next_offsets()
    for place in sorted(log.end_offsets(PARTITIONS)):
        records = log.read({place: 0}, 10**6, 0.0)
        archive.mirror(
            [
                r._replace(value=written(schemas[type(event).__name__], as_record(event)))
                for r in records
                for event in [decode(r.value)]
            ]
        )
    archive.close()


def state_of_pool(pool: Pool) -> dict[str, object]:
    """Everything of a pool that a release must fold to: rows, plans, signals."""
    plans = {"epochs": pool.epochs, "batches": pool.batches, "signals": pool.signals, "retired": pool.retired}
    return {
        "rows": {task_id: asdict(row) for task_id, row in rows_of(pool).items()},
        **{
            name: {str(key): readable(as_record(events_by[key])) for key in sorted(events_by)}
            for name, events_by in plans.items()
        },
        "ended": sorted([step, task_id, group_id] for (step, task_id), group_id in pool.ended.items()),
    }


def write(version: str, older: Mapping[str, str] = NONE) -> Path:
    """Make one version; returns its folder.

    Args:
        version: name of the folder.
        older: fingerprint of an older published schema by event type, where the version had one.

    Raises:
        FileExistsError: it was made before.
    """
    folder = GOLDEN / version
    folder.mkdir()
    write_archive(folder / "archive", older)
    pool = fold_archive(folder / "archive", DECISION_TOPICS).pools[RUN]
    for name, content in (("pool.json", state_of_pool(pool)), ("samples.json", samples(older))):
        (folder / name).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return folder


if __name__ == "__main__":
    print(write(sys.argv[1], dict(argument.split("=") for argument in sys.argv[2:])))
