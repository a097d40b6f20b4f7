"""What a person sees of a run: a live panel on a terminal, one line a step elsewhere, a summary at the end; and ``rods status``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.index import RunIndex
from analysis.summary import fork_text, reward_by_epoch, summary_of
from analysis.yields import synthesis_of
from commands.folder import find_run
from commands.options import AsJson, RunName, Runs, columns, console

ZONE_STYLE = {"hard": "red", "boundary": "yellow", "mastered": "green", "unknown": "dim"}


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash for none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def num_epochs(facts: RunIndex) -> int:
    """Epochs of the stages that have begun."""
    return max((stage.first_epoch + stage.num_epochs for stage in facts.pool.stages.values()), default=0)


def batch_reward(facts: RunIndex) -> str:
    """Mean progress reward of the last completed step."""
    return number(facts.last_step.metrics.get("reward_mean") if facts.last_step else None)


def pool_text(facts: RunIndex) -> str:
    """Pool size by origin."""
    if facts.pool.last_epoch < 0:
        return "not planned yet"
    plan = facts.pool.epochs[facts.pool.last_epoch]
    size = f"{plan.num_human} human + {plan.num_generated} generated, {plan.num_queued} waiting"
    return f"{size}, {facts.counts['TaskRetired']} retired"


def panel(facts: RunIndex, lag: int | None, activity: str) -> Panel:
    """The live panel."""
    pool, counts, zones = facts.pool, facts.counts, facts.zones()
    grid = Table.grid(padding=(0, 2))
    step = facts.last_step.step if facts.last_step else 0
    plan = pool.epochs.get(pool.last_epoch)
    if plan is not None:
        done = max(0, min(plan.num_steps, step - plan.first_step + 1))
        bar = ProgressBar(plan.num_steps, done, width=40)
        said = f"step {step}, {done} of {plan.num_steps} in this epoch"
        grid.add_row(f"epoch {plan.epoch + 1} of {num_epochs(facts)}", bar, said)
    grid.add_row("reward", batch_reward(facts), activity)
    shown = [(f"{zones[zone]} {zone}  ", style) for zone, style in ZONE_STYLE.items() if zones.get(zone)]
    grid.add_row("zones", Text.assemble(*shown), "")
    grid.add_row("pool", pool_text(facts), "")
    failed = ", ".join(f"{name} {count}" for name, count in facts.failures.most_common(3))
    ended = (
        f"{counts['TaskSynthesized']} variants, {counts['SynthesisFailed']} failed{f' ({failed})' if failed else ''}"
    )
    grid.add_row("synthesis", f"{counts['BoundaryDetected']} signals, {ended}", "")
    grid.add_row("lag", "-" if lag is None else f"{lag} records", f"{counts['DeadLettered']} dead letters")
    return Panel(Group(grid), title=f"run {pool.run_id or '(starting)'}", border_style="blue")


def step_line(facts: RunIndex) -> str:
    """One line about the last completed step."""
    step = facts.last_step
    zones = ", ".join(f"{count} {zone}" for zone, count in sorted(facts.zones().items()))
    epoch, seconds = f"{step.epoch + 1}/{num_epochs(facts)}", sum(step.timings_ms.values()) / 1000
    return (
        f"step {step.step:3d}  epoch {epoch}  reward {batch_reward(facts)}  zones {zones}  pool {pool_text(facts)}  "
        f"{seconds:.1f} s"
    )


class LiveView:
    """Shows a run as it goes; a context manager.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._shown_step = 0

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._console.print(sentence, highlight=False, soft_wrap=True)

    def show(self, facts: RunIndex, lag: int | None, activity: str = "") -> None:
        """Bring the view up to date."""
        if self._live is not None:
            self._live.update(panel(facts, lag, activity))
        elif facts.last_step is not None and facts.last_step.step > self._shown_step:
            self._shown_step = facts.last_step.step
            self.say(step_line(facts))


def epochs_table(facts: RunIndex) -> Table:
    """One row an epoch: reward of the human seeds, injections, retirements."""
    table = columns(title="epochs")
    for heading in ("epoch", "human reward", "human", "generated", "injected", "retired", "waiting"):
        table.add_column(heading, justify="right")
    for epoch, reward, plan in reward_by_epoch(facts):
        counts = (plan.num_human, plan.num_generated, len(plan.injected), len(plan.retired), plan.num_queued)
        table.add_row(str(epoch + 1), number(reward), *map(str, counts))
    return table


def summary_table(summary: dict) -> Table:
    """The figures of ``summary.json`` for people."""
    table = Table(box=None, show_header=False, pad_edge=False)
    conservation, zones = summary["conservation"], summary["zone_variance"]
    ends = [
        f"{number(summary[f'{key}_first'])} -> {number(summary[f'{key}_last'])}" for key in ("reward", "heldout_reward")
    ]
    rows = [
        ("human seeds, mean progress reward", ends[0]),
        ("held-out tasks, mean progress reward", ends[1]),
        ("steps, epochs", f"{summary['steps']}, {summary['epochs']}"),
        (
            "signals -> variants, failed",
            f"{summary['boundary_signals']} -> {summary['tasks_synthesized']}, {summary['synthesis_failed']}",
        ),
        (
            "variants injected, retired",
            f"{summary['tasks_injected']}, {summary['tasks_retired']} {summary['retire_reasons'] or ''}",
        ),
        ("first reward of injected variants", number(summary["injected_first_reward"])),
        ("reward variance by zone", ", ".join(f"{zone} {number(v)}" for zone, v in zones.items())),
        ("conservation", f"{conservation['missing']} missing, {conservation['duplicate']} duplicate"),
        ("weights", summary["weights_digest"][:16]),
    ]
    if summary["fork"]:
        rows.append(("forked", fork_text(summary["fork"])))
    for row in rows:
        table.add_row(*row)
    return table


def synthesis_table(section: dict) -> Table:
    """The figures of synthesis that are there, for people."""
    table = Table(box=None, show_header=False, pad_edge=False, title="synthesis", title_justify="left")
    for key, value in section.items():
        if value not in (None, {}, [], 0, 0.0):
            table.add_row(key.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    return table


def status(name: RunName = None, runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """What a run has come to, from its archive; works while it goes on."""
    folder = find_run(name, runs)
    facts = folder.facts()
    summary, section = summary_of(facts), synthesis_of(facts)
    if as_json:
        print(json.dumps({**summary, "synthesis": section}))
        return
    end = summary["outcome"] if facts.finished else "not finished"
    console.print(panel(facts, None, "finished" if end == "completed" else end))
    console.print(epochs_table(facts))
    console.print(summary_table(summary))
    console.print(synthesis_table(section))
