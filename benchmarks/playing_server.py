"""A server with OpenAI's chat completions whose answers a program writes: for measurements and for acceptance tests.

It knows the workshop environment well enough to plan, fill in arguments, write and judge requests, from nothing but the
prompts it is sent; every answer depends on the prompt alone. A test may put other answers in the place of a role's.
``python -m benchmarks.playing_server --latency-ms 50`` serves on a free port and prints it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

BLOCK = re.compile(r"<data>\n(.*?)\n</data>", re.DOTALL)
PEOPLE = ("Ada", "Bruno", "Chiara", "Dmitri", "Esra", "Farid", "Greta", "Hanna", "Ivo", "Jette", "Kamal", "Luisa")
BIKES = ("gravel bike", "trekking bike", "recumbent", "trailer bike", "fat bike", "mixte", "long-tail", "track bike")
WORK = (
    "bearings greased",
    "gears set",
    "fork checked",
    "saddle swapped",
    "lights wired",
    "rims cleaned",
    "frame washed",
)
PARTS = ("brake pad", "spoke", "chain", "inner tube", "brake cable", "hinge bolt", "training wheel")
SAY = {
    "open_job": "open a repair job for {customer}'s {bicycle}",
    "list_parts": "look through the whole list of parts",
    "part_info": "tell me about the part '{part}'",
    "take_part": "take {quantity} of the part '{part}' from the shelf",
    "add_work": "book {minutes} minutes on that job with the note '{note}'",
    "job_total": "tell me what the work on it costs",
}

Said = str | Mapping[str, Any] | web.Response
Answer = Callable[[str], Said]
"""From the user message of a prompt to what is said: sections, a text as it is, or a whole response."""


@dataclass(slots=True)
class Player:
    """Answers every role.

    Attributes:
        replaced: answers by role that win over the program's; a list is used up in order, its last entry stays.
        asked: roles in the order in which they were asked.
        prompts: user messages in the same order.
    """

    replaced: dict[str, Said | Answer | list[Said | Answer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    def say(self, role: str, prompt: str) -> Said:
        """What the role answers to a prompt."""
        self.asked.append(role)
        self.prompts.append(prompt)
        answer = self.replaced.get(role)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if answer is None:
            answer = getattr(self, role)
        return answer(prompt) if callable(answer) else answer

    def planner(self, prompt: str) -> Said:
        """The seed's functions again, with a new story."""
        classes, _, sequence = blocks(prompt)[:3]
        owner = {name: api for api, listed in classes.items() for name in listed["functions"]}
        turns = [{"api": owner[names[0]], "functions": names} for names in sequence]
        person = drawn(prompt).choice(PEOPLE)
        return {
            "reason": "As hard as the seed.",
            "narrative": f"{person} brings a bicycle in and wants it back today.",
            "turns": turns,
        }

    def parameters(self, prompt: str) -> Said:
        """Arguments from the state, from results, or invented."""
        function, done, rng = blocks(prompt)[2], blocks(prompt)[4], drawn(prompt)
        known = next((call["result"] for call in reversed(done) if "job_id" in call["result"]), "{}")
        job = json.loads(known).get("job_id", "J0")
        made = {
            "open_job": {
                "customer": rng.choice(PEOPLE),
                "bicycle": f"{rng.choice(BIKES)} no. {rng.randrange(100, 999)}",
            },
            "list_parts": {},
            "part_info": {"part": rng.choice(PARTS)},
            "take_part": {"part": rng.choice(PARTS), "quantity": rng.randrange(2, 9)},
            "add_work": {"job_id": job, "note": rng.choice(WORK), "minutes": rng.randrange(11, 95)},
            "job_total": {"job_id": job},
        }
        return {"reason": "Read from the state.", "arguments": made[function["name"]]}

    def query(self, prompt: str) -> Said:
        """A request that asks for every call."""
        return {"reason": "All values said.", "query": spoken(blocks(prompt)[3])}

    def verifier(self, prompt: str) -> Said:
        """Always right."""
        return {"reason": "It asks for just these calls.", "verdict": "accept"}

    def rewriter(self, prompt: str) -> Said:
        """The same requests with a greeting and a reference."""
        conversation, turns = blocks(prompt)[1], blocks(prompt)[2]
        texts = [conversation[turn]["user"] for turn in turns]
        opened = [f"{'Good morning! ' if place == 0 else 'Next, '}{text}" for place, text in enumerate(texts)]
        return {"reason": "One voice.", "queries": opened}

    def withholder(self, prompt: str) -> Said:
        """The request without the value."""
        _, _, request, value, name = blocks(prompt)
        vague = request.replace(f"'{value}'", "what I have in mind").replace(str(value), "some")
        return {"reason": "Left out.", "request": vague, "clarification": f"The {name.replace('_', ' ')} is {value}."}

    def judge(self, prompt: str) -> Said:
        """Always pleased."""
        return {"reason": "All five hold.", "verdict": "accept", "fail_reason": ""}

    def classifier(self, prompt: str) -> Said:
        """The first turn's words are to blame."""
        return {"reason": "Only words.", "kind": "query_fixable", "turn": 0}

    def refiner(self, prompt: str) -> Said:
        """The request anew."""
        return {"reason": "Mended.", "query": f"Hello there, {spoken(blocks(prompt)[3])}"}

    def patcher(self, prompt: str) -> Said:
        """No change."""
        return {"reason": "Nothing to change.", "changes": []}


def blocks(prompt: str) -> list[Any]:
    """The data blocks of a prompt in order; one that was cut is its text."""
    return [_value(block) for block in BLOCK.findall(prompt)]


def _value(block: str) -> Any:
    try:
        return json.loads(block)
    except ValueError:
        return block


def drawn(prompt: str) -> random.Random:
    """A generator that depends on the prompt alone."""
    return random.Random(hashlib.sha256(prompt.encode()).digest())


def spoken(calls: list[Mapping[str, Any]]) -> str:
    """A request for some calls of the workshop."""
    said = " and then ".join(SAY[call["function"]].format(**call["arguments"]) for call in calls)
    return f"Please {said}."


class PlayingServer:
    """The server.

    Args:
        player: who answers.
        latency_s: how long each answer takes, however many are asked for at the same time.
        num_slots: answers that can be under way at the same time; the others wait.
    """

    def __init__(self, player: Player | None = None, latency_s: float = 0.0, num_slots: int = 1_000_000) -> None:
        self.player = player or Player()
        self._latency_s = latency_s
        self._slots = asyncio.Semaphore(num_slots)
        self.app = web.Application(client_max_size=64 * 1024 * 1024)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_post("/v1/chat/completions", self._complete)
        self.num_under_way = self.most_under_way = 0
        self.headers: list[Mapping[str, str]] = []

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "player", "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers.append(request.headers)
        self.num_under_way += 1
        self.most_under_way = max(self.most_under_way, self.num_under_way)
        try:
            async with self._slots:
                await asyncio.sleep(self._latency_s)
                said = self.player.say(role_of(body), body["messages"][1]["content"])
                return await said if asyncio.iscoroutine(said) else response_to(said, body)
        finally:
            self.num_under_way -= 1


def role_of(body: Mapping[str, Any]) -> str:
    """Who is asked: the name of the schema, or the role the system message describes."""
    form = body.get("response_format") or {}
    if "json_schema" in form:
        return form["json_schema"]["name"]
    from synthesizer.config import ROLES
    from synthesizer.llm.prompts import Prompts

    prompts = Prompts()
    system = body["messages"][0]["content"]
    return next(role for role in ROLES if prompts.text(f"{role}.md").startswith(system))


def response_to(said: Said, body: Mapping[str, Any]) -> web.Response:
    """A chat completion with the sections in the form that was asked for."""
    if isinstance(said, web.Response):
        return said
    if isinstance(said, Mapping):
        said = json.dumps(said) if "response_format" in body else tagged(said)
    prompt = " ".join(message["content"] for message in body["messages"])
    usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(said.split())}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
    return web.json_response(
        {"id": "x", "object": "chat.completion", "model": "player", "choices": [choice], "usage": usage}
    )


def tagged(sections: Mapping[str, Any]) -> str:
    """Sections in tags."""
    return "\n".join(
        f"<{name}>{value if isinstance(value, str) else json.dumps(value)}</{name}>" for name, value in sections.items()
    )


async def serve(latency_s: float, num_slots: int) -> None:
    """Serve on a free port until killed; the port is the first line."""
    runner = web.AppRunner(PlayingServer(None, latency_s, num_slots).app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--slots", type=int, default=1_000_000)
    options = parser.parse_args()
    from streams.processes import end_with_parent

    end_with_parent()
    asyncio.run(serve(options.latency_ms / 1000, options.slots))


if __name__ == "__main__":
    main()
