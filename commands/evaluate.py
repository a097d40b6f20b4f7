"""Policies played before a person: ``rods eval`` measures one on a held-out suite, ``rods chat`` plays one task turn by turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from commands.config import ConfigError
from commands.options import AsJson, Greedy, Model, Parser, Seed, Tokenizer, columns, console
from environments.episode import Episode, Incoming
from environments.registry import load_tasks
from schemas.events import FinishReason, Message, Task

if TYPE_CHECKING:
    from trainer.evaluation import Suite
    from trainer.policy.players import Player
    from trainer.rollouts.sampler import SamplingParams

SUITES = {"bfcl-multi-turn": "bfcl-v3", "bfcl-multi-turn-hints": "bfcl-v3-hints"}
"""Environment of each suite."""
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
Ask = Callable[[str], str]
MAX_SHOWN_CHARS = 1200


def evaluate(
    model: Model,
    suite: Annotated[str, typer.Option(help="bfcl-multi-turn or bfcl-multi-turn-hints.")] = "bfcl-multi-turn",
    split: Annotated[str, typer.Option(help="val (100 tasks), test (300), train (400) or all.")] = "val",
    profile: Annotated[
        str, typer.Option(help="progress: rules of training. bfcl: rules of the leaderboard.")
    ] = "progress",
    greedy: Greedy = False,
    pass_k: Annotated[int, typer.Option("--pass-k", help="Rollouts a task, and the k of pass@k.")] = 1,
    category: Annotated[list[str] | None, typer.Option(help="Only this category; may be repeated.")] = None,
    limit: Annotated[
        int, typer.Option(help="At most about so many tasks, evenly from the categories; 0 takes all.")
    ] = 0,
    tokenizer: Tokenizer = "",
    parser: Parser = "",
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass.")] = 1.0,
    seed: Seed = 0,
    max_message_tokens: Annotated[int, typer.Option(help="Longest message, tokens.")] = 1024,
    max_episode_tokens: Annotated[int, typer.Option(help="Longest episode, tokens; 0 takes the model's length.")] = 0,
    at_once: Annotated[int, typer.Option(help="Rollouts played at the same time.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a policy on held-out tasks: accuracy, reward, pass@k with intervals, by category."""
    from trainer.evaluation import Suite
    from trainer.policy.players import player_of
    from trainer.rollouts.sampler import SamplingParams

    check(profile, pass_k, greedy)
    tasks = tasks_of(suite, split, category or (), limit)
    player = player_of(model, tokenizer, parser)
    longest = min(max_episode_tokens or player.max_tokens, player.max_tokens)
    params = SamplingParams(seed, min(max_message_tokens, longest), longest, temperature, top_p, greedy)
    bar = Progress(console=Console(stderr=True) if as_json else console, transient=True)
    asked = {"model": model, "suite": suite, "split": split, "profile": profile}
    result = asked | measured(player, Suite(f"{suite}/{split}", tasks, pass_k), params, profile, at_once, bar)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        print(json.dumps(result))
    else:
        show(result)


def check(profile: str, pass_k: int, greedy: bool) -> None:
    """Refuse options that do not fit together.

    Raises:
        ConfigError: they do not.
    """
    from trainer.evaluation import PROFILES

    if profile not in PROFILES:
        raise ConfigError(f"--profile {profile!r}: known are {', '.join(PROFILES)}")
    if pass_k < 1:
        raise ConfigError(f"--pass-k {pass_k}: at least 1")
    if greedy and pass_k > 1:
        raise ConfigError("--greedy plays every rollout alike: drop it or --pass-k")


def measured(
    player: Player, suite: Suite, params: SamplingParams, profile: str, at_once: int, bar: Progress
) -> dict[str, object]:
    """Play a suite; how it was played, and its figures."""
    from trainer.evaluation import episodes_of, play
    from trainer.measures import report

    template, started_s = player.template, time.monotonic()
    with bar:
        line = bar.add_task("playing", total=len(suite.tasks) * suite.num_rollouts)
        episodes = episodes_of(profile, template.parser)
        played = play(suite, player.sampler, params, episodes, at_once, lambda n, _: bar.update(line, completed=n))
    return {
        "mode": "greedy" if params.greedy else "sampled",
        "rollouts_per_task": suite.num_rollouts,
        "template": template.name,
        "template_digest": template.digest,
        "parser": template.parser,
        "sampling": json.loads(params.as_json(template.stop_ids)),
        "seconds": round(time.monotonic() - started_s, 1),
        **report(played, suite.num_rollouts),
    }


def show(result: dict) -> None:
    """The figures for people."""
    console.print(scores_table(result))
    console.print(actions_table(result))
    how = result["intervals"]
    text = f"intervals at 95 %: accuracy {how['accuracy']}; the rest {how['mean_reward']}, {how['num_resamples']} resamples"
    console.print(f"{text}. {result['seconds']:.0f} s", highlight=False)


def tasks_of(suite: str, split: str, categories: Sequence[str] = (), limit: int = 0) -> tuple[Task, ...]:
    """The tasks that are played, in split order; with a limit, as evenly from the categories as possible.

    Raises:
        ConfigError: no such suite, split or category.
    """
    if suite not in SUITES:
        raise ConfigError(f"--suite {suite!r}: known are {', '.join(SUITES)}")
    unknown = set(categories) - set(CATEGORIES)
    if unknown:
        raise ConfigError(f"--category {sorted(unknown)[0]!r}: known are {', '.join(CATEGORIES)}")
    try:
        tasks = load_tasks(split, SUITES[suite])
    except ValueError as error:
        raise ConfigError(f"--split {split!r}: {error}") from error
    groups = [[task for task in tasks if task.category.value == name] for name in categories or CATEGORIES]
    if limit:
        groups = [group[: -(-limit // len(groups))] for group in groups]
    chosen = {task.task_id for group in groups for task in group}
    return tuple(task for task in tasks if task.task_id in chosen)


def _cell(figure: dict[str, float] | None) -> str:
    return "-" if figure is None else f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def scores_table(result: dict) -> Table:
    """Figures by category."""
    k = result["rollouts_per_task"]
    title = f"{result['model']}: {result['suite']} {result['split']}, {result['profile']} profile, {result['mode']}"
    passed = [f"pass@{k}"] if k > 1 else []
    table = columns("category", "tasks", "accuracy", "mean reward", *passed, "errors", right=True, title=title)
    for name, part in [*result["categories"].items(), ("all", result["overall"])]:
        measured = [part["accuracy"], part["mean_reward"], *([part.get(f"pass_at_{k}")] if passed else [])]
        table.add_row(name, str(part["num_tasks"]), *map(_cell, measured), str(part["num_errors"]))
    return table


def actions_table(result: dict) -> Table:
    """Turns by action class."""
    shown = {name: name for name in ("acted", "asked", "declined", "answered", "malformed")} | {
        "nothing to call": "num_no_call_turns",
        "class right": "num_no_call_class_right",
        "silent": "num_no_call_silent",
        "right but wrong class": "num_right_verdict_wrong_class",
    }
    table = columns("category", *shown, right=True, title="turns by action class")
    for category, counts in result["actions"].items():
        table.add_row(category, *(str(counts[key]) for key in shown.values()))
    return table


class Narrated:
    """An episode that tells a person everything as it happens and lets them speak for the user.

    Args:
        episode: the episode; whoever plays it is given this object instead.
        console: where to tell.
        ask: given a question, gives what the person typed; empty keeps the task's own words.
    """

    def __init__(self, episode: Episode, console: Console, ask: Ask) -> None:
        self._episode, self._console, self._ask = episode, console, ask
        self._shown: tuple[tuple[Incoming, ...], tuple[Incoming, ...]] = ((), ())
        self._turn_asked = -1
        self.num_changed = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._episode, name)

    @property
    def incoming(self) -> tuple[Incoming, ...]:
        """What the policy is shown next, in the person's words where they chose some."""
        pieces = self._episode.incoming
        if self._shown[0] is not pieces:
            self._shown = (pieces, tuple(self._told(piece) for piece in pieces))
        return self._shown[1]

    def _told(self, piece: Incoming) -> Incoming:
        if piece.kind != "user":
            what = f"{', '.join(piece.functions)} {piece.text}" if piece.functions else piece.text
            self._say("tools" if piece.functions else "result", what, "dim")
            return piece
        if self._episode.turn == self._turn_asked:
            self._say("error", piece.text, "dim")
            return piece
        self._turn_asked = self._episode.turn
        self._say("user", piece.text, "bold cyan")
        words = self._ask("Enter sends this, or type something else: ").strip()
        if not words:
            return piece
        self.num_changed += 1
        return replace(piece, text=words)

    def _say(self, who: str, text: str, style: str) -> None:
        cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + " ..."
        self._console.print(f"[{style}]{who:>9}[/{style}]  {escape(cut)}", highlight=False)

    def step(self, text: str) -> Message:
        """Show one message of the policy and what became of it."""
        self._say("policy", text, "bold")
        message = self._episode.step(text)
        if message.detail:
            self._say("note", message.detail, "yellow")
        if message.code in (0, 1):
            verdict, style = ("right", "green") if message.code else ("wrong", "red")
            self._say("turn", f"{message.turn + 1} was {verdict}", style)
        return message

    def cut(self, reason: FinishReason) -> None:
        """Tell why it ended early."""
        self._say("cut", reason.value, "red")
        self._episode.cut(reason)


def typed(question: str) -> str:
    """A line from the terminal; nothing at its end."""
    try:
        return input(question)
    except EOFError:
        return ""


def chat(
    model: Model,
    task: Annotated[str, typer.Option(help="Task id; the first of the split if not given.")] = "",
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    greedy: Greedy = False,
    tokenizer: Tokenizer = "",
    parser: Parser = "",
    seed: Seed = 0,
) -> None:
    """Watch a policy play one task turn by turn, and speak for the user if you like."""
    tasks = load_tasks("all" if task else split, "bfcl-v3")
    found = next((known for known in tasks if task in ("", known.task_id)), None)
    if found is None:
        raise ConfigError(f"--task {task!r}: bfcl-v3 has no such task")
    narrate(found, model, tokenizer, parser, seed, greedy)


def narrate(
    task: Task,
    model: str,
    tokenizer: str = "",
    parser: str = "",
    seed: int = 0,
    greedy: bool = False,
    max_message_tokens: int = 1024,
    ask: Ask = typed,
) -> float:
    """Play a task before a person to its end; returns its progress reward."""
    from trainer.evaluation import episodes_of
    from trainer.policy.players import player_of
    from trainer.rollouts.sampler import RolloutRequest, SamplingParams

    player = player_of(model, tokenizer, parser)
    episode = Narrated(episodes_of("progress", player.template.parser)(task), console, ask)
    owners = ", ".join(task.involved_classes)
    console.print(f"{task.task_id}: {len(task.turns)} turns, {len(episode.offered)} functions of {owners}")
    params = SamplingParams(seed, min(max_message_tokens, player.max_tokens), player.max_tokens, greedy=greedy)
    rollout = player.sampler.rollout([RolloutRequest(task, episode, 0, ("chat", task.task_id, 0))], params)[0]
    verdicts = " ".join(str(verdict) for verdict in episode.turn_verdicts)
    console.print(f"reward {episode.reward:.2f} (turns {verdicts}), {len(rollout.token_ids)} tokens")
    if episode.num_changed:
        console.print("you changed what the user said: the verdicts are about the task as it is written")
    return episode.reward
