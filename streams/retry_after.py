"""How long an HTTP server asks its clients to wait."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_S = 30.0
"""A server that asks for more is asked again after this."""


def seconds_of(retry_after: str, date: str) -> float:
    """What a Retry-After header asks for, seconds, 0 to ``LONGEST_S``; 0 if it says nothing, or in a form that is unknown.

    Args:
        retry_after: seconds, also with a fraction, or an HTTP date.
        date: the server's own time as an HTTP date; this machine's counts if it gives none.

    >>> seconds_of("2.5", ""), seconds_of("Tue, 01 Dec 2026 10:00:09 GMT", "Tue, 01 Dec 2026 10:00:00 GMT"), seconds_of("soon", "")
    (2.5, 9.0, 0.0)
    """
    try:
        seconds = float(retry_after)
    except ValueError:
        until, now = _time(retry_after), _time(date) or datetime.now(UTC)
        seconds = (until - now).total_seconds() if until else 0.0
    return min(LONGEST_S, max(0.0, seconds)) if math.isfinite(seconds) else 0.0


def _time(date: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
