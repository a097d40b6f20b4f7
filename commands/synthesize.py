"""``rods synthesize``: one seed through the whole pipeline, for a person to watch; nothing is written to any log."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from commands.config import ConfigError, RunConfig, load_config
from commands.options import AsJson, ConfigFile, Overrides, columns, console
from environments.registry import load_tasks
from schemas.codec import as_record
from schemas.events import (
    BoundaryDetected,
    Completion,
    Event,
    Evidence,
    SynthesisFailed,
    SynthesisStage,
    Task,
    TaskSynthesized,
    Zone,
)
from synthesizer.backends import backend_named
from synthesizer.book import TaskBook
from synthesizer.pipeline import outcome_of

RUN_ID = "synthesize"


def synthesize(
    seed: Annotated[str, typer.Option("--seed", help="Id of the task to make a variant of.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    draw: Annotated[int, typer.Option(help="Another number gives another variant of the same seed.")] = 0,
) -> bool:
    """Make one variant of a task, stage by stage; exit code 0 only if it was admitted."""
    settings = load_config(config, os.environ, overrides or [])
    known = {task.task_id: task for task in load_tasks("all", settings.tasks.environment)}
    if seed not in known:
        near = [task_id for task_id in known if seed in task_id][:5]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ConfigError(f"environment {settings.tasks.environment} has no task {seed}{hint}")
    task, say = known[seed], Console(quiet=True) if as_json else console
    say.print(_conversation(task, f"seed {task.task_id}, {task.category.value}"))
    end = asyncio.run(_synthesize(task, draw, settings, say))[-1]
    if as_json:
        print(json.dumps(as_record(end), ensure_ascii=False))
    else:
        _print_end(end)
    return isinstance(end, TaskSynthesized)


async def _synthesize(task: Task, draw: int, config: RunConfig, say: Console) -> list[Event]:
    backend = backend_named(config.synthesis, os.environ)
    book = TaskBook(other for split in ("val", "test") for other in load_tasks(split, config.tasks.environment))
    book.know(task)
    say.print(f"backend {backend.name}" + (f", prompts {backend.prompts_hash[:12]}" if backend.prompts_hash else ""))
    try:
        signal = _signal(task, draw)
        return await outcome_of(signal, task, book, backend, config.synthesis, lambda note: _tell(note, say))
    finally:
        await backend.close()


def _signal(task: Task, draw: int) -> BoundaryDetected:
    """A signal that no pool sent and no log holds; another draw number gives other draws."""
    name = f"{RUN_ID}-{draw}"
    return BoundaryDetected(
        event_id=name,
        signal_id=name,
        run_id=RUN_ID,
        task_id=task.task_id,
        category=task.category,
        step=draw,
        epoch=0,
        evidence=Evidence(step=draw, num_rollouts=1, num_valid=1, mean=0.5, variance=0.25, phi=1.0, zone=Zone.BOUNDARY),
        rank=0,
        quota=1,
        root_task_id=task.task_id,
        generation=0,
        policy_version=0,
    )


def _tell(note: object, say: Console) -> None:
    """Print a completion or a stage as it comes."""
    if isinstance(note, Completion):
        tokens = f"{note.num_prompt_tokens} + {note.num_completion_tokens} tokens"
        say.print(Text(f"  {note.role}: {tokens}, {note.latency_ms / 1000:.2f} s", style="dim"))
        say.print(Text(f"    {(note.error or note.text).strip()[:1200]}", style="red" if note.error else "dim"))
    elif isinstance(note, SynthesisStage):
        mark, style = ("passed", "green") if note.passed else (note.failure or "no", "red")
        say.print(
            Text(f"attempt {note.attempt + 1} · {note.stage}: ", style="bold")
            .append(mark, style=style)
            .append(f"  {note.detail[:600]}" if note.detail else "", style="default")
        )


def _conversation(task: Task, title: str) -> Panel:
    lines = Text()
    for index, turn in enumerate(task.turns):
        restored = f" [restores {', '.join(turn.restored_functions)}]" if turn.restored_functions else ""
        lines.append(f"{index}  {turn.user_text}{restored}\n", style="bold")
        for call in turn.ground_truth:
            lines.append(f"     {call.name} {call.arguments_json}\n", style="cyan")
        if not turn.ground_truth:
            lines.append("     no call\n", style="dim")
    return Panel(lines, title=title, title_align="left")


def _print_end(end: TaskSynthesized | SynthesisFailed) -> None:
    if isinstance(end, SynthesisFailed):
        why = f"no variant after {end.num_attempts} attempts: {end.failure.value}: {end.detail}"
        console.print(Text(why, style="red"))
    else:
        console.print(_conversation(end.task, f"variant {end.task.task_id}, admitted at attempt {end.num_attempts}"))
        if end.variant_profile_json:
            console.print(_profiles(json.loads(end.seed_profile_json), json.loads(end.variant_profile_json)))
    if end.completions:
        prompt = sum(completion.num_prompt_tokens for completion in end.completions)
        answer = sum(completion.num_completion_tokens for completion in end.completions)
        console.print(f"{len(end.completions)} questions, {prompt} prompt tokens, {answer} answered tokens")


def _profiles(seed: dict, variant: dict) -> Table:
    table = columns("", "seed", "variant", title="structural profile")
    edges = ("value_edges", "state_edges", "depth", "num_cross_turn_edges", "num_coreferences", "num_writes")
    for key in ("calls_per_turn", "functions", *edges):
        table.add_row(key, str(seed[key]), str(variant[key]))
    return table
