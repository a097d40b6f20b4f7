"""Dual feedback: what a failed attempt teaches the next ones of the same seed.

A patchable failure may change the initial state, in small type-safe steps that add up. The function that failed is not
planned again. Failures of the model's service teach nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from environments.canonical import canonical_json
from environments.execution import started
from environments.interface import CALL_FAILURES
from synthesizer.llm.answers import Answer, Unusable
from synthesizer.llm.prompts import as_data
from synthesizer.outcome import PATCHABLE, Failure
from synthesizer.stages.orchestrator import blank_candidate
from synthesizer.stages.patches import PatchRefused, merged, patch_of
from synthesizer.stages.scene import Scene

MAX_CHANGES = 5


class Change(BaseModel):
    """One change of the state."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    api: str
    path: list[str]
    value: Any


class PatchAnswer(Answer):
    """What the config patcher answers."""

    changes: list[Change]


async def learn(scene: Scene, failure: Failure) -> None:
    """Take a lesson from the failure of this attempt into its notebook."""
    notebook = scene.attempt.notebook
    if failure.function and failure.function not in notebook.blocked:
        notebook.blocked.append(failure.function)
    if failure.failure in PATCHABLE:
        await _patch(scene, failure)


def state_of(scene: Scene) -> dict[str, Any]:
    """The seed's initial state with every accepted change."""
    return merged(json.loads(scene.seed.task.initial_config_json), scene.attempt.notebook.config_patch)


def state_json(scene: Scene) -> str:
    """The same as JSON, keys in their order; the seed's own text where nothing was changed."""
    if not scene.attempt.notebook.config_patch:
        return scene.seed.task.initial_config_json
    return json.dumps(state_of(scene), ensure_ascii=False, separators=(",", ":"))


async def _patch(scene: Scene, failure: Failure) -> None:
    notebook, number = scene.attempt.notebook, scene.attempt.number
    state = state_of(scene)
    values = {
        "failure": as_data(failure.failure.value),
        "function": as_data(failure.function),
        "detail": as_data(failure.detail),
        "state": as_data(state, 12_000),
    }
    answer = await scene.dialogue.ask("patcher", values, PatchAnswer)
    if isinstance(answer, Unusable):
        notebook.missed(number, "patch", f"ignored: {answer.why}")
        return
    made, notes = {}, []
    for change in answer.changes[:MAX_CHANGES]:
        place = ".".join([change.api, *change.path])[:200]
        try:
            patch = patch_of(
                merged(state, made), scene.seed.task.involved_classes, change.api, change.path, change.value
            )
            _check_loads(scene, merged(merged(state, made), patch))
        except PatchRefused as error:
            notes.append(f"refused {error}")
            continue
        made = merged(made, patch)
        notes.append(f"{place} = {canonical_json(change.value)[:200]}")
    _note(scene, state, made, "; ".join(notes) or "no change proposed")


def _check_loads(scene: Scene, state: Mapping[str, Any]) -> None:
    try:
        started(scene.environment, blank_candidate(scene, json.dumps(state)))
    except CALL_FAILURES as error:
        raise PatchRefused(f"the simulators cannot load it: {error}") from error


def _note(scene: Scene, before: Mapping[str, Any], made: dict[str, Any], notes: str) -> None:
    notebook, number = scene.attempt.notebook, scene.attempt.number
    if not made:
        notebook.missed(number, "patch", notes)
        return
    notebook.config_patch = merged(notebook.config_patch, made)
    notebook.passed(number, "patch", f"{notes}; state {_short(before)} -> {_short(merged(before, made))}")


def _short(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:12]
