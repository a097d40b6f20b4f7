"""Changes of the initial state that keep its types, merged one over the other. Pure.

A change names a class, a path of keys and a value. It is refused where the class or a key is unknown, where the value
is of another type than what stands there, or where it breaks a file tree. A new key is taken only into a collection
(entries that are all alike) and only with an entry like the others. The order of keys stays, because the first key of
a file tree is its root.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from environments.canonical import canonical_json

MAX_PATCH_CHARS = 4000
FILE, DIRECTORY = "file", "directory"


class PatchRefused(ValueError):
    """A change that is not made; the text says why."""


def patch_of(config: Mapping[str, Any], classes: Sequence[str], owner: str, path: Sequence[str], value: Any) -> dict:
    """The change as a nested object to be merged into the state.

    Args:
        config: the state by class, earlier changes included.
        classes: classes of the task.
        owner: class that is changed.
        path: keys from the class downwards.
        value: the new value.

    Raises:
        PatchRefused: with the reason.
    """
    if owner not in classes or not isinstance(config.get(owner), dict):
        raise PatchRefused(f"{owner[:60]!r} is no class of this task with a state of its own")
    if not path:
        raise PatchRefused(f"{owner}: a change needs a path")
    try:
        if len(canonical_json(value)) > MAX_PATCH_CHARS:
            raise PatchRefused(f"{owner}: the value is longer than {MAX_PATCH_CHARS} characters")
    except RecursionError as error:
        raise PatchRefused(f"{owner}: the value is nested too deep") from error
    where = config[owner]
    for key in path[:-1]:
        if not isinstance(where, dict) or key not in where:
            raise PatchRefused(f"{'.'.join((owner, *path))[:200]}: there is no {key[:60]!r}")
        where = where[key]
    _check_entry(where, path[-1], value, ".".join((owner, *path))[:200])
    for key in reversed(path):
        value = {key: value}
    return {owner: value}


def _check_entry(where: Any, key: str, value: Any, place: str) -> None:
    if not isinstance(where, dict):
        raise PatchRefused(f"{place}: what should hold it is no object")
    if key in where:
        _check_type(where[key], value, place)
        return
    entries = list(where.values())
    if entries and all(_is_node(entry) for entry in entries):
        _check_node(value, place)
        return
    if not entries or not all(isinstance(e, dict) and e.keys() == entries[0].keys() for e in entries):
        raise PatchRefused(f"{place}: there is no such field")
    if not isinstance(value, dict) or value.keys() != entries[0].keys():
        raise PatchRefused(f"{place}: a new entry needs the fields {', '.join(entries[0])}")
    _check_type(entries[0], value, place)


def _check_type(old: Any, new: Any, place: str) -> None:
    if _is_node(old):
        _check_node(new, place)
    elif isinstance(old, dict):
        if not isinstance(new, dict):
            raise PatchRefused(f"{place}: {_kind(new)} instead of an object")
        for key, value in new.items():
            _check_entry(old, key, value, f"{place}.{key}")
    elif isinstance(old, list):
        if not isinstance(new, list):
            raise PatchRefused(f"{place}: {_kind(new)} instead of a list")
        for item in new if old else ():
            _check_type(old[0], item, f"{place}[]")
    elif old is None or _kind(old) != _kind(new) or isinstance(old, int) and isinstance(new, float):
        raise PatchRefused(f"{place}: {_kind(new)} instead of {_kind(old)}")


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "nothing" if value is None else "a truth value"
    if isinstance(value, (int, float)):
        return "a number"
    return {str: "a text", list: "a list", dict: "an object"}.get(type(value), "something else")


def _is_node(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("type") in (FILE, DIRECTORY)
        and bool({"content", "contents"} & value.keys())
    )


def _check_node(value: Any, place: str) -> None:
    """A file has a type and a text, a directory a type and nodes by name."""
    if not isinstance(value, dict) or value.get("type") not in (FILE, DIRECTORY):
        raise PatchRefused(f"{place}: neither a file nor a directory")
    inner = "content" if value["type"] == FILE else "contents"
    if value.keys() != {"type", inner} or not isinstance(value[inner], str if inner == "content" else dict):
        raise PatchRefused(f"{place}: a {value['type']} has a type and {inner}, nothing else")
    if inner == "contents":
        for name, child in value["contents"].items():
            if not name or "/" in name:
                raise PatchRefused(f"{place}: {name[:60]!r} is no file name")
            _check_node(child, f"{place}.{name}")


def merged(config: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The state with a patch merged in; objects recursively, everything else replaced; keys keep their order."""
    result = copy.deepcopy(dict(config))
    for key, value in patch.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
