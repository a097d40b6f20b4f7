"""A toy policy, a toy prompt format and a toy episode: small enough to follow by hand."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from schemas.events import Call, Category, FinishReason, Message, MessageOutcome, Task, Turn

STOPS = frozenset({1, 27, 28, 29, 30, 31})
FIRST_LETTER = 3
NUM_IDS = 32


def toy_model(seed: int = 0, hidden_size: int = 32, max_tokens: int = 256, num_ids: int = NUM_IDS) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=num_ids,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


def toy_task(task_id: str = "base_0", num_turns: int = 2, category: Category = Category.BASE) -> Task:
    """Turn t asks with the text of its number; what it wants is the letter 'a' in the message."""
    call = Call(name="touch", arguments_json='{"file_name":"a"}')
    turns = tuple(Turn(user_text=f"{task_id}.{turn}", ground_truth=(call,)) for turn in range(num_turns))
    return Task(
        task_id=task_id,
        environment="toy",
        environment_version="1",
        category=category,
        involved_classes=("Toy",),
        initial_config_json="{}",
        turns=turns,
    )


class ToyIncoming:
    """The one piece that is shown."""

    kind = "user"
    functions = ()

    def __init__(self, text: str) -> None:
        self.text = text


class ToyTemplate:
    """One id for every letter; six ids end a message, id 2 stands before everything the environment says."""

    name = "toy"
    parser = "toy"
    stop_ids = STOPS
    digest = "0" * 64

    def start_ids(self, task, offered):
        return [2]

    def incoming_ids(self, incoming):
        text = "".join(piece.text for piece in incoming)
        return [2] + [FIRST_LETTER + ord(letter) % (NUM_IDS - FIRST_LETTER) for letter in text]

    def message_text(self, ids):
        return "".join("." if id_ in STOPS else chr(ord("a") + id_ - FIRST_LETTER) for id_ in ids)


class ToyEpisode:
    """One message per turn; the turn is right if the message holds an even id as its first letter."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.incoming = (ToyIncoming(task.turns[0].user_text),)
        self.offered = {}
        self.done = False
        self.finish_reason = FinishReason.FINISHED
        self.messages = ()
        self.turn_verdicts = (0,) * len(task.turns)
        self.turn_actions = ()
        self.detail = ""

    def step(self, text: str) -> Message:
        assert not self.done
        turn = len(self.messages)
        right = int(ord(text[0]) % 2 == 0)
        self.turn_verdicts = (*self.turn_verdicts[:turn], right, *self.turn_verdicts[turn + 1 :])
        message = Message(turn=turn, text=text, outcome=MessageOutcome.ANSWER, calls=(), results=(), code=right)
        self.messages = (*self.messages, message)
        self.done = len(self.messages) == len(self.task.turns)
        if not self.done:
            self.incoming = (ToyIncoming(self.task.turns[turn + 1].user_text + "x" * turn),)
        return message

    def cut(self, reason: FinishReason) -> None:
        self.done, self.finish_reason = True, reason

    @property
    def codes(self):
        return tuple(message.code for message in self.messages)

    @property
    def reward(self) -> float:
        return sum(self.turn_verdicts) / len(self.turn_verdicts)

    @property
    def format_reward(self) -> float:
        return float(bool(self.messages))

    @property
    def binary_reward(self) -> float:
        return float(all(self.turn_verdicts))
