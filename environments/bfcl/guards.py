"""Simulator functions that need a bound or a private context; each gives the package's own result where that is finite.

The package's functions change process-global precision (mpmath, decimal), mutate a module-level dictionary, read the
wall clock, print sets in hash order, or can be made to run for ever by their arguments. The replacements here take the
simulator instance and the named arguments.
"""

from __future__ import annotations

import datetime
import decimal
import math
import sys
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import mpmath

MAX_PRECISION = 1_000
MAX_ROUND_PLACES = 1_000
MAX_TREE_NODES = 5_000
TODAY = datetime.date(2026, 3, 23)
ADULT_AGE = 18
ADULT_BIRTH, MINOR_BIRTH = "1970-01-01", "2999-01-01"
INVALID_FIELDS = "Invalid fields for update: "
INVALID_CLASS = "Invalid travel class. Must be one of "
_local = threading.local()


def _number(value: object) -> bool:
    return isinstance(value, (int, float))


def _check_precision(precision: object) -> None:
    if _number(precision) and abs(precision) > MAX_PRECISION:
        raise ValueError(f"precision must be at most {MAX_PRECISION} digits")


def logarithm(simulator: Any, value: float, base: float, precision: int) -> dict[str, Any]:
    """Logarithm at a precision that only this call sees."""
    _check_precision(precision)
    context = getattr(_local, "context", None)
    if context is None:
        context = _local.context = mpmath.MPContext()
    try:
        context.dps = precision
        return {"result": context.log(value) / context.log(base)}
    except (ArithmeticError, TypeError, ValueError, AttributeError) as error:
        return {"error": str(error)}


def square_root(simulator: Any, number: float, precision: int) -> dict[str, Any]:
    """Square root in a decimal context that ends with this call."""
    _check_precision(precision)
    with decimal.localcontext():
        return type(simulator).square_root(simulator, number, precision)


def power(simulator: Any, base: float, exponent: float) -> dict[str, Any]:
    """Power; an integer power too long to be printed fails before it is computed, with the interpreter's own reason."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and abs(base) > 1:
        limit = sys.get_int_max_str_digits() or 4_300
        if exponent * math.log10(abs(base)) > limit + 1:
            raise ValueError(f"Exceeds the limit ({limit} digits) for integer string conversion")
    return type(simulator).power(simulator, base, exponent)


def round_number(simulator: Any, number: float, decimal_places: int = 0) -> dict[str, Any]:
    """Rounding; places far below the number are refused, because rounding an integer to them takes unbounded time."""
    if _number(decimal_places) and abs(decimal_places) > MAX_ROUND_PLACES:
        raise ValueError(f"decimal_places must be within {MAX_ROUND_PLACES}")
    return type(simulator).round_number(simulator, number, decimal_places)


def outside_temperature(simulator: Any) -> dict[str, Any]:
    """The weather report; in long-context mode a private copy instead of the shared one."""
    if not simulator.long_context:
        return type(simulator).get_outside_temperature_from_google(simulator)
    module = sys.modules[type(simulator).__module__]
    report = dict(module.LONG_WEATHER_EXTENSION)
    report.pop("outsideTemperature", None)
    report["outsideTemperature"] = simulator._random.uniform(-10.0, 40.0)
    return report


def verify_traveler_information(
    simulator: Any, first_name: str, last_name: str, date_of_birth: str, passport_number: str
) -> dict[str, Any]:
    """Traveller check with the age counted at TODAY, so that it gives one answer for ever."""
    try:
        birth = datetime.datetime.strptime(date_of_birth, "%Y-%m-%d").date()
        age = TODAY.year - birth.year - ((TODAY.month, TODAY.day) < (birth.month, birth.day))
        date_of_birth = MINOR_BIRTH if age < ADULT_AGE else ADULT_BIRTH
    except ValueError:
        pass
    check = type(simulator).verify_traveler_information
    return check(simulator, first_name, last_name, date_of_birth, passport_number)


def edit_ticket(simulator: Any, ticket_id: int, updates: dict[str, Any]) -> dict[str, Any]:
    """Ticket edit; unknown fields are named in alphabetical order instead of hash order."""
    result = type(simulator).edit_ticket(simulator, ticket_id, updates)
    if result.get("error", "").startswith(INVALID_FIELDS):
        names = set(updates) - {"title", "description", "status", "priority"}
        return {"error": INVALID_FIELDS + ", ".join(sorted(names))}
    return result


def book_flight(simulator: Any, **arguments: Any) -> dict[str, Any]:
    """Flight booking; the allowed classes are named in alphabetical order instead of hash order."""
    result = type(simulator).book_flight(simulator, **arguments)
    if str(result.get("error", "")).startswith(INVALID_CLASS):
        return {**result, "error": INVALID_CLASS + "{'business', 'economy', 'first'}"}
    return result


def tree_bound(name: str) -> Callable[..., Any]:
    """A file-system function that first refuses to work on a tree grown beyond MAX_TREE_NODES entries."""

    def bounded(simulator: Any, **arguments: Any) -> Any:
        check_tree(simulator.root)
        return getattr(type(simulator), name)(simulator, **arguments)

    return bounded


def check_tree(root: Any) -> None:
    """Raise ValueError when walking the tree would visit more than MAX_TREE_NODES entries, loops included."""
    pending, visited = [root], 0
    while pending:
        contents = getattr(pending.pop(), "contents", None)
        if isinstance(contents, dict):
            visited += len(contents)
            if visited > MAX_TREE_NODES:
                raise ValueError(f"the file tree has more than {MAX_TREE_NODES} entries")
            pending.extend(contents.values())


REPLACEMENTS: Mapping[tuple[str, str], Callable[..., Any]] = MappingProxyType(
    {
        ("MathAPI", "logarithm"): logarithm,
        ("MathAPI", "square_root"): square_root,
        ("MathAPI", "power"): power,
        ("MathAPI", "round_number"): round_number,
        ("VehicleControlAPI", "get_outside_temperature_from_google"): outside_temperature,
        ("TravelAPI", "verify_traveler_information"): verify_traveler_information,
        ("TravelAPI", "book_flight"): book_flight,
        ("TicketAPI", "edit_ticket"): edit_ticket,
        ("GorillaFileSystem", "find"): tree_bound("find"),
        ("GorillaFileSystem", "du"): tree_bound("du"),
    }
)
