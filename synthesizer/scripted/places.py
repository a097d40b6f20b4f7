"""Stocks, cities, airports, currencies, travel classes and dates: values that the simulators must know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations

from synthesizer.dates import ISO, dates_in
from synthesizer.scripted.draw import Draw
from synthesizer.scripted.pools import STREETS
from synthesizer.scripted.tables import (
    AIRPORTS,
    COMPANIES,
    COMPANY_HINTS,
    CURRENCIES,
    DISTANCES,
    ROUTES,
    TICKERS,
    TIRE_SHOP,
    ZIP_CODES,
)
from synthesizer.scripted.view import SeedView
from synthesizer.values import has_word

_FREEZING_DAYS = re.compile(
    r"christmas|new year|last day|easter|thanksgiving|valentine|halloween|weekend", re.IGNORECASE
)
_WEEKDAY = re.compile(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b", re.IGNORECASE)
_CLASS_PHRASE = re.compile(r"\b(business|first)(?=[- ]class\b)|(?<=['\"])(business|first)(?=['\"])", re.IGNORECASE)
_PRICE_CLAIM = re.compile(
    r"\b(?:cost|price|fare|fee)s? (?:of|is) \$?\d|\bestimated at \$?\d|\$\d[\d,]*(?: trip)? cost\b", re.IGNORECASE
)
"""A fare that a text states: routes, dates and classes must stay."""
MAX_CITIES = 3
MAX_OPTIONS = 2000
"""Assignments tried before a draw of cities or airports gives up."""


def collect_stocks(draw: Draw) -> None:
    """Exchange every company the user names with another one of the task's market, in state, texts and arguments."""
    stocks = draw.view.config.get("TradingBot", {}).get("stocks")
    if not isinstance(stocks, dict) or any(hint in draw.view.text.lower() for hint in COMPANY_HINTS):
        return
    fixed = _listed_by_sector(draw.view) | _in_lower_case(draw.view)
    named = [symbol for symbol in stocks if _is_named(symbol, draw.view) and symbol not in fixed]
    for symbol in (symbol for symbol in named if symbol not in COMPANIES):
        draw.pick(symbol, TICKERS, "stock")
    named = [symbol for symbol in named if symbol in COMPANIES]
    others = [symbol for symbol in stocks if symbol in COMPANIES and symbol not in named and symbol not in fixed]
    draw.rng.shuffle(others)
    pairs: list[tuple[str, str]] = []
    for old, new in zip(named, others, strict=False):
        pairs += [(old, new), (new, old)]
        pairs += [(name, COMPANIES[new][0]) for name in COMPANIES[old] if draw.view.says(name)]
        pairs += [(name, COMPANIES[old][0]) for name in COMPANIES[new] if draw.view.says(name)]
        draw.aliases.add(old)
    draw.permutation(pairs, "stock")


def _is_named(symbol: str, view: SeedView) -> bool:
    return view.says(symbol) or any(view.says(name) for name in COMPANIES.get(symbol, ()))


def _in_lower_case(view: SeedView) -> frozenset[str]:
    """Symbols whose company a text also writes without a capital."""
    return frozenset(symbol for symbol, names in COMPANIES.items() if any(view.says(name.lower()) for name in names))


def _listed_by_sector(view: SeedView) -> frozenset[str]:
    """Symbols in the simulator's fixed lists that the task asks for."""
    texts = [step.result for step in view.trace.steps if step.call.name == "get_available_stocks"]
    return frozenset(symbol for symbol in COMPANIES for text in texts if symbol in text)


def collect_cities(draw: Draw) -> None:
    """Exchange the cities of a road trip so that every asked distance is known."""
    view = draw.view
    if "VehicleControlAPI" not in view.task.involved_classes:
        return
    named = [city for city in ZIP_CODES if view.says(city)]
    if not named:
        return
    by_zip = {zip_code: city for city, zip_code in ZIP_CODES.items()}
    pairs = []
    for step in view.trace.steps:
        if step.call.name == "estimate_distance":
            ends = [by_zip.get(str(value)) for value in step.arguments.values()]
            if None in ends:
                return
            pairs.append(ends)
    if not pairs or any(city not in named for ends in pairs for city in ends):
        return
    options = [choice for choice in _assignments(named) if all(_is_known(choice, *ends) for ends in pairs)]
    if options:
        draw.permutation(draw.rng.choice(options).items(), "city")


def _assignments(named: list[str]) -> Iterator[dict[str, str]]:
    """Every other choice of cities for up to three named ones."""
    if len(named) <= MAX_CITIES:
        for choice in permutations(sorted(ZIP_CODES), len(named)):
            if list(choice) != named:
                yield dict(zip(named, choice, strict=True))


def _is_known(choice: dict[str, str], start: str, end: str) -> bool:
    return frozenset((choice[start], choice[end])) in DISTANCES


def collect_airports(draw: Draw) -> None:
    """Exchange the airports of the flights so that every asked route has a fare."""
    view = draw.view
    routes = [
        (step.arguments.get("travel_from"), step.arguments.get("travel_to"))
        for step in view.trace.steps
        if step.call.name in ("get_flight_cost", "book_flight")
    ]
    codes = list(dict.fromkeys(code for route in routes for code in route))
    free = [code for code in codes if code in AIRPORTS and _is_said(code, view)]
    if not free or "list_all_airports" in view.functions() or _PRICE_CLAIM.search(view.text):
        return
    for _ in range(MAX_OPTIONS):
        choice = dict(zip(free, draw.rng.sample(sorted(AIRPORTS), len(free)), strict=True))
        ends = [(choice.get(start, start), choice.get(end, end)) for start, end in routes]
        if all(end in ROUTES for end in ends) and not (set(choice.values()) & (set(codes) - set(free))):
            break
    else:
        return
    for old, new in choice.items():
        if old == new:
            continue
        pairs = [(old, new)]
        pairs += [
            (name, AIRPORTS[new][0]) for name in AIRPORTS[old] if view.says(name) or has_word(name, view.state_text)
        ]
        draw.permutation(pairs, "airport")
        draw.aliases.add(old)


def _is_said(code: str, view: SeedView) -> bool:
    return view.says(code) or any(view.says(name) for name in AIRPORTS[code])


def collect_addresses(draw: Draw) -> None:
    """Another house and street in the same city for a destination that only the user knows."""
    for argument in draw.view.arguments:
        if argument.name != "destination" or argument.function != "set_navigation" or not argument.is_said:
            continue
        street = re.match(r"\d+ [\w ]+(?=,)", str(argument.value))
        if street and street.group() != TIRE_SHOP and draw.view.says(street.group()):
            draw.pick(street.group(), [f"{draw.rng.randint(10, 990)} {name}" for name in STREETS], "address")


def collect_currencies(draw: Draw) -> None:
    """Exchange the foreign currency of a conversion where the user writes its code."""
    for argument in draw.view.arguments:
        value = argument.value
        if argument.name not in ("base_currency", "target_currency") or value in draw.words:
            continue
        if value in CURRENCIES and draw.view.says(value):
            draw.pick(value, [code for code in CURRENCIES if code != value], "currency")


def collect_classes(draw: Draw) -> None:
    """Exchange business and first class where the user writes them as a class."""
    view = draw.view
    asked = {a.value for a in view.arguments if a.name == "travel_class"}
    said = {match.group().lower() for match in _CLASS_PHRASE.finditer(view.text)}
    if len(asked) != 1 or not asked <= said or len(said) != 1 or _PRICE_CLAIM.search(view.text):
        return
    old = asked.pop()
    new = "first" if old == "business" else "business"
    if len(re.findall(rf"\b{old}\b", view.text, re.IGNORECASE)) != len(_CLASS_PHRASE.findall(view.text)):
        return
    draw.permutation([(old, new), (old.capitalize(), new.capitalize())], "class")


def collect_dates(draw: Draw) -> None:
    """Move each asked date within its month; weekdays stay weekdays."""
    view = draw.view
    if _FREEZING_DAYS.search(view.text) or _PRICE_CLAIM.search(view.text):
        return
    spans = dates_in(view.text)
    for argument in view.arguments:
        iso = argument.value
        if not isinstance(iso, str) or not ISO.fullmatch(iso) or iso in draw.dates:
            continue
        said = [span for span in spans if span.means(iso)]
        if not said or re.search(rf"\b{int(iso[-2:])}(?:st|nd|rd|th)\b", _without(spans, view.text)):
            continue
        days = _days(int(iso[-2:]), bool(_WEEKDAY.search(view.text)))
        day = draw.rng.choice(days)
        draw.dates[iso] = f"{iso[:-2]}{day:02d}"
        draw.aliases.add(iso)
        draw.labels.append(f"date: {iso} -> {draw.dates[iso]}")


def _without(spans: tuple, text: str) -> str:
    for span in reversed(spans):
        text = text[: span.start] + " " + text[span.end :]
    return text


def _days(day: int, keep_weekday: bool) -> list[int]:
    step = 7 if keep_weekday else 1
    return [other for other in range(1, 29) if other != day and (other - day) % step == 0]
