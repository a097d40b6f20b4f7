"""``rods chat``: one task played turn by turn before a person, who may say something else than its user would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from commands.config import ConfigError
from environments.episode import Episode, Incoming
from environments.registry import load_tasks
from schemas.events import FinishReason, Message, Task

Ask = Callable[[str], str]
MAX_SHOWN_CHARS = 1200


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


def task_of(task_id: str, split: str, environment_name: str) -> Task:
    """A task by id, or the first of a split.

    Raises:
        ConfigError: no such task.
    """
    tasks = load_tasks("all" if task_id else split, environment_name)
    found = next((task for task in tasks if task_id in ("", task.task_id)), None)
    if found is None:
        raise ConfigError(f"--task {task_id!r}: {environment_name} has no such task")
    return found


def typed(question: str) -> str:
    """A line from the terminal; nothing at its end."""
    try:
        return input(question)
    except EOFError:
        return ""


def show(
    model: str,
    task_id: str,
    split: str,
    console: Console,
    *,
    greedy: bool = False,
    ask: Ask = typed,
    seed: int = 0,
    tokenizer: str = "",
    parser: str = "",
    max_message_tokens: int = 1024,
    environment_name: str = "bfcl-v3",
) -> float:
    """Play a task to its end and return its progress reward."""
    from trainer.evaluation import episodes_of
    from trainer.policy.players import player_of
    from trainer.rollouts.sampler import RolloutRequest, SamplingParams

    task = task_of(task_id, split, environment_name)
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
