"""``rods report``: one self-contained page about a run. Pure but for the last function.

The page holds the plots the method is judged by: pool composition, first rewards of injected variants, reward variance
by zone, reward curves, synthesis yield and retirements. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from analysis.charts import STYLE, Series, line_chart, stacked_bars, strip_chart
from analysis.index import RunIndex
from analysis.series import ZONES, EpochRow, epoch_rows, reward_by_step, variance_table
from analysis.summary import fork_text, summary_of, tests_of
from commands.folder import find_run
from commands.options import RunName, Runs, console

PAGE_STYLE = (
    STYLE
    + """
body{margin:0 auto;max-width:1400px;padding:20px;background:var(--paper);color:var(--ink);
font:14px/1.5 system-ui,sans-serif}
h1{font-size:22px;margin:0}h2{font-size:15px;margin:0 0 6px}p.lead{color:var(--soft);margin:2px 0 14px}
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:16px}
section{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:14px;min-width:0;overflow-x:auto}
section.wide{grid-column:1/-1}main+main,div+main{margin-top:16px}div.half{max-width:640px}
section>p{color:var(--soft);margin:6px 0 0;font-size:12px}p.none{padding:40px 0;text-align:center}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:12px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
table{border-collapse:collapse;width:100%;font-size:12.5px}th{text-align:left;font-weight:600;color:var(--soft)}
td,th{padding:3px 10px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right}td.n{
font-variant-numeric:tabular-nums}.tiles{display:flex;flex-wrap:wrap;gap:10px;margin-bottom:16px}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:8px 14px}
.tile b{display:block;font-size:20px}.tile span{color:var(--soft);font-size:12px}code{font-size:12px}
"""
)
NUMERIC = ' class="n"'
REASON_COLOURS = ("b", "f", "c", "a", "d", "e")


def figure(value: float | int | None, digits: int = 3) -> str:
    """A number for people; a dash for none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; columns of numbers stand to the right."""
    held = [tuple(row) for row in rows]
    numeric = [bool(held) and is_number(value) for value in (held[0] if held else headings)]
    head = "".join(
        f"<th{NUMERIC if right else ''}>{escape(text)}</th>" for text, right in zip(headings, numeric, strict=True)
    )
    body = ""
    for row in held:
        cells = (f'<td class="n">{figure(v)}</td>' if is_number(v) else f"<td>{escape(str(v))}</td>" for v in row)
        body += f"<tr>{''.join(cells)}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def is_number(value: object) -> bool:
    """Whether a cell holds a number, or none where one belongs."""
    return value is None or isinstance(value, int | float)


def section(title: str, body: str, note: str = "", name: str = "", wide: bool = False) -> str:
    """One panel; ``name`` becomes its id, a wide one fills its row."""
    anchor = (f' id="{escape(name)}"' if name else "") + (' class="wide"' if wide else "")
    return f"<section{anchor}><h2>{escape(title)}</h2>{body}{f'<p>{escape(note)}</p>' if note else ''}</section>"


def labels_of(rows: Sequence[EpochRow]) -> list[str]:
    """Epochs as people count them, from 1."""
    return [str(row.epoch + 1) for row in rows]


def composition_chart(rows: Sequence[EpochRow]) -> str:
    """Tasks in training and waiting, by origin, over epochs."""
    stacks = [
        ("human", "human", [row.num_human for row in rows]),
        ("generated", "generated", [row.num_generated for row in rows]),
        ("waiting", "unknown", [row.num_queued for row in rows]),
    ]
    return stacked_bars("Pool composition by origin", labels_of(rows), stacks, "epoch", "tasks")


def zone_chart(rows: Sequence[EpochRow], origin: str | None = None) -> str:
    """Tasks in training by zone over epochs; of one origin, or of both."""

    def count(row: EpochRow, zone: str) -> int:
        return sum(n for (made_by, of), n in row.zones.items() if of == zone and origin in (None, made_by))

    stacks = [(zone, zone, [count(row, zone) for row in rows]) for zone in ZONES]
    return stacked_bars(
        f"Pool by zone{f', {origin} tasks' if origin else ''}", labels_of(rows), stacks, "epoch", "tasks"
    )


def reward_chart(facts: RunIndex, rows: Sequence[EpochRow]) -> str:
    """Mean progress reward in training by origin, and on the held-out tasks, over steps."""
    ends = {epoch: plan.first_step + plan.num_steps - 1 for epoch, plan in facts.pool.epochs.items()}
    tests = [(test.step, test.mean_reward) for test in tests_of(facts)]
    return line_chart(
        "Reward curves",
        [
            Series("human seeds, epoch mean", [(ends[row.epoch], row.human_reward) for row in rows], "human"),
            Series(
                "generated tasks, epoch mean", [(ends[row.epoch], row.generated_reward) for row in rows], "generated"
            ),
            Series("held-out tasks", tests, "c"),
        ],
        "training step",
        "mean progress reward",
        y_high=1.0,
    )


def zone_reward_chart(facts: RunIndex) -> str:
    """Mean reward of each step's batch, whole and by zone."""
    steps = reward_by_step(facts.pool)
    lines = [Series("batch", [(step, value) for step, value, _ in steps], "a")]
    lines += [Series(zone, [(step, zones.get(zone)) for step, _, zones in steps], zone) for zone in ZONES[:3]]
    config = facts.pool.config
    return line_chart(
        "Reward by zone", lines, "training step", "mean progress reward", 1.0, (config.alpha_low, config.alpha_high)
    )


def first_reward_chart(facts: RunIndex, rows: Sequence[EpochRow]) -> str:
    """Mean reward of each injected variant when it was first played."""
    columns = {str(row.epoch + 1): row.first_means for row in rows if row.num_injected}
    window = (facts.pool.config.alpha_low, facts.pool.config.alpha_high)
    return strip_chart(
        "First rewards of injected variants", columns, "epoch of injection", "mean progress reward", window
    )


def variance_section(facts: RunIndex) -> str:
    """Bars of the mean reward variance by zone and the boundary ratio."""
    means, counts, ratio = variance_table(facts.pool)
    zones = [zone for zone in ZONES if zone in means]
    stacks = [(zone, zone, [means[z] if z == zone else 0.0 for z in zones]) for zone in zones]
    chart = stacked_bars("Reward variance by zone", zones, stacks, "zone of the observation", "mean variance")
    facts_table = table(
        ("zone", "observations", "mean variance"), [(zone, counts[zone], means[zone]) for zone in zones]
    )
    note = f"Boundary variance over that of all others: {figure(ratio, 2)}. Variance is what the update learns from."
    return section("Reward variance by zone", chart + facts_table, note, "variance")


def yield_chart(rows: Sequence[EpochRow]) -> str:
    """Boundary signals of each epoch and how they ended."""
    stacks = [
        ("variant made", "c", [row.num_variants for row in rows]),
        ("failed", "b", [row.num_failed for row in rows]),
        ("not answered", "unknown", [row.num_open for row in rows]),
    ]
    return stacked_bars("Synthesis yield", labels_of(rows), stacks, "epoch", "boundary signals")


def retirement_chart(rows: Sequence[EpochRow]) -> str:
    """Tasks that left, by reason, over epochs."""
    reasons = sorted({reason for row in rows for reason in row.retired})
    stacks = [
        (
            reason.replace("_", " "),
            REASON_COLOURS[i % len(REASON_COLOURS)],
            [row.retired.get(reason, 0) for row in rows],
        )
        for i, reason in enumerate(reasons)
    ]
    return stacked_bars("Retirements by reason", labels_of(rows), stacks, "epoch", "tasks retired")


def failure_table(facts: RunIndex) -> str:
    """Failed signals and refused candidates by type, most frequent first."""
    failed, refused = facts.failures, facts.rejections
    names = sorted({*failed, *refused}, key=lambda name: (-failed[name] - refused[name], name))
    return table(
        ("type", "signals failed", "candidates refused"), [(name, failed[name], refused[name]) for name in names]
    )


def tiles(summary: dict) -> str:
    """The figures one looks at first."""
    shown = [
        ("human seeds, reward", f"{figure(summary['reward_first'])} → {figure(summary['reward_last'])}"),
        ("held-out, reward", f"{figure(summary['heldout_reward_first'])} → {figure(summary['heldout_reward_last'])}"),
        ("steps / epochs", f"{figure(summary['steps'])} / {figure(summary['epochs'])}"),
        ("signals → variants", f"{figure(summary['boundary_signals'])} → {figure(summary['tasks_synthesized'])}"),
        ("injected / retired", f"{figure(summary['tasks_injected'])} / {figure(summary['tasks_retired'])}"),
        ("missing / duplicate", f"{summary['conservation']['missing']} / {summary['conservation']['duplicate']}"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in shown)
        + "</div>"
    )


def epochs_section(rows: Sequence[EpochRow]) -> str:
    """One row an epoch."""
    headings = (
        "epoch",
        "human reward",
        "generated reward",
        "human",
        "generated",
        "injected",
        "retired",
        "waiting",
        "signals",
        "variants",
        "failed",
    )
    body = table(
        headings,
        [
            (
                row.epoch + 1,
                row.human_reward,
                row.generated_reward,
                row.num_human,
                row.num_generated,
                row.num_injected,
                sum(row.retired.values()),
                row.num_queued,
                row.num_signals,
                row.num_variants,
                row.num_failed,
            )
            for row in rows
        ],
    )
    return section("Epochs", body, name="epochs", wide=True)


def facts_section(facts: RunIndex, summary: dict) -> str:
    """What is needed to repeat the run."""
    started = facts.started
    rows: list[tuple[str, object]] = [("run", summary["run_id"]), ("outcome", summary["outcome"])]
    if summary["fork"]:
        rows.append(("forked", fork_text(summary["fork"])))
    if started is not None:
        rows += [
            ("seed", str(started.seed)),
            ("initial weights", started.weights_digest),
            ("tokenizer", started.tokenizer_hash),
            ("template", started.template_hash),
            ("tool schemas", started.tool_schema_hash),
        ]
        rows += [(f"version of {name}", value) for name, value in sorted(started.versions.items())]
    rows += [("final weights", summary["weights_digest"]), ("dead letters", str(summary["dead_letters"]))]
    return section("Run facts", table(("fact", "value"), rows), name="facts")


def config_section(facts: RunIndex) -> str:
    """The recorded configuration; client settings of the broker are never part of it."""
    if facts.started is None:
        return ""
    text = json.dumps(json.loads(facts.started.config_json), indent=2)
    return section(
        "Configuration", f"<details><summary>as recorded in RunStarted</summary><pre>{escape(text)}</pre></details>"
    )


def panels(facts: RunIndex) -> str:
    """Every chart of a run as panels; report and dashboard show the same."""
    rows = epoch_rows(facts)
    return "".join(
        [
            section(
                "Reward curves",
                reward_chart(facts, rows),
                "Progress reward: share of turns solved, K rollouts a task.",
                "rewards",
            ),
            section(
                "Pool composition",
                composition_chart(rows),
                "Tasks of each epoch's plan, and variants that wait.",
                "composition",
            ),
            section("Pool by zone", zone_chart(rows), "Zone of the last observation up to the epoch's end.", "zones"),
            section("Generated tasks by zone", zone_chart(rows, "generated"), name="generated-zones"),
            section(
                "Reward by zone", zone_reward_chart(facts), "The shaded band is the boundary window.", "zone-rewards"
            ),
            section(
                "First rewards of injected variants",
                first_reward_chart(facts, rows),
                "One dot a variant, a bar for the mean; inside the band a variant arrived at the boundary.",
                "first-rewards",
            ),
            variance_section(facts),
            section("Synthesis yield", yield_chart(rows) + failure_table(facts), name="yield"),
            section("Retirements", retirement_chart(rows), name="retirements"),
            epochs_section(rows),
        ]
    )


def page(title: str, lead: str, body: str, script: str = "") -> str:
    """A whole HTML document without anything from elsewhere."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{PAGE_STYLE}</style></head>'
        f'<body><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{body}{script}</body></html>'
    )


def report_html(facts: RunIndex) -> str:
    """The report of a run, from its facts alone: the same facts give the same bytes."""
    summary = summary_of(facts)
    lead = (
        f"{summary['outcome']}; {figure(summary['tasks_seeded'])} human tasks, {figure(summary['steps'])} steps, "
        f"{figure(summary['tasks_synthesized'])} variants made at the capability boundary"
        + (f"; forked: {fork_text(summary['fork'])}" if summary["fork"] else "")
    )
    body = tiles(summary) + f"<main>{panels(facts)}{facts_section(facts, summary)}{config_section(facts)}</main>"
    return page(f"Run {summary['run_id']}", lead, body)


def report(
    name: RunName = None,
    runs: Runs = Path("runs"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file; report.html in the run folder if not given.")
    ] = None,
) -> None:
    """One self-contained page with the plots and tables of a run."""
    folder = find_run(name, runs)
    path = output or folder.report_file
    path.write_text(report_html(folder.facts()))
    console.print(f"report: {path}", highlight=False, soft_wrap=True)
