"""From a parsed call to a result: check it against its schema, then let the environment run it. Never guesses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.canonical import canonical_json
from environments.deadline import WATCHDOG
from environments.interface import EXECUTION_ERROR_PREFIX, Environment, EnvironmentUnavailable, State, ToolSchema
from schemas.events import Call, Task

MAX_RESULT_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call does not fit its schema."""

    reason: str


def execute(environment: Environment, state: State, call: Call, offered: Mapping[str, ToolSchema]) -> str:
    """Run one call if it is offered and fits its schema; else return an error text that names the fault.

    Args:
        environment: the tools.
        state: a state of that environment; changed by the call.
        call: the call, arguments as canonical JSON.
        offered: the tools the policy may use now; a withheld function is not among them.
    """
    admitted = admit(call, offered)
    if isinstance(admitted, Refusal):
        return f"{EXECUTION_ERROR_PREFIX} {admitted.reason}"
    return run_call(environment, state, admitted)


def admit(call: Call, offered: Mapping[str, ToolSchema]) -> Call | Refusal:
    """The call, fitted to its schema, or why it may not run."""
    tool = offered.get(call.name)
    if tool is None:
        return Refusal(f"function '{call.name}' is not available")
    checked = checked_call(call, tool)
    return Refusal(f"{call.name}: {checked.reason}") if isinstance(checked, Refusal) else checked


def run_call(environment: Environment, state: State, call: Call) -> str:
    """Let the environment run a call under the time limit; whatever goes wrong in it becomes an error text."""
    late = f"{EXECUTION_ERROR_PREFIX} {call.name} ran longer than {WATCHDOG.limit_s:g} s"
    result = WATCHDOG.run(lambda: _caught(environment, state, call), late)
    if len(result) > MAX_RESULT_CHARS:
        return f"{EXECUTION_ERROR_PREFIX} the result of {call.name} is longer than {MAX_RESULT_CHARS} characters"
    return result


def _caught(environment: Environment, state: State, call: Call) -> str:
    return result_of(call.name, lambda: environment.call(state, call))


def result_of(name: str, run: Callable[[], str]) -> str:
    """What a tool returns, or an error text: it may raise anything, and return what is no Unicode text."""
    try:
        result = run()
        if not isinstance(result, str):
            raise TypeError(f"the result of {name} is no text but {type(result).__name__}")
        result.encode()
        return result
    except UnicodeEncodeError as error:
        return f"{EXECUTION_ERROR_PREFIX} the result of {name} is no Unicode text: {error.reason}"
    except Exception as error:  # noqa: BLE001
        return f"{EXECUTION_ERROR_PREFIX} {_said(error)}"


class CannotStart(RuntimeError):
    """A task that its environment cannot start."""


def started(environment: Environment, task: Task) -> State:
    """A fresh state of a task.

    Raises:
        CannotStart: the environment raised, whatever it was.
        EnvironmentUnavailable: the environment is not installed.
    """
    try:
        return environment.start(task)
    except EnvironmentUnavailable:
        raise
    except Exception as error:
        raise CannotStart(f"{type(error).__name__}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__).encode(errors="replace").decode()


def checked_call(call: Call, tool: ToolSchema) -> Call | Refusal:
    """The call with numbers in the type its schema names, or why it does not fit."""
    try:
        arguments = json.loads(call.arguments_json)
    except ValueError as error:
        return Refusal(f"arguments are no JSON: {error}")
    if not isinstance(arguments, dict):
        return Refusal("arguments must be a JSON object")
    fitted = fit_arguments(arguments, tool.parameters)
    if isinstance(fitted, Refusal):
        return fitted
    return call if fitted == arguments and _same_types(fitted, arguments) else make_call(call.name, fitted)


def make_call(name: str, arguments: Mapping[str, Any]) -> Call:
    """A call with canonical arguments."""
    return Call(name=name, arguments_json=canonical_json(arguments))


def fit_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any] | Refusal:
    """Arguments checked against a JSON schema. The only leniency is by value: 65.0 for an integer, 65 for a number."""
    properties = parameters.get("properties", {})
    required = parameters.get("required", ())
    for name in arguments:
        if name not in properties:
            return Refusal(f"unknown argument '{name}'; it takes {_names(properties)}")
    for name in required:
        if name not in arguments:
            return Refusal(f"missing argument '{name}'")
    fitted: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None and name not in required:
            fitted[name] = None
            continue
        result = _fit(value, properties[name], name)
        if isinstance(result, Refusal):
            return result
        fitted[name] = result
    return fitted


def _names(properties: Mapping[str, Any]) -> str:
    return ", ".join(properties) if properties else "no arguments"


def _fit(value: object, schema: Mapping[str, Any], path: str) -> object:
    named = schema.get("type", "any")
    kinds = (named,) if isinstance(named, str) else tuple(named)
    kind = next((kind for kind in kinds if _is_kind(value, kind)), None)
    if kind is None:
        return Refusal(f"argument '{path}' must be {' or '.join(map(_article, kinds))}, not {_kind_of(value)}")
    if "enum" in schema and value not in schema["enum"]:
        return Refusal(f"argument '{path}' must be one of {', '.join(map(str, schema['enum']))}")
    if kind == "integer":
        return int(value)
    if kind == "array" and "items" in schema:
        return _fit_items(value, schema["items"], path)
    return value


def _fit_items(values: Sequence[object], schema: Mapping[str, Any], path: str) -> object:
    fitted = []
    for index, value in enumerate(values):
        result = _fit(value, schema, f"{path}[{index}]")
        if isinstance(result, Refusal):
            return result
        fitted.append(result)
    return fitted


def _is_kind(value: object, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool) or isinstance(value, float) and value.is_integer()
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    expected = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None), "any": object}
    return isinstance(value, expected.get(kind, object))


def _kind_of(value: object) -> str:
    kinds = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")


def _article(kind: str) -> str:
    return {"integer": "an integer", "array": "a list", "object": "an object", "string": "text"}.get(kind, f"a {kind}")


def _same_types(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return canonical_json(left) == canonical_json(right)
