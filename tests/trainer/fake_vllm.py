"""A vLLM server in memory: speaks the part of the protocol we use, samples with a toy model, breaks when asked to."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import torch

from tests.trainer.toys import NUM_IDS, toy_model
from trainer.rollouts.vllm_client import VllmClient


class Broken(Exception):
    """What a handler raises to be answered with HTTP 500."""


class FakeVllm:
    """The server. While it is paused, requests for messages wait, as vLLM's do; pausing waits for those under way.

    Attributes:
        label: its weight version.
        is_paused: whether it serves nothing.
        asked: every (path, body) in order.
        broken: answer by path instead of the usual one: a status and a text, or an exception to raise.
        on_completion: called before every completion.
    """

    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        self.model = toy_model()
        self.label, self.is_paused, self.logprobs_mode = "default", False, logprobs_mode
        self._turn, self._num_sampling, self.wait_s = threading.Condition(), 0, 10.0
        self.asked: list[tuple[str, dict]] = []
        self.broken: dict[str, tuple[int, str] | Exception] = {}
        self.on_completion = lambda body: None
        self.change_answer = lambda choice: choice

    def handle(self, request: httpx.Request) -> httpx.Response:
        """One exchange."""
        path, body = request.url.path, json.loads(request.content) if request.content else {}
        self.asked.append((path, body))
        broken = self.broken.get(path)
        if isinstance(broken, Exception):
            raise broken
        if broken is not None:
            return httpx.Response(broken[0], json={"error": {"message": broken[1], "code": broken[0]}})
        try:
            return httpx.Response(200, json=getattr(self, "do" + path.replace("/", "_"))(body))
        except Broken as error:
            return httpx.Response(500, json={"error": {"message": str(error), "code": 500}})

    def client(self) -> VllmClient:
        """A client of it."""
        return VllmClient("http://fake:1", httpx.MockTransport(self.handle))

    def transport(self) -> httpx.MockTransport:
        """The same for the sampler's requests."""
        return httpx.MockTransport(self.handle)

    def restart(self) -> None:
        """As a server that is started again: its first weights, its first label."""
        with self._turn:
            self.model, self.label, self.is_paused = toy_model(), "default", False
            self._turn.notify_all()

    def do_v1_models(self, body):
        return {"data": [{"id": "policy", "max_model_len": 256}]}

    def do_server_info(self, body):
        return {
            "vllm_config": {"model_config": {"logprobs_mode": self.logprobs_mode}, "parallel_config": {"world_size": 1}}
        }

    def do_weight_info(self, body):
        return {"weight_version": self.label}

    def do_update_weight_version(self, body):
        self.label = body["new_version"]
        return {"success": True}

    def do_pause(self, body):
        with self._turn:
            self.is_paused = True
            assert self._turn.wait_for(lambda: not self._num_sampling, self.wait_s)
        return {"status": "paused"}

    def do_resume(self, body):
        with self._turn:
            self.is_paused = False
            self._turn.notify_all()
        return {"status": "resumed"}

    def do_reset_prefix_cache(self, body):
        return {"success": True}

    def do_collective_rpc(self, body):
        assert self.is_paused and body["method"] == "reload_weights"
        folder = Path(body["kwargs"]["weights_path"])
        self.model = type(self.model).from_pretrained(folder).eval()
        return {"results": [None]}

    def do_v1_completions(self, body):
        with self._turn:
            assert self._turn.wait_for(lambda: not self.is_paused, self.wait_s)
            self._num_sampling += 1
        try:
            return self.sampled(body)
        finally:
            with self._turn:
                self._num_sampling -= 1
                self._turn.notify_all()

    def sampled(self, body):
        """A message of the weights that are there now."""
        self.on_completion(body)
        generator = torch.Generator().manual_seed(body["seed"])
        ids, logprobs = list(body["prompt"]), []
        stops, temperature = set(body.get("stop_token_ids", ())), body["temperature"] or 1.0
        while len(logprobs) < body["max_tokens"]:
            with torch.no_grad():
                logits_V = self.model(input_ids=torch.tensor([ids])).logits[0, -1].double() / temperature
            chosen = int(torch.multinomial(logits_V.softmax(-1), 1, generator=generator))
            ids.append(chosen)
            logprobs.append(float(logits_V.log_softmax(-1)[chosen]))
            if chosen in stops:
                break
        sampled = ids[len(body["prompt"]) :]
        assert all(0 <= id_ < NUM_IDS for id_ in sampled)
        choice = {
            "prompt_token_ids": body["prompt"],
            "token_ids": sampled,
            "logprobs": {"token_logprobs": logprobs},
            "finish_reason": "stop" if sampled[-1] in stops else "length",
        }
        return {"choices": [self.change_answer(choice)]}
