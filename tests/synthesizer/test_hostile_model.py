"""A model that answers anything at all: every signal ends in a failure type or in a task that passes every gate."""

import asyncio
import json
import random
from collections import Counter

import pytest

from benchmarks.playing_server import blocks
from environments.registry import environment
from schemas import decode, encode
from schemas.events import SynthesisFailed, SynthesisFailure, TaskSynthesized
from synthesizer import gates
from synthesizer.backends import backend_named
from synthesizer.book import TaskBook
from synthesizer.execution import run
from synthesizer.llm.model import Reply
from synthesizer.pipeline import outcome_of
from tests.synthesizer.building import ENVIRONMENT, SEEDS, seeded, signal_for
from tests.synthesizer.playing import settings

F = SynthesisFailure
JUNK = [
    "",
    "null",
    "[]",
    "{",
    "[" * 3000,
    '{"reason": "\\ud800"}',
    "\x00",
    "I'm sorry, I cannot do that.",
    '{"reason":1e999}',
    "💥" * 500,
    "<reason>x</reason>",
    "__import__('os').system('true')",
    '{"reason":"x","arguments":{"__class__":1}}',
    "NaN",
    "9" * 5000,
]
VALUES = {
    "string": ["", "x" * 300, "../../etc/passwd", "{0.__class__}", "AAPL", "a.txt", "$(reboot)", "2026-13-45", "\n"],
    "integer": [0, -1, 10**30, 12446, 3],
    "number": [0.0, -5.5, 1e308, 25.5],
    "boolean": [True, False],
    "array": [[], [[]], ["a"] * 9, [1, "b"]],
    "object": [{}, {"a": {"b": {"c": 1}}}],
}


class Imp:
    """Mostly well-formed answers with wild contents, now and then junk, often the seed's own arguments."""

    def __init__(self, seed, rng):
        self.rng = rng
        self.known = {}
        for turn in seed.turns:
            for call in turn.ground_truth:
                self.known.setdefault(call.name, []).append(json.loads(call.arguments_json))

    async def complete(self, question):
        prompt = question.messages[1]["content"]
        if self.rng.random() < 0.04:
            return Reply(self.rng.choice(JUNK).encode("utf-8", "replace").decode(), "stop", "imp", 5, 5)
        said = getattr(self, question.role)(blocks(prompt))
        return Reply(json.dumps({"reason": "because", **said}), "stop", "imp", 5, 5)

    async def close(self):
        pass

    def planner(self, data):
        classes, _, sequence = data[:3]
        owner = {name: api for api, listed in classes.items() for name in listed["functions"]}
        shape = [len(names) for names in sequence][:5]
        turns = []
        for place, num in enumerate(shape):
            names = sequence[place]
            if (
                self.rng.random() < 0.3
                or any(owner.get(n) != owner.get(names[0]) for n in names)
                or names[0] not in owner
                or num > 3
            ):
                api = self.rng.choice(sorted(classes))
                names = self.rng.choices(sorted(classes[api]["functions"]), k=min(3, num))
            turns.append({"api": owner[names[0]], "functions": names})
        return {"narrative": "Someone does things.", "turns": turns}

    def parameters(self, data):
        function = data[2]
        if function["name"] in self.known and self.rng.random() < 0.9:
            return {"arguments": self.rng.choice(self.known[function["name"]])}
        spec = function["parameters"].get("properties", {})
        return {
            "arguments": {name: self.rng.choice(VALUES.get(kind.get("type"), [None])) for name, kind in spec.items()}
        }

    def query(self, data):
        return {
            "query": "Please see to this: "
            + "; ".join(f"{value}" for call in data[3] for value in call["arguments"].values())
        }

    def verifier(self, data):
        return {"verdict": "accept" if self.rng.random() < 0.95 else "reject"}

    def rewriter(self, data):
        texts = [data[1][turn]["user"] for turn in data[2]]
        return {"queries": texts if self.rng.random() < 0.9 else texts[1:]}

    def withholder(self, data):
        return {"request": str(data[2]).replace(str(data[3]), "it"), "clarification": f"It is {data[3]}."}

    def judge(self, data):
        return {"verdict": self.rng.choice(["accept", "accept", "reject"]), "fail_reason": ""}

    def classifier(self, data):
        return {"kind": self.rng.choice(["query_fixable", "gt_unfixable"]), "turn": self.rng.randrange(-2, 6)}

    def refiner(self, data):
        return {"query": str(data[3])}

    def patcher(self, data):
        state = data[3] if isinstance(data[3], dict) else {}
        changes = []
        for _ in range(self.rng.randrange(3)):
            api = self.rng.choice([*state, "Nowhere"])
            fields = sorted(state.get(api, {"x": 1})) if isinstance(state.get(api, {}), dict) else ["x"]
            changes.append(
                {
                    "api": api,
                    "path": [self.rng.choice(fields or ["x"])],
                    "value": self.rng.choice([1, 2.5, "text", True, None, [], {}, {"type": "file", "content": "x"}]),
                }
            )
        return {"changes": changes}


@pytest.mark.parametrize("backend", ["llm", "hybrid"])
def test_whatever_a_model_says_every_signal_ends_once_and_nothing_bad_is_admitted(backend):
    async def main():
        ends, rng = [], random.Random(5)
        for seed in list(SEEDS.values())[:: 7 if backend == "llm" else 25]:
            book = TaskBook()
            book.fold([seeded(seed)])
            config = settings(backend=backend, profile_mode="report")
            events = await outcome_of(signal_for(seed), seed, book, backend_named(config, model=Imp(seed, rng)), config)
            assert all(decode(encode(event)) == event for event in events)
            ends.append(events[-1])
        return ends

    ends = asyncio.run(main())
    kinds = Counter(e.failure if isinstance(e, SynthesisFailed) else "admitted" for e in ends)
    every = Counter(f for e in ends if isinstance(e, SynthesisFailed) for f in e.failures)
    assert not every[F.PIPELINE_EXCEPTION], [e.detail for e in ends if isinstance(e, SynthesisFailed)]
    assert len(kinds) >= (3 if backend == "llm" else 1) and kinds["admitted"]
    assert any(not stage.passed for end in ends for stage in end.stages)
    for end in ends:
        if isinstance(end, TaskSynthesized):
            assert (
                environment(end.task.environment) is ENVIRONMENT and gates.availability(ENVIRONMENT, end.task) is None
            )
            assert gates.complexity(run(ENVIRONMENT, end.task), settings()) is None
            assert all(turn.user_text or turn.restored_functions for turn in end.task.turns)
