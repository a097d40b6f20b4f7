"""What a person sees of a run: a live panel on a terminal, one line a step elsewhere, a summary at the end."""

from __future__ import annotations

import math
from collections import Counter
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.index import RunIndex
from analysis.summary import fork_text, reward_by_epoch
from streams.pool.pool import Pool

ZONE_STYLE = {"hard": "red", "boundary": "yellow", "mastered": "green", "unknown": "dim"}


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash for none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def zones_text(zones: Counter) -> Text:
    """Zone counts in their colours."""
    text = Text()
    for zone, style in ZONE_STYLE.items():
        if zones.get(zone):
            text.append(f"{zones[zone]} {zone}  ", style=style)
    return text


def num_epochs(pool: Pool) -> int:
    """Epochs of the stages that have begun."""
    return max((stage.first_epoch + stage.num_epochs for stage in pool.stages.values()), default=0)


def batch_reward(facts: RunIndex) -> float | None:
    """Mean progress reward of the last completed step."""
    return facts.last_step.metrics.get("reward_mean") if facts.last_step else None


def outcomes_text(facts: RunIndex) -> str:
    """Signals and how they ended."""
    failed = ", ".join(f"{name} {count}" for name, count in facts.failures.most_common(3))
    return (
        f"{facts.counts['BoundaryDetected']} signals, {facts.counts['TaskSynthesized']} variants, "
        f"{facts.counts['SynthesisFailed']} failed{f' ({failed})' if failed else ''}"
    )


def pool_text(facts: RunIndex) -> str:
    """Pool size by origin."""
    if facts.pool.last_epoch < 0:
        return "not planned yet"
    plan = facts.pool.epochs[facts.pool.last_epoch]
    return (
        f"{plan.num_human} human + {plan.num_generated} generated, {plan.num_queued} waiting, "
        f"{facts.counts['TaskRetired']} retired"
    )


def panel(facts: RunIndex, lag: int | None, activity: str) -> Panel:
    """The live panel."""
    pool = facts.pool
    grid = Table.grid(padding=(0, 2))
    step = facts.last_step.step if facts.last_step else 0
    plan = pool.epochs.get(pool.last_epoch)
    if plan is not None:
        done = max(0, min(plan.num_steps, step - plan.first_step + 1))
        grid.add_row(
            f"epoch {plan.epoch + 1} of {num_epochs(pool)}",
            ProgressBar(plan.num_steps, done, width=40),
            f"step {step}, {done} of {plan.num_steps} in this epoch",
        )
    grid.add_row("reward", number(batch_reward(facts)), activity)
    grid.add_row("zones", zones_text(facts.zones()), "")
    grid.add_row("pool", pool_text(facts), "")
    grid.add_row("synthesis", outcomes_text(facts), "")
    grid.add_row("lag", "-" if lag is None else f"{lag} records", f"{facts.counts['DeadLettered']} dead letters")
    return Panel(Group(grid), title=f"run {pool.run_id or '(starting)'}", border_style="blue")


def step_line(facts: RunIndex) -> str:
    """One line about the last completed step."""
    step = facts.last_step
    seconds = sum(step.timings_ms.values()) / 1000
    zones = ", ".join(f"{count} {zone}" for zone, count in sorted(facts.zones().items()))
    return (
        f"step {step.step:3d}  epoch {step.epoch + 1}/{num_epochs(facts.pool)}  reward {number(batch_reward(facts))}  "
        f"zones {zones}  pool {pool_text(facts)}  {seconds:.1f} s"
    )


class View:
    """Shows a run as it goes; a context manager.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._shown_step = 0

    def __enter__(self) -> View:
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
    table = Table(title="epochs", title_justify="left", box=None, pad_edge=False)
    for heading in ("epoch", "human reward", "human", "generated", "injected", "retired", "waiting"):
        table.add_column(heading, justify="right")
    for epoch, reward, plan in reward_by_epoch(facts):
        table.add_row(
            str(epoch + 1),
            number(reward),
            *(
                str(n)
                for n in (plan.num_human, plan.num_generated, len(plan.injected), len(plan.retired), plan.num_queued)
            ),
        )
    return table


def summary_table(summary: dict) -> Table:
    """The figures of ``summary.json`` for people."""
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = [
        ("human seeds, mean progress reward", f"{number(summary['reward_first'])} -> {number(summary['reward_last'])}"),
        (
            "held-out tasks, mean progress reward",
            f"{number(summary['heldout_reward_first'])} -> {number(summary['heldout_reward_last'])}",
        ),
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
        ("reward variance by zone", ", ".join(f"{zone} {number(v)}" for zone, v in summary["zone_variance"].items())),
        (
            "conservation",
            f"{summary['conservation']['missing']} missing, {summary['conservation']['duplicate']} duplicate",
        ),
        ("weights", summary["weights_digest"][:16]),
    ]
    if summary["fork"]:
        rows.append(("forked", fork_text(summary["fork"])))
    for row in rows:
        table.add_row(*row)
    return table
