"""Draws the lineage of one task: its human ancestor on the left, each generation of variants a column further. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from analysis.charts import Series, line_chart
from analysis.series import family
from streams.pool.pool import Pool
from streams.pool.rows import PoolRow

COLUMN, ROW, RADIUS, MARGIN = 260, 26, 6, 20
MOST_CHARS = 24


def short(task_id: str) -> str:
    """The end of a long id, which tells variants apart.

    >>> short("multi_turn_base_12~0123456789abcdef"), short("a")
    ('…base_12~0123456789abcdef', 'a')
    """
    return task_id if len(task_id) <= MOST_CHARS else "…" + task_id[-MOST_CHARS:]


def number(value: float | None) -> str:
    """A mean reward, or a dash."""
    return "–" if value is None else f"{value:.2f}"


def places(rows: Sequence[PoolRow]) -> dict[str, tuple[int, int]]:
    """Pixel centre of each task: a column a generation, tasks of a column below each other."""
    counts: dict[int, int] = {}
    found = {}
    for row in rows:
        index = counts.setdefault(row.generation, 0)
        counts[row.generation] += 1
        found[row.task_id] = (MARGIN + COLUMN * row.generation, MARGIN + ROW * index)
    return found


def tree(rows: Sequence[PoolRow]) -> str:
    """The SVG of a family."""
    where = places(rows)
    width = MARGIN + COLUMN * (1 + max(row.generation for row in rows))
    height = 2 * MARGIN + max(y for _, y in where.values())
    body = ""
    for row in rows:
        if row.parent_task_id in where:
            (x0, y0), (x1, y1) = where[row.parent_task_id], where[row.task_id]
            curve = f"M{x0} {y0}C{x0 + COLUMN // 2} {y0} {x1 - COLUMN // 2} {y1} {x1} {y1}"
            body += f'<path class="edge" d="{curve}" fill="none" stroke="var(--line)"/>'
    for row in rows:
        x, y = where[row.task_id]
        opacity = ' opacity="0.45"' if row.state == "retired" else ""
        state = f"{row.state} ({row.reason})" if row.reason else row.state
        body += (
            f'<g class="node"{opacity}><circle cx="{x}" cy="{y}" r="{RADIUS}" fill="var(--{escape(row.zone)})"/>'
            f'<text x="{x + 11}" y="{y + 4}">{escape(short(row.task_id))} {number(row.last_mean)}</text>'
            f"<title>{escape(row.task_id)}: {escape(state)}, reward {number(row.first_mean)} then "
            f"{number(row.last_mean)}, {row.num_observations} observations</title></g>"
        )
    return (
        f'<svg class="chart" role="img" aria-label="Lineage" viewBox="0 0 {width} {height}" '
        f'style="max-width:{width}px" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def lineage_html(pool: Pool, task_id: str) -> str:
    """The lineage of a task and its rewards over steps; says so when the task is unknown."""
    rows = family(pool, task_id)
    if not rows:
        return f'<p class="none">no task {escape(task_id)} in this run</p>'
    seen = pool.observations.get(task_id, ())
    chart = line_chart(
        "Rewards of the task",
        [Series(short(task_id), [(e.step, e.mean) for e in seen], "human")],
        "training step",
        "mean progress reward",
        1.0,
        (pool.config.alpha_low, pool.config.alpha_high),
    )
    return (
        f"<p>{escape(task_id)}: {len(rows)} tasks in its family, "
        f"{sum(row.state == 'active' for row in rows)} in training; colour is the zone, pale is retired</p>"
        + tree(rows)
        + f'<div class="half">{chart}</div>'
    )
