"""Small SVG charts for report and dashboard: text in, text out, no assets. Pure.

Colours are named by CSS variables of :data:`STYLE`, so that a page can be read in the light and in the dark. Every mark
carries its values in a ``<title>``; all texts are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 40
STYLE = """
:root{color-scheme:light dark;--ink:#1d2330;--soft:#667085;--line:#d7dbe2;--paper:#fff;--panel:#f7f8fa;--band:#f0e44233;
--hard:#d55e00;--boundary:#e0a100;--mastered:#009e73;--unknown:#98a2b3;--human:#0072b2;--generated:#cc79a7;--a:#0072b2;
--b:#d55e00;--c:#009e73;--d:#cc79a7;--e:#56b4e9;--f:#e0a100}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#98a2b3;--line:#39414f;--paper:#14181f;--panel:#1c222b;
--band:#f0e44218;--human:#56b4e9;--a:#56b4e9;--b:#ff8a3d;--hard:#ff8a3d;--c:#34c79a;--mastered:#34c79a}}
svg.chart{width:100%;height:auto;font:11px system-ui,sans-serif}svg.chart text{fill:var(--soft)}
svg.chart .grid{stroke:var(--line);stroke-width:1}svg.chart .axis{stroke:var(--soft)}
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: points (x, y) in order of x; a missing y is ``None`` and breaks the line."""

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Where data lie on the drawing.

    Attributes:
        x_low, x_high, y_low, y_high: data ranges; never empty.
    """

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Horizontal place, pixels."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - self.x_low) / (self.x_high - self.x_low), 2)

    def y(self, value: float) -> float:
        """Vertical place, pixels from the top."""
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.y_low) / (self.y_high - self.y_low), 2)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values across a range.

    >>> ticks(0, 1), ticks(0, 37)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 10.0, 20.0, 30.0])
    """
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / size - 1e-9)
    return [round(i * size, 10) for i in range(first, math.floor(high / size + 1e-9) + 1)]


def label(value: float) -> str:
    """A number on an axis.

    >>> label(3.0), label(0.25)
    ('3', '0.25')
    """
    return f"{value:g}"


def axes(frame: Frame, x_title: str, y_title: str, x_ticks: Sequence[tuple[float, str]] | None = None) -> str:
    """Grid, ticks and titles."""
    parts = []
    for value in ticks(frame.y_low, frame.y_high):
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{label(value)}</text>'
        )
    for value, text in x_ticks or [(v, label(v)) for v in ticks(frame.x_low, frame.x_high, 9)]:
        parts.append(
            f'<text x="{frame.x(value)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{escape(text)}</text>'
        )
    base = frame.y(frame.y_low)
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_title)}</text>')
    parts.append(
        f'<text transform="translate(12 {HEIGHT / 2 - 10}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>'
    )
    return "".join(parts)


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Coloured names above a chart, as HTML."""
    marks = (f'<span><i style="background:var(--{colour})"></i>{escape(name)}</span>' for name, colour in entries)
    return f'<div class="legend">{"".join(marks)}</div>'


def drawing(name: str, body: str) -> str:
    """One SVG with an accessible name."""
    return (
        f'<svg class="chart" role="img" aria-label="{escape(name)}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def nothing(name: str) -> str:
    """What stands in place of a chart without data."""
    return f'<p class="none">{escape(name)}: nothing recorded yet.</p>'


def band(frame: Frame, low: float, high: float) -> str:
    """A horizontal band, for the boundary window."""
    top, bottom = frame.y(min(high, frame.y_high)), frame.y(max(low, frame.y_low))
    width, height = WIDTH - LEFT - RIGHT, round(bottom - top, 2)
    return f'<rect x="{LEFT}" y="{top}" width="{width}" height="{height}" fill="var(--band)"/>'


def spread(values: Sequence[float], least: float) -> tuple[float, float]:
    """A range that holds all values and is at least so wide."""
    low, high = min(values), max(values)
    return (low, high) if high - low >= least else (low, low + least)


def line_chart(
    name: str,
    series: Sequence[Series],
    x_title: str,
    y_title: str,
    y_high: float | None = None,
    window: tuple[float, float] | None = None,
) -> str:
    """Lines with a mark at each point; y starts at 0."""
    known = [(x, y) for line in series for x, y in line.points if y is not None and math.isfinite(y)]
    if not known:
        return nothing(name)
    top = y_high if y_high is not None else max(max(y for _, y in known) * 1.08, 1e-9)
    frame = Frame(*spread([x for x, _ in known], 1.0), 0.0, top)
    body = (band(frame, *window) if window else "") + axes(frame, x_title, y_title)
    for line in series:
        body += path_of(line, frame)
        for x, y in line.points:
            if y is not None and math.isfinite(y):
                body += (
                    f'<circle cx="{frame.x(x)}" cy="{frame.y(y)}" r="2.6" fill="var(--{line.colour})">'
                    f"<title>{escape(line.name)}: {label(x)}, {y:.4g}</title></circle>"
                )
    return legend([(line.name, line.colour) for line in series if line.points]) + drawing(name, body)


def path_of(line: Series, frame: Frame) -> str:
    """The polyline of a series, lifted over gaps."""
    moves, pen_down = [], False
    for x, y in line.points:
        if y is None or not math.isfinite(y):
            pen_down = False
            continue
        moves.append(f"{'L' if pen_down else 'M'}{frame.x(x)} {frame.y(y)}")
        pen_down = True
    return f'<path d="{" ".join(moves)}" fill="none" stroke="var(--{line.colour})" stroke-width="1.8"/>'


def stacked_bars(
    name: str, labels: Sequence[str], stacks: Sequence[tuple[str, str, Sequence[float]]], x_title: str, y_title: str
) -> str:
    """One bar a label, cut into stacks.

    Args:
        name: accessible name.
        labels: text under each bar.
        stacks: (name, colour, one value a bar), bottom first.
        x_title, y_title: axis titles.
    """
    totals = [sum(values[i] for _, _, values in stacks) for i in range(len(labels))]
    if not labels or not any(totals):
        return nothing(name)
    frame = Frame(-0.5, len(labels) - 0.5, 0.0, max(totals) * 1.05)
    every = max(1, len(labels) // 12)
    body = axes(frame, x_title, y_title, [(i, text) for i, text in enumerate(labels) if i % every == 0])
    half = 0.36 * (WIDTH - LEFT - RIGHT) / len(labels)
    for i, text in enumerate(labels):
        below = 0.0
        for part, colour, values in stacks:
            if values[i]:
                top, bottom = frame.y(below + values[i]), frame.y(below)
                body += (
                    f'<rect x="{frame.x(i) - half:.2f}" y="{top}" width="{2 * half:.2f}" height="{bottom - top:.2f}" '
                    f'fill="var(--{colour})"><title>{escape(text)}, {escape(part)}: {values[i]:g}</title></rect>'
                )
                below += values[i]
    return legend([(part, colour) for part, colour, _ in stacks]) + drawing(name, body)


def strip_chart(
    name: str, columns: Mapping[str, Sequence[float]], x_title: str, y_title: str, window: tuple[float, float]
) -> str:
    """Every value as a dot in its column, the column's mean as a bar; y from 0 to 1 with a shaded window."""
    if not any(columns.values()):
        return nothing(name)
    frame = Frame(-0.5, len(columns) - 0.5, 0.0, 1.0)
    body = band(frame, *window) + axes(frame, x_title, y_title, [(i, text) for i, text in enumerate(columns)])
    for i, (text, values) in enumerate(columns.items()):
        for j, value in enumerate(sorted(values)):
            place = frame.x(i + 0.5 * (j / len(values) - 0.5) if len(values) > 1 else i)
            body += (
                f'<circle cx="{place}" cy="{frame.y(value)}" r="3" fill="var(--generated)" fill-opacity="0.75">'
                f"<title>{escape(text)}: {value:.3f}</title></circle>"
            )
        if values:
            y, middle = frame.y(math.fsum(values) / len(values)), frame.x(i)
            body += (
                f'<line class="mean" x1="{middle - 16}" x2="{middle + 16}" y1="{y}" y2="{y}" stroke="var(--ink)" '
                'stroke-width="2"/>'
            )
    return drawing(name, body)
