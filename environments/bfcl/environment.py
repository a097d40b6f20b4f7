"""The BFCL V3 environment: the package's simulators behind this room's interface, dispatched by table."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from environments.bfcl import simulators, tasks
from environments.bfcl.catalogue import schemas, with_text_ticket_ids
from environments.bfcl.guards import check_tree
from environments.bfcl.hints import with_hint
from environments.bfcl.simulators import Simulators
from environments.bfcl.source import VERSION
from environments.canonical import digest_of, plain
from environments.interface import CALL_FAILURES, EXECUTION_ERROR_PREFIX, Snapshot, ToolSchema
from schemas.events import Call, Task

decode = json.JSONDecoder().raw_decode


class BfclEnvironment:
    """Eight tool classes with 128 functions; state is one simulator per class of the task."""

    name = tasks.ENVIRONMENT_NAME
    version = VERSION

    def tasks(self, split: str) -> tuple[Task, ...]:
        """Tasks of ``train`` (400), ``val`` (100), ``test`` (300) or ``all`` (800), by category, then by index."""
        return tasks.load(split)

    def tools(self, task: Task) -> Mapping[str, ToolSchema]:
        """Every function of the task's classes, in class order, then by name, without the excluded ones."""
        return _tools(task.involved_classes, task.excluded_functions, simulators.plan_of(task).has_text_ticket_ids)

    def start(self, task: Task) -> Simulators:
        """Fresh simulators loaded with the task's configuration."""
        return simulators.start(simulators.plan_of(task))

    def call(self, state: Simulators, call: Call) -> str:
        """Run one call. Arguments are bound by the function's signature; whatever it raises becomes the result."""
        route = state.routes.get(call.name)
        if route is None:
            return f"{EXECUTION_ERROR_PREFIX} name '{call.name}' is not defined"
        if route.changes:
            state.equal_to[route.position] = None
        try:
            arguments = decode(call.arguments_json)[0]
            for name, kind in route.fresh:
                arguments.setdefault(name, kind())
            return simulators.render(route.function(state.instances[route.position], **arguments))
        except CALL_FAILURES as error:
            return f"{EXECUTION_ERROR_PREFIX} {error}"

    def public_state(self, state: Simulators) -> object:
        """Public attributes by class; a file tree as nested mappings; an endless tree as a marker."""
        shown = {}
        for cls, instance, names in zip(state.plan.classes, state.instances, state.plan.public, strict=True):
            shown[cls.__name__] = {name: _plain_attribute(getattr(instance, name)) for name in names}
        return shown

    def digest(self, state: Simulators) -> str:
        """SHA-256 over the canonical public state."""
        return digest_of(self.public_state(state))

    def snapshot(self, state: Simulators) -> Snapshot:
        """A private copy of the simulators, hidden attributes and generators included."""
        return Snapshot(self.name, self.version, simulators.duplicate(state))

    def restore(self, snapshot: Snapshot) -> Simulators:
        """Fresh simulators equal to the snapshot's."""
        return simulators.duplicate(snapshot.state)

    def mark(self, state: Simulators, previous: object = None) -> object:
        """Copies of the public values, one entry per class; the previous (or initial) mark's entry where it is equal."""
        known = state.plan.initial if previous is None else previous
        values = [read(vars(each)) for read, each in zip(state.plan.readers, state.instances, strict=True)]
        return tuple(old if old == new else copy.deepcopy(new) for old, new in zip(known, values, strict=True))

    def matches(self, state: Simulators, mark: object) -> bool:
        """Whether the public values equal the marked ones, numbers by value."""
        equal_to = state.equal_to
        try:
            for position, expected in enumerate(mark):
                if equal_to[position] is not expected:
                    if state.plan.readers[position](state.instances[position].__dict__) != expected:
                        return False
                    equal_to[position] = expected
        except (RecursionError, KeyError):
            return False
        return True


class HintedBfclEnvironment(BfclEnvironment):
    """The same environment with hints in the texts of failed calls, under a name and a version that say so."""

    name = f"{tasks.ENVIRONMENT_NAME}-hints"
    version = f"{VERSION}+hints"

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The same tasks, assigned to this environment."""
        return _assigned(split, self.name, self.version)

    def call(self, state: Simulators, call: Call) -> str:
        """As in the plain environment, with a hint appended to an error text."""
        result = super().call(state, call)
        route = state.routes.get(call.name)
        simulator = state.instances[route.position] if route else None
        return with_hint(call.name, call.arguments_json, result, simulator)


@lru_cache(maxsize=8)
def _assigned(split: str, name: str, version: str) -> tuple[Task, ...]:
    return tuple(replace(task, environment=name, environment_version=version) for task in tasks.load(split))


@lru_cache(maxsize=512)
def _tools(class_names: tuple[str, ...], excluded: tuple[str, ...], text_ids: bool) -> Mapping[str, ToolSchema]:
    found = {name: schema for owner in class_names for name, schema in schemas(owner).items() if name not in excluded}
    if text_ids:
        found = {name: with_text_ticket_ids(schema) for name, schema in found.items()}
    return MappingProxyType(found)


def _plain_attribute(value: object) -> object:
    if hasattr(value, "contents"):
        try:
            check_tree(value)
        except ValueError as error:
            return {"!": str(error)}
        return _plain_tree(value)
    return plain(value)


def _plain_tree(node: object) -> object:
    contents = getattr(node, "contents", None)
    if contents is None:
        return {"name": node.name, "content": plain(node.content)}
    return {"name": node.name, "contents": {name: _plain_tree(contents[name]) for name in sorted(contents)}}
