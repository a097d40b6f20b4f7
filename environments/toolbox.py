"""The short way to an environment: hand over plain Python classes, get tools, states, digests and snapshots.

Conventions for a tool class:

* its constructor takes the task's configuration for it as keyword arguments, and may also take ``random``, a seeded
  ``random.Random`` for ids, and ``long_context``, a flag;
* every public method is a tool: the schema comes from its annotations, through pydantic, and its docstring (``Args:``
  section, Google style); arguments are validated strictly;
* its public attributes are the public state that scoring compares; attributes that start with ``_`` are private;
* its methods are plain (not asynchronous), return a text or JSON data, and raise to fail; a call that fails changes nothing,
  for calls run on a copy of the state;
* it can be copied by ``copy.deepcopy`` and keeps no state outside the instance.
"""

from __future__ import annotations

import copy
import inspect
import json
import random
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Required

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from environments.canonical import digest_of, plain
from environments.execution import result_of
from environments.interface import EnvironmentUnavailable, Snapshot, ToolSchema
from schemas.events import Call, Task

ToolObjects = dict[str, Any]
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
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
        TypeError: a method cannot be a tool; the text says which and why.
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
        self._schemas: dict[str, dict[str, ToolSchema]] = {owner: {} for owner in self._classes}
        self._arguments: dict[str, TypeAdapter] = {}
        self._owners: dict[str, str] = {}
        for owner, cls in self._classes.items():
            for tool, method in vars(cls).items():
                if tool.startswith("_") or not inspect.isfunction(method):
                    continue
                if self._owners.setdefault(tool, owner) != owner:
                    raise ValueError(f"{self._owners[tool]} and {owner} both have a tool named {tool}")
                self._schemas[owner][tool], self._arguments[tool] = tool_of(method, owner)
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
        """New objects from the task's configuration.

        Raises:
            TypeError: an object cannot be copied.
        """
        config = json.loads(task.initial_config_json)
        state = {owner: self._build(owner, config.get(owner, {}), task) for owner in task.involved_classes}
        return copy.deepcopy(state)

    def _build(self, owner: str, config: Mapping[str, Any], task: Task) -> Any:
        accepted = inspect.signature(self._classes[owner]).parameters
        extra = {"random": random.Random(f"{task.id_seed}:{owner}"), "long_context": task.long_context}
        return self._classes[owner](**config, **{key: value for key, value in extra.items() if key in accepted})

    def call(self, state: ToolObjects, call: Call) -> str:
        """Run one call on a copy, which becomes the state if the call succeeds and its result is a text or JSON data.

        Whatever is wrong with arguments or result, and whatever the method raises, becomes an error text.
        """
        return result_of(call.name, lambda: self._run(state, call))

    def _run(self, state: ToolObjects, call: Call) -> str:
        owner = self._owners.get(call.name)
        if owner not in state:
            raise ValueError(f"function '{call.name}' is not available")
        arguments = _read(call, self._arguments[call.name])
        copied = copy.deepcopy(state)
        result = getattr(self._classes[owner], call.name)(copied[owner], **arguments)
        text = result if isinstance(result, str) else _as_json(call.name, result)
        text.encode()
        state.update(copied)
        return text

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


def _as_json(name: str, result: object) -> str:
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"the result of {name} is no JSON data: {error}") from error


def _read(call: Call, arguments: TypeAdapter) -> dict[str, Any]:
    try:
        return arguments.validate_json(call.arguments_json, strict=True)
    except ValidationError as error:
        faults = [f"'{'.'.join(map(str, each['loc']))}': {each['msg']}" for each in error.errors(include_url=False)]
        raise ValueError(f"{call.name}: argument {'; '.join(faults)}") from error


class _Untitled(GenerateJsonSchema):
    """JSON schemas without the titles that only repeat names."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def tool_of(function: Callable[..., Any], owner: str) -> tuple[ToolSchema, TypeAdapter]:
    """The schema of a method from its signature and docstring, and what validates its arguments.

    Raises:
        TypeError: the method is asynchronous, takes ``*args``, ``**kwargs`` or positional-only parameters, or a parameter has
            no annotation or one that pydantic has no JSON schema for.
    """
    where = f"{owner}.{function.__name__}"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{where} is asynchronous: a tool must be a plain method")
    summary, described = read_docstring(inspect.getdoc(function) or "")
    parameters = list(inspect.signature(function).parameters.values())[1:]
    hints = typing.get_type_hints(function, include_extras=True)
    fields = {}
    for each in parameters:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise TypeError(f"{where}: parameter '{each.name}' cannot be given by name")
        if each.name not in hints:
            raise TypeError(f"{where}: parameter '{each.name}' needs a type annotation")
        hint = Annotated[hints[each.name], Field(description=described.get(each.name))]
        fields[each.name] = Required[hint] if each.default is each.empty else NotRequired[hint]
    arguments = TypedDict("Arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    try:
        adapter = TypeAdapter(arguments)
        found = adapter.json_schema(schema_generator=_Untitled)
    except PydanticUserError as error:
        raise TypeError(f"{where}: no JSON schema for its parameters: {error.message}") from error
    properties = found.get("properties", {})
    for each in parameters:
        if each.default is not each.empty:
            properties[each.name] = _without_null(properties[each.name], each.default) | {"default": each.default}
    schema = {"type": "object", "properties": properties, "required": found.get("required", [])}
    schema |= {"$defs": found["$defs"]} if "$defs" in found else {}
    return ToolSchema(function.__name__, summary, schema, owner), adapter


def _without_null(schema: dict[str, Any], default: object) -> dict[str, Any]:
    """A parameter that is null if it is not given needs no null in its schema."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if default is not None or len(kinds) != 1:
        return schema
    return {name: value for name, value in schema.items() if name != "anyOf"} | kinds[0]


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Summary (everything before the first section) and the texts of the ``Args:`` section by name, lines joined."""
    summary: list[str] = []
    described: dict[str, list[str]] = {}
    section, indent, name = "", 0, ""
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if heading := _SECTION.match(line):
            section, indent, name = heading.group(1), 0, ""
        elif not section:
            summary.append(line.strip())
        elif section.startswith("Arg") and line.strip():
            indent = indent or depth
            if depth <= indent and (match := _ARGUMENT.match(line)):
                name = match.group(1)
                described[name] = [match.group(2)]
            elif name:
                described[name].append(line.strip())
    joined = {name: " ".join(line.strip() for line in lines if line.strip()) for name, lines in described.items()}
    return " ".join(line for line in summary if line), joined
