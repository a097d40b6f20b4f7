"""Amounts the user names and quantities of the state that only results show."""

from __future__ import annotations

import random
import re

from synthesizer.dates import dates_in
from synthesizer.scripted.draw import Draw
from synthesizer.scripted.tables import STATE_QUANTITIES
from synthesizer.scripted.view import Argument, SeedView
from synthesizer.values import NUMBER, Path, has_number, is_number, number_like, result_leaves, same

FIXED_PARAMETERS = frozenset({"pedalPosition", "precision", "base", "tweet_id", "updates"})
ID_PARAMETERS = frozenset({"ticket_id", "order_id"})
MIN_IDENTITY = 1000
_LIMIT = re.compile(
    r"\b(?:below|under|above|over|exceeds?|less than|lower than|more than|larger than|greater than|short of)"
    r"\s+(?:a |of )?"
    r"\$?(?P<number>\d[\d,]*(?:\.\d+)?)\b",
    re.IGNORECASE,
)
COUNTERS = frozenset({"tweet_counter", "order_counter", "ticket_counter", "message_count"})
DIGITS = {"batteryVoltage": 1, "fuelLevel": 1, "volume": 3}


def collect_amounts(draw: Draw) -> None:
    """New amounts for numeric arguments that a text gives as a number of their own."""
    for argument in draw.view.arguments:
        value = argument.value
        if not is_number(value) or not argument.is_said or argument.name in FIXED_PARAMETERS:
            continue
        if argument.name in ID_PARAMETERS:
            if value >= MIN_IDENTITY:
                draw.identity(int(value), _identity(int(value), draw.rng), argument.name)
        elif _is_free(float(value), draw.view):
            new = _bounded(argument.name, varied(float(value), draw.rng), float(value), draw.rng)
            if not has_number(new, draw.view.text):
                draw.number(float(value), new, argument.name)
                _follow_state(float(value), new, argument.name, draw)


def _is_free(value: float, view: SeedView) -> bool:
    """Whether every mention in the texts is a plain amount: no year, no part of a date."""
    if value < 3 or 1900 <= value <= 2100 and value.is_integer():
        return False
    for text in view.texts:
        for span in dates_in(text):
            inside = text[span.start : span.end]
            if any(float(token.replace(",", "")) == value for token in NUMBER.findall(inside)):
                return False
    return True


def varied(value: float, rng: random.Random) -> float:
    """A number of the same size and roundness."""
    if not float(value).is_integer():
        decimals = len(f"{value:.10f}".rstrip("0").partition(".")[2])
        return round(value * rng.uniform(0.7, 1.2), decimals)
    digits = str(int(value))
    zeros = len(digits) - len(digits.rstrip("0"))
    unit = 10 ** min(zeros, max(0, len(digits) - 2))
    if unit == 1 and value % 5 == 0 and value >= 20:
        unit = 5
    low, high = max(unit, value * 0.6), value * 1.15
    options = [number for number in range(int(low // unit) * unit, int(high) + 1, unit) if number >= max(3, low)]
    return float(rng.choice([number for number in options if number != value] or [value + unit]))


def _bounded(name: str, new: float, old: float, rng: random.Random) -> float:
    if name == "priority":
        return float(rng.choice([level for level in ((3, 4, 5) if old >= 3 else (1, 2, 3)) if level != old]))
    return new


def _identity(value: int, rng: random.Random) -> int:
    digits = len(str(value))
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def _follow_state(old: float, new: float, name: str, draw: Draw) -> None:
    """State fields of the same name and value change along; a stock's price follows its order."""
    for path, value in draw.view.state_leaves:
        if is_number(value) and float(value) == old and path[-1] == name and path not in draw.overrides:
            draw.override(path, number_like(value, new))


def collect_limits(draw: Draw) -> None:
    """Other limits in comparisons that the user asks for; the outcome of every comparison is checked later."""
    said = {float(a.value) for a in draw.view.arguments if is_number(a.value) and a.is_said}
    for match in _LIMIT.finditer(draw.view.text):
        value = float(match["number"].replace(",", ""))
        if value not in said and value not in draw.numbers and _is_free(value, draw.view):
            draw.number(value, varied(value, draw.rng), "limit")


def collect_state(draw: Draw) -> None:
    """Other quantities in the state; equal values change alike, values that a text says stay."""
    changed: dict[tuple[str, float], float] = {}
    factors: dict[tuple[Path, tuple[float, float]], float] = {}
    for path, value in draw.view.state_leaves:
        field = str(path[-1])
        if not is_number(value) or value <= 0 or path in draw.overrides or has_number(float(value), draw.view.text):
            continue
        if field in COUNTERS:
            _counter(path, int(value), draw)
            continue
        if field not in STATE_QUANTITIES:
            continue
        bounds = STATE_QUANTITIES[field]
        factor = factors.setdefault((path[:-1], bounds), draw.rng.uniform(*bounds))
        new = changed.setdefault((_kind(field), float(value)), round(float(value) * factor, DIGITS.get(field, 2)))
        draw.override(path, number_like(value, new), "state")


def _kind(field: str) -> str:
    return "tire" if field.endswith("TirePressure") else field


def _counter(path: Path, value: int, draw: Draw) -> None:
    """A later start of a counter, beyond every id in use, unless an argument means it without having seen it."""
    if any(same(a.value, value) and not _is_shown(value, a, draw.view) for a in draw.view.arguments):
        return
    if value >= MIN_IDENTITY:
        new = _identity(value, draw.rng)
    else:
        new = value + draw.rng.randint(3, 60)
    draw.override(path, new, "counter")


def _is_shown(value: int, argument: Argument, view: SeedView) -> bool:
    """Whether a result before the argument's call holds the number."""
    earlier = view.trace.before(argument.turn, argument.index)
    return any(same(leaf, value) for step in earlier for _, leaf in result_leaves(step.result))


def order_kept(old_pairs: list[tuple[float, float]], thresholds: list[tuple[float, float]]) -> str:
    """In words, the first result that changed sides of a number the user names; empty if none did.

    Args:
        old_pairs: (old, new) numeric result leaves; a leaf equal to a number is no comparison.
        thresholds: (old, new) numbers in user texts.
    """
    for old, new in old_pairs:
        for limit, new_limit in thresholds:
            if _sign(old - limit) and _sign(old - limit) != _sign(new - new_limit):
                return f"{old:g} against {limit:g} became {new:g} against {new_limit:g}"
    return ""


def _sign(value: float) -> int:
    return (value > 1e-9) - (value < -1e-9)
