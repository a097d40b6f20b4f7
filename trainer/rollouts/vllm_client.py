"""What is said to a vLLM server over HTTP: each request with a deadline, each refusal with the server's own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from streams.retry_after import seconds_of

BACKENDS_OWN_DEADLINE_S = 10.0
MAX_ERROR_CHARS = 2_000
BUSY = frozenset({408, 425, 429, 503})
PROVING, UNPROVEN = "proving", "unproven"
"""Labels of weights that are being proven, and of weights that are in doubt."""


class VllmError(RuntimeError):
    """A server that cannot be reached, does not answer in time, or refuses; the text says what was asked of whom."""


class VllmRefusal(VllmError):
    """The server answered that it will not do what was asked; asking again is no use."""


class VllmBusy(VllmError):
    """The server, or what stands before it, cannot answer now; ``after_s`` is the wait it asks for, 0 if it does not say."""

    def __init__(self, text: str, after_s: float) -> None:
        super().__init__(text)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
        model: Name it serves the policy under.
        max_tokens: Longest sequence it takes, tokens.
        logprobs_mode: What its log-probabilities are of, as vLLM names it; empty without developer mode.
        world_size: Its number of ranks; 0 without developer mode.
    """

    model: str
    max_tokens: int
    logprobs_mode: str
    world_size: int


def error_text(response: httpx.Response) -> str:
    """The message in an error answer, or its body."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:MAX_ERROR_CHARS]
    error = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:MAX_ERROR_CHARS]


def checked(response: httpx.Response, what: str, url: str) -> dict[str, object]:
    """The answer as an object.

    Raises:
        VllmRefusal: the request was at fault, with the server's text.
        VllmBusy: it came at a bad time, with the server's text.
        VllmError: the server was at fault, with the server's text.
    """
    if response.status_code >= 400:
        text = f"{what} at {url}: HTTP {response.status_code}: {error_text(response)}"
        if response.status_code in BUSY:
            headers = response.headers
            raise VllmBusy(text, seconds_of(headers.get("Retry-After", ""), headers.get("Date", "")))
        raise VllmRefusal(text) if response.status_code < 500 else VllmError(text)
    try:
        body = response.json()
    except ValueError as error:
        raise VllmError(f"{what} at {url}: the answer is not JSON: {response.text[:200]!r}") from error
    if not isinstance(body, dict):
        raise VllmError(f"{what} at {url}: the answer is not an object: {response.text[:200]!r}")
    return body


class VllmClient:
    """Talks to one server, one request after the other.

    Args:
        url: its address, as http://host:port.
        transport: for tests; the network if not given.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, transport=transport)

    def _send(self, method: str, path: str, deadline_s: float, **values: object) -> dict[str, object]:
        what = f"{method} {path}"
        try:
            response = self._client.request(method, path, timeout=deadline_s, **values)
        except httpx.TimeoutException as error:
            raise VllmError(f"{what} at {self.url}: no answer within {deadline_s:g} s") from error
        except httpx.TransportError as error:
            raise VllmError(f"{what} at {self.url}: {type(error).__name__}: {error}; is the server running?") from error
        return checked(response, what, self.url)

    def get(self, path: str, deadline_s: float) -> dict[str, object]:
        """Ask for something; see :func:`checked`."""
        return self._send("GET", path, deadline_s)

    def post(
        self,
        path: str,
        deadline_s: float,
        body: Mapping[str, object] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, object]:
        """Ask to do something; see :func:`checked`."""
        return self._send("POST", path, deadline_s, json=dict(body or {}), params=dict(params or {}))

    def facts(self, deadline_s: float = BACKENDS_OWN_DEADLINE_S, needs_developer_mode: bool = True) -> ServerFacts:
        """What the server says of itself.

        Args:
            deadline_s: longest wait for each question, seconds.
            needs_developer_mode: weight updates and versions do; without it the model's name and length are enough.

        Raises:
            VllmError: it does not say what is needed.
        """
        try:
            served = self.get("/v1/models", deadline_s)["data"][0]
            name, max_tokens = str(served["id"]), int(served["max_model_len"])
            config = self._developer_config(deadline_s)
            if config is not None:
                mode, world_size = config["model_config"]["logprobs_mode"], config["parallel_config"]["world_size"]
                return ServerFacts(name, max_tokens, str(mode), int(world_size))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise VllmError(
                f"{self.url} describes itself in an unknown way: {type(error).__name__}: {error}"
            ) from error
        if needs_developer_mode:
            raise VllmError(f"{self.url} has no /server_info: start the server with VLLM_SERVER_DEV_MODE=1")
        return ServerFacts(name, max_tokens, "", 0)

    def _developer_config(self, deadline_s: float) -> dict[str, dict] | None:
        """Its settings; ``None`` without developer mode."""
        try:
            return self.get("/server_info?config_format=json", deadline_s)["vllm_config"]
        except VllmRefusal:
            return None

    def version(self, deadline_s: float = BACKENDS_OWN_DEADLINE_S) -> int | None:
        """The policy version the server is labelled with, or ``None`` if it was never given one of ours."""
        return split(self.label(deadline_s))[0]

    def label(self, deadline_s: float = BACKENDS_OWN_DEADLINE_S) -> str:
        """What the weights of the server are labelled with."""
        return label_in(self.get("/weight_info", deadline_s))


def label_in(answer: Mapping[str, object]) -> str:
    """The label in an answer of ``/weight_info``; a server starts with ``default``."""
    return str(answer.get("weight_version"))


def split(label: str) -> tuple[int | None, str]:
    """Version and way in a label; a label that is not one of a version has none.

    The way names the proof that stands behind the label; a server that was sent marked weights since has another one.

    >>> split("12/3fa8"), split("12"), split("default")
    ((12, '3fa8'), (12, ''), (None, ''))
    """
    version, _, way = label.partition("/")
    return (int(version), way) if version.isdecimal() else (None, "")
