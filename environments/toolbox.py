"""The short way to an environment: hand over plain Python classes, get tools, states, digests and snapshots.

Conventions for a tool class:

* its constructor takes the task's configuration for it as keyword arguments, and may also take ``random``, a seeded
  ``random.Random`` for ids, and ``long_context``, a flag;
* every public method is a tool: the schema comes from its signature and its docstring (``Args:`` section, Google style);
* its public attributes are the public state that scoring compares; attributes that start with ``_`` are private;
* it raises to fail, and keeps no state outside the instance.
"""

from __future__ import annotations

import copy
import inspect
import json
import random
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from environments.canonical import digest_of, plain
from environments.interface import CALL_FAILURES, EXECUTION_ERROR_PREFIX, EnvironmentUnavailable, Snapshot, ToolSchema
from schemas.events import Call, Task

ToolObjects = dict[str, Any]
JSON_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_SECTION = re.compile(r"^\s*(Args|Arguments|Returns|Raises|Yields)\s*:\s*$")


class Toolbox:
    """An environment made of tool classes; implements ``Environment`` and, with tasks, ``TaskSource``.

    Args:
        name: name of the environment; tasks name it.
        version: changes whenever a result or a state could change.
        classes: tool classes by name; a task says which are live.
        tasks: split name to tasks, or None.

    Raises:
        ValueError: two classes have a tool of the same name.
        TypeError: a tool has a parameter without a usable annotation.
    """

    def __init__(
        self,
        name: str,
        version: str,
        classes: Mapping[str, type],
        tasks: Callable[[str], tuple[Task, ...]] | None = None,
    ) -> None:
        self.name, self.version = name, version
        self._classes = dict(classes)
        self._schemas = {owner: _schemas(cls, owner) for owner, cls in self._classes.items()}
        self._owners: dict[str, str] = {}
        for owner, schemas in self._schemas.items():
            for tool in schemas:
                if self._owners.setdefault(tool, owner) != owner:
                    raise ValueError(f"{self._owners[tool]} and {owner} both have a tool named {tool}")
        self._load = tasks

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The environment's own tasks.

        Raises:
            EnvironmentUnavailable: it has none.
        """
        if self._load is None:
            raise EnvironmentUnavailable(f"environment '{self.name}' has no tasks")
        return self._load(split)

    def tools(self, task: Task) -> Mapping[str, ToolSchema]:
        """Public methods of the task's classes in order of definition, without the excluded ones."""
        live = (schema for owner in task.involved_classes for schema in self._schemas[owner].values())
        return {schema.name: schema for schema in live if schema.name not in task.excluded_functions}

    def start(self, task: Task) -> ToolObjects:
        """New objects from the task's configuration."""
        config = json.loads(task.initial_config_json)
        return {owner: self._build(owner, config.get(owner, {}), task) for owner in task.involved_classes}

    def _build(self, owner: str, config: Mapping[str, Any], task: Task) -> Any:
        accepted = inspect.signature(self._classes[owner]).parameters
        extra = {"random": random.Random(f"{task.id_seed}:{owner}"), "long_context": task.long_context}
        return self._classes[owner](**config, **{key: value for key, value in extra.items() if key in accepted})

    def call(self, state: ToolObjects, call: Call) -> str:
        """Run one call; whatever the method raises becomes an error text."""
        owner = self._owners.get(call.name)
        if owner not in state:
            return f"{EXECUTION_ERROR_PREFIX} function '{call.name}' is not available"
        try:
            result = getattr(self._classes[owner], call.name)(state[owner], **json.loads(call.arguments_json))
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        except CALL_FAILURES as error:
            return f"{EXECUTION_ERROR_PREFIX} {error}"

    def public_state(self, state: ToolObjects) -> object:
        """Public attributes by class."""
        return {
            owner: {key: plain(value) for key, value in sorted(vars(each).items()) if not key.startswith("_")}
            for owner, each in state.items()
        }

    def digest(self, state: ToolObjects) -> str:
        """SHA-256 over the canonical public state."""
        return digest_of(self.public_state(state))

    def snapshot(self, state: ToolObjects) -> Snapshot:
        """A deep copy, private attributes included."""
        return Snapshot(self.name, self.version, copy.deepcopy(state))

    def restore(self, snapshot: Snapshot) -> ToolObjects:
        """A deep copy of the snapshot."""
        return copy.deepcopy(snapshot.state)


def _schemas(cls: type, owner: str) -> dict[str, ToolSchema]:
    methods = ((name, each) for name, each in vars(cls).items() if inspect.isfunction(each))
    return {name: schema_of(each, owner) for name, each in methods if not name.startswith("_")}


def schema_of(function: Callable[..., Any], owner: str) -> ToolSchema:
    """The schema of a method from its signature and docstring.

    Raises:
        TypeError: a parameter has no annotation, or one that JSON has no type for.
    """
    summary, described = read_docstring(inspect.getdoc(function) or "")
    hints = typing.get_type_hints(function)
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if name not in hints:
            raise TypeError(f"{owner}.{function.__name__}: parameter '{name}' needs a type annotation")
        properties[name] = {**json_type(hints[name], f"{owner}.{function.__name__}.{name}")}
        if name in described:
            properties[name]["description"] = described[name]
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        else:
            properties[name]["default"] = parameter.default
    parameters = {"type": "object", "properties": properties, "required": required}
    return ToolSchema(function.__name__, summary, parameters, owner)


def json_type(hint: Any, where: str) -> dict[str, Any]:
    """JSON schema of an annotation: plain types, ``list[T]``, ``T | None`` and ``Literal`` texts.

    Raises:
        TypeError: any other annotation.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"type": "string", "enum": list(inner)}
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in inner if each is not type(None)]
        if len(kinds) == 1:
            return json_type(kinds[0], where)
    elif origin is list:
        return {"type": "array", "items": json_type(inner[0], where)}
    elif (origin or hint) in JSON_KINDS:
        return {"type": JSON_KINDS[origin or hint]}
    raise TypeError(f"{where}: no JSON type for {hint}")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Summary (everything before the first section) and the texts of the ``Args:`` section by name."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading:
            section = heading.group(1)
        elif not section:
            summary.append(line.strip())
        elif section.startswith("Arg"):
            match = _ARGUMENT.match(line)
            if match:
                described[match.group(1)] = match.group(2).strip()
    return " ".join(line for line in summary if line), described
