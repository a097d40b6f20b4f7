"""``rods eval``: a policy on a held-out suite, with intervals, by category."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from commands.config import ConfigError
from environments.registry import load_tasks
from schemas.events import Task

SUITES = {"bfcl-multi-turn": "bfcl-v3", "bfcl-multi-turn-hints": "bfcl-v3-hints"}
"""Environment of each suite."""
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


@dataclass(frozen=True)
class EvalOptions:
    """What is asked for; see the options of ``rods eval``."""

    model: str
    suite: str = "bfcl-multi-turn"
    split: str = "val"
    profile: str = "progress"
    pass_k: int = 1
    greedy: bool = False
    categories: tuple[str, ...] = ()
    limit: int = 0
    tokenizer: str = ""
    parser: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    max_message_tokens: int = 1024
    max_episode_tokens: int = 0
    at_once: int = 64
    device: str = ""
    dtype: str = ""


def tasks_of(options: EvalOptions) -> tuple[Task, ...]:
    """The tasks that are played, in split order; with a limit, as evenly from the categories as possible.

    Raises:
        ConfigError: no such suite, split or category.
    """
    if options.suite not in SUITES:
        raise ConfigError(f"--suite {options.suite!r}: known are {', '.join(SUITES)}")
    unknown = set(options.categories) - set(CATEGORIES)
    if unknown:
        raise ConfigError(f"--category {sorted(unknown)[0]!r}: known are {', '.join(CATEGORIES)}")
    try:
        tasks = load_tasks(options.split, SUITES[options.suite])
    except ValueError as error:
        raise ConfigError(f"--split {options.split!r}: {error}") from error
    groups = [[task for task in tasks if task.category.value == name] for name in options.categories or CATEGORIES]
    if options.limit:
        share = -(-options.limit // len(groups))
        groups = [group[:share] for group in groups]
    chosen = {task.task_id for group in groups for task in group}
    return tuple(task for task in tasks if task.task_id in chosen)


def checked(options: EvalOptions) -> EvalOptions:
    """The same options if they fit together.

    Raises:
        ConfigError: they don't.
    """
    from trainer.evaluation import PROFILES

    if options.profile not in PROFILES:
        raise ConfigError(f"--profile {options.profile!r}: known are {', '.join(PROFILES)}")
    if options.pass_k < 1:
        raise ConfigError(f"--pass-k {options.pass_k}: at least 1")
    if options.greedy and options.pass_k > 1:
        raise ConfigError("--greedy plays every rollout alike: drop it or --pass-k")
    return options


def evaluated(options: EvalOptions, console: Console) -> dict[str, object]:
    """Play and measure.

    Raises:
        ConfigError: options that do not fit.
        trainer.players.NoPlayer: the model cannot be opened.
    """
    from trainer.evaluation import Suite, episodes_of, play
    from trainer.measures import report
    from trainer.policy.players import player_of
    from trainer.rollouts.sampler import SamplingParams

    tasks = tasks_of(checked(options))
    player = player_of(options.model, options.tokenizer, options.parser, options.device, options.dtype)
    longest = min(options.max_episode_tokens or player.max_tokens, player.max_tokens)
    params = SamplingParams(
        options.seed,
        min(options.max_message_tokens, longest),
        longest,
        options.temperature,
        options.top_p,
        options.greedy,
    )
    suite = Suite(f"{options.suite}/{options.split}", tasks, options.pass_k)
    started_s = time.monotonic()
    with Progress(console=console, transient=True) as bar:
        line = bar.add_task("playing", total=len(tasks) * options.pass_k)
        played = play(
            suite,
            player.sampler,
            params,
            episodes_of(options.profile, player.template.parser),
            options.at_once,
            lambda finished, total: bar.update(line, completed=finished),
        )
    return {
        "model": options.model,
        "suite": options.suite,
        "split": options.split,
        "profile": options.profile,
        "mode": "greedy" if options.greedy else "sampled",
        "rollouts_per_task": options.pass_k,
        "template": player.template.name,
        "template_digest": player.template.digest,
        "parser": player.template.parser,
        "sampling": json.loads(params.as_json(player.template.stop_ids)),
        "seconds": round(time.monotonic() - started_s, 1),
        **report(played, options.pass_k),
    }


def show(options: EvalOptions, as_json: bool, out: Path | None, console: Console) -> None:
    """Evaluate, write the JSON file if one is named, print JSON or tables."""
    result = evaluated(options, Console(stderr=True) if as_json else console)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        print(json.dumps(result))
        return
    console.print(scores_table(result))
    console.print(actions_table(result))
    notes = result["intervals"]
    console.print(
        f"intervals at 95 %: accuracy {notes['accuracy']}; the rest {notes['mean_reward']}, "
        f"{notes['num_resamples']} resamples. {result['seconds']:.0f} s",
        highlight=False,
    )


def _cell(figure: dict[str, float] | None) -> str:
    return "-" if figure is None else f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def scores_table(result: dict) -> Table:
    """Figures by category."""
    k = result["rollouts_per_task"]
    title = f"{result['model']}: {result['suite']} {result['split']}, {result['profile']} profile, {result['mode']}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    headings = ["category", "tasks", "accuracy", "mean reward", *([f"pass@{k}"] if k > 1 else []), "errors"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "category" else "right")
    for name, part in [*result["categories"].items(), ("all", result["overall"])]:
        extra = [_cell(part.get(f"pass_at_{k}"))] if k > 1 else []
        table.add_row(
            name,
            str(part["num_tasks"]),
            _cell(part["accuracy"]),
            _cell(part["mean_reward"]),
            *extra,
            str(part["num_errors"]),
        )
    return table


def actions_table(result: dict) -> Table:
    """Turns by action class."""
    table = Table(title="turns by action class", title_justify="left", box=None, pad_edge=False)
    names = ("acted", "asked", "declined", "answered", "malformed")
    for heading in ("category", *names, "nothing to call", "class right", "silent", "right but wrong class"):
        table.add_column(heading, justify="left" if heading == "category" else "right")
    keys = (
        *names,
        "num_no_call_turns",
        "num_no_call_class_right",
        "num_no_call_silent",
        "num_right_verdict_wrong_class",
    )
    for category, counts in result["actions"].items():
        table.add_row(category, *(str(counts[key]) for key in keys))
    return table
