"""Actionable error texts, the switch of environment ``bfcl-v3-hints``: what went wrong, and what would work.

Only texts of failed calls change: a hint is appended to the error the simulator gave. Calls, states and successful results
are those of ``bfcl-v3``. The idea and the families of hints are EnvTuning's environment augmentation; the words are ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from environments.interface import EXECUTION_ERROR_PREFIX

ILLEGAL = '|/\\?%*:"><'
CURRENCIES = "USD, RMB, EUR, JPY, GBP, CAD, AUD, INR, RUB, BRL, MXN"
NAME_ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cd": ("folder",),
        "mkdir": ("dir_name",),
        "rmdir": ("dir_name",),
        "touch": ("file_name",),
        "echo": ("file_name",),
        "cat": ("file_name",),
        "wc": ("file_name",),
        "sort": ("file_name",),
        "grep": ("file_name",),
        "tail": ("file_name",),
        "rm": ("file_name",),
        "diff": ("file_name1", "file_name2"),
        "mv": ("source", "destination"),
        "cp": ("source", "destination"),
    }
)
WANTS_FILE = frozenset({"echo", "cat", "wc", "sort", "grep", "tail", "diff"})
WANTS_DIRECTORY = frozenset({"cd", "rmdir"})
MAKES_NAME = frozenset({"mkdir", "touch"})


def with_hint(name: str, arguments_json: str, result: str, simulator: Any) -> str:
    """The result with a hint appended to its error text; any result without an error as it is.

    Args:
        name: function that was called.
        arguments_json: its arguments.
        result: result text of the call.
        simulator: the simulator the function belongs to, for what exists in the current directory.
    """
    failed, error, fields = _error_of(result)
    if not failed:
        return result
    try:
        arguments = json.loads(arguments_json)
    except ValueError:
        return result
    hint = _hint(name, arguments if isinstance(arguments, dict) else {}, error, simulator)
    if not hint:
        return result
    if fields is None:
        return f"{result} Hint: {hint}"
    return json.dumps({**fields, "error": f"{error} Hint: {hint}"})


def _error_of(result: str) -> tuple[bool, str, Mapping[str, Any] | None]:
    if result.startswith(EXECUTION_ERROR_PREFIX):
        return True, result.removeprefix(EXECUTION_ERROR_PREFIX).strip(), None
    if not result.startswith("{"):
        return False, "", None
    try:
        fields = json.loads(result)
    except ValueError:
        return False, "", None
    return "error" in fields, str(fields.get("error", "")), fields


def _hint(name: str, arguments: Mapping[str, Any], error: str, simulator: Any) -> str:
    if name in NAME_ARGUMENTS:
        return _file_hint(name, arguments, simulator)
    rule = RULES.get(name)
    return rule(arguments, error) if rule else ""


def _file_hint(name: str, arguments: Mapping[str, Any], simulator: Any) -> str:
    directory = getattr(simulator, "_current_dir", None)
    contents = getattr(directory, "contents", {})
    for argument in NAME_ARGUMENTS[name]:
        value = arguments.get(argument)
        if isinstance(value, str):
            hint = _name_hint(name, argument, value, contents)
            if hint:
                return hint
    return ""


def _name_hint(name: str, argument: str, value: str, contents: Mapping[str, Any]) -> str:
    if value in ("..", "/", "."):
        return "you are at the top of the file system; there is no parent directory." if value == ".." else ""
    if "/" in value:
        return (
            f"'{value}' is a path. {name} takes one name in the current directory; "
            "go there first with cd, one directory at a time."
        )
    illegal = sorted({character for character in value if character in ILLEGAL})
    if illegal:
        return f"'{value}' holds {' '.join(illegal)}; a name must not contain any of {' '.join(ILLEGAL)}"
    if value not in contents:
        if name in MAKES_NAME or argument == "destination":
            return ""
        return f"there is no '{value}' in the current directory; ls shows what there is, find searches below."
    if name in MAKES_NAME or argument == "destination":
        return f"'{value}' exists already; choose another name or use the one that is there."
    is_directory = hasattr(contents[value], "contents")
    if is_directory and name in WANTS_FILE:
        return f"'{value}' is a directory and {name} works on files; cd into it first."
    if not is_directory and name in WANTS_DIRECTORY:
        return f"'{value}' is a file and {name} works on directories."
    return ""


def _airport(arguments: Mapping[str, Any], error: str) -> str:
    if "airport code" in error:
        end = "travel_from" if "departure" in error else "travel_to"
        return (
            f"'{arguments.get(end)}' is not an airport code; list_all_airports names all codes and "
            "get_nearest_airport_by_city finds the one for a city."
        )
    if "route" in error.lower():
        return (
            f"no flight goes from {arguments.get('travel_from')} to {arguments.get('travel_to')}; try other airports."
        )
    return ""


def _currency(arguments: Mapping[str, Any], error: str) -> str:
    pair = f"{arguments.get('base_currency')} to {arguments.get('target_currency')}"
    return f"{pair} is not offered; one side must be USD and the other one of {CURRENCIES}."


def _weather(arguments: Mapping[str, Any], error: str) -> str:
    return "this weather source does not answer; use get_outside_temperature_from_google."


def _distance(arguments: Mapping[str, Any], error: str) -> str:
    return "cityA and cityB must be zip codes that belong to a known route; get_zipcode_based_on_city gives them."


def _doors(arguments: Mapping[str, Any], error: str) -> str:
    return "the doors are driver, passenger, rear_left and rear_right."


RULES: Mapping[str, Callable[[Mapping[str, Any], str], str]] = MappingProxyType(
    {
        "book_flight": _airport,
        "get_flight_cost": _airport,
        "compute_exchange_rate": _currency,
        "get_outside_temperature_from_weather_com": _weather,
        "estimate_distance": _distance,
        "lockDoors": _doors,
    }
)
