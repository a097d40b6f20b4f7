"""What of a run must not depend on accidents: plans, life of the tasks, evidence, weights, conservation."""

from __future__ import annotations

import json

from commands.folder import RunFolder


def outcome(folder: RunFolder) -> dict:
    """The part of a finished run that two runs of one configuration share."""
    pool = folder.facts().pool
    summary = json.loads(folder.summary_file.read_text())
    return {
        "orders": {epoch: plan.order for epoch, plan in pool.epochs.items()},
        "batches": {step: batch.task_ids for step, batch in pool.batches.items()},
        "retired": {task: event.reason for task, event in pool.retired.items()},
        "signals": sorted((s.step, s.task_id, s.evidence.mean) for s in pool.signals.values()),
        "weights": summary["weights_digest"],
        "conservation": summary["conservation"],
    }
