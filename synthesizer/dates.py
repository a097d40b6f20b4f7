"""Dates as people write them: finds them in text and writes another day the same way. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH = "|".join(f"{month}|{month[:3]}\\.?|{month[:4]}\\.?" for month in MONTHS)
_DAY = r"(?P<day>[0-3]?\d)(?P<suffix>st|nd|rd|th)?"
_PATTERNS = (
    re.compile(r"(?<![\w-])(?P<year>(?:19|20)\d\d)-(?P<month_number>\d\d)-(?P<day>\d\d)(?P<suffix>)(?![\w-])"),
    re.compile(
        rf"\b(?P<month>{_MONTH})\s+(?:the\s+)?{_DAY}(?!\d)(?:(?:\s*,\s*|\s+)(?:in\s+)?(?P<year>(?:19|20)\d\d)(?!\d))?",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b{_DAY}\s+(?:day\s+)?(?:of\s+)?(?P<month>{_MONTH})\b"
        r"(?:(?:\s*,\s*|\s+)(?:in\s+)?(?P<year>(?:19|20)\d\d)(?!\d))?",
        re.IGNORECASE,
    ),
)
ISO = re.compile(r"(?:19|20)\d\d-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class DateSpan:
    """One date in a text.

    Attributes:
        start: First character.
        end: One past the last character.
        year: Year, 0 where the text leaves it out.
        month: 1 to 12.
        day: 1 to 31.
        day_start: First character of the day number.
        day_end: One past the day number and its suffix.
        has_suffix: Whether the day is written like 1st.
    """

    start: int
    end: int
    year: int
    month: int
    day: int
    day_start: int
    day_end: int
    has_suffix: bool

    def means(self, iso: str) -> bool:
        """Whether this is the day of an ISO date."""
        year, month, day = (int(part) for part in iso.split("-"))
        return (self.month, self.day) == (month, day) and self.year in (0, year)


@lru_cache(maxsize=4096)
def dates_in(text: str) -> tuple[DateSpan, ...]:
    """Every date with at least month and day, in order, without overlaps."""
    found: list[DateSpan] = []
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            span = _span(match)
            if 1 <= span.day <= 31 and 1 <= span.month <= 12 and not any(_overlap(span, other) for other in found):
                found.append(span)
    return tuple(sorted(found, key=lambda span: span.start))


def _span(match: re.Match[str]) -> DateSpan:
    groups = match.groupdict()
    month = int(groups["month_number"]) if groups.get("month_number") else _month_number(groups["month"])
    suffix = groups["suffix"] or ""
    day_end = match.end("suffix") if suffix else match.end("day")
    return DateSpan(
        match.start(),
        match.end(),
        int(groups["year"] or 0),
        month,
        int(groups["day"]),
        match.start("day"),
        day_end,
        bool(suffix),
    )


def _month_number(word: str) -> int:
    start = word.lower().rstrip(".")[:3]
    return next(index for index, month in enumerate(MONTHS, 1) if month.startswith(start))


def _overlap(left: DateSpan, right: DateSpan) -> bool:
    return left.start < right.end and right.start < left.end


def with_day(text: str, span: DateSpan, day: int) -> str:
    """The date's own words with another day of the same month."""
    old = text[span.day_start : span.day_end]
    width = 2 if len(old) == 2 and old.isdigit() and old.startswith("0") or _is_iso(text, span) else 1
    number = f"{day:0{width}d}" + (_suffix(day) if span.has_suffix else "")
    return text[span.start : span.day_start] + number + text[span.day_end : span.end]


def _is_iso(text: str, span: DateSpan) -> bool:
    return ISO.fullmatch(text[span.start : span.end]) is not None


def _suffix(day: int) -> str:
    if 10 < day % 100 < 14:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def mentions_date(iso: str, text: str) -> bool:
    """Whether a text names the day of an ISO date."""
    return any(span.means(iso) for span in dates_in(text))
