"""The vLLM server sampler against a server in memory: what it asks for, what it records, what it refuses."""

import re
import time
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch

from schemas.events import FinishReason
from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.toys import STOPS, ToyEpisode, ToyTemplate, toy_task
from trainer.policy.causal_lm import halves
from trainer.rollouts.live_episode import LiveEpisode, NotWhatWasAsked
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.rollouts.vllm_client import VllmError
from trainer.rollouts.vllm_server_sampler import VllmServerSampler
from trainer.update.logprobs import padded, score

PARAMS = SamplingParams(seed=7, max_message_tokens=12, max_episode_tokens=90)


def requests_of(num_tasks=3, group_size=2, episode=ToyEpisode):
    tasks = [toy_task(f"base_{number}", 1 + number) for number in range(num_tasks)]
    return [RolloutRequest(task, episode(task), k, (1, task.task_id, k)) for task in tasks for k in range(group_size)]


def sampler_of(server, template=None, **values):
    return VllmServerSampler(
        "http://fake:1", template or ToyTemplate(), client=server.client(), transport=server.transport, **values
    )


@pytest.fixture(scope="module")
def played():
    server = FakeVllm()
    server.label = "3"
    ended = []
    return server, sampler_of(server).rollout(requests_of(), PARAMS, None, ended.append), ended


def completions(server):
    return [body for path, body in server.asked if path == "/v1/completions"]


def test_every_request_is_played_to_its_end_and_handed_on_as_it_ends(played):
    _, rollouts, ended = played
    assert [(r.task_id, r.rollout_index) for r in rollouts] == [(f"base_{n}", k) for n in range(3) for k in range(2)]
    assert all(r.episode.done for r in rollouts)
    assert {(r.task_id, r.rollout_index) for r in ended} == {(r.task_id, r.rollout_index) for r in rollouts}
    assert FinishReason.FINISHED in {r.episode.finish_reason for r in rollouts}


def test_the_recorded_logprobs_are_those_of_the_weights_that_sampled(played):
    server, rollouts, _ = played
    batch = padded([r.token_ids for r in rollouts], [r.mask for r in rollouts], torch.device("cpu"))
    with torch.no_grad():
        own_N = score(halves(server.model), batch).logprobs_N.numpy()
    np.testing.assert_allclose(np.concatenate([r.logprobs[r.mask == 1] for r in rollouts]), own_N, atol=2e-5)


def test_each_prompt_is_the_one_before_with_the_message_and_the_answer_appended_at_token_level(played):
    server, rollouts, _ = played
    prompts = [body["prompt"] for body in completions(server)]
    for rollout in rollouts:
        whole = rollout.token_ids.tolist()
        mine = [prompt for prompt in prompts if whole[: len(prompt)] == prompt]
        starts = [int(at) + 1 for at in np.flatnonzero(np.diff(rollout.mask.astype(int)) == 1)]
        assert {len(prompt) for prompt in mine} >= set(starts)


def test_the_request_leaves_no_choice_to_defaults_of_server_or_model(played):
    body = completions(played[0])[0]
    assert (
        body["stop_token_ids"] == sorted(STOPS) and body["ignore_eos"] is True and body["add_special_tokens"] is False
    )
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (
        1,
        1,
        -1,
        0,
        1,
    )
    assert body["max_tokens"] <= PARAMS.max_message_tokens


def test_the_label_of_the_weights_is_the_version_of_every_sampled_token(played):
    for rollout in played[1]:
        assert rollout.version_spans == ((int(np.flatnonzero(rollout.mask)[0]), 3),)


def test_the_same_requests_give_the_same_rollouts(played):
    again = sampler_of(FakeVllm()).rollout(requests_of(), PARAMS)
    assert [r.token_ids.tolist() for r in again] == [r.token_ids.tolist() for r in played[1]]


def test_an_update_between_two_messages_gives_spans_and_one_within_a_message_counts_as_the_older():
    server = FakeVllm()
    server.label = "4"

    def update(body):
        if len(completions(server)) == 2:
            server.label = "5"

    server.on_completion = update
    request = [request for request in requests_of(4) if request.task.task_id == "base_3"][0]
    rollout = sampler_of(server).rollout([request], replace(PARAMS, max_episode_tokens=200))[0]
    starts = [int(at) + 1 for at in np.flatnonzero(np.diff(rollout.mask.astype(int)) == 1)]
    assert len(starts) > 2 and rollout.version_spans == ((starts[0], 4), (starts[2], 5))


def test_a_request_that_the_server_refuses_is_an_invalid_rollout_with_the_servers_words():
    server = FakeVllm()
    server.broken["/v1/completions"] = (400, "This model's maximum context length is 8 tokens")
    rollouts = sampler_of(server).rollout(requests_of(1), PARAMS)
    assert all("HTTP 400: This model's maximum context length is 8 tokens" in r.error for r in rollouts)
    assert {r.episode.finish_reason for r in rollouts} == {FinishReason.ERROR}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ((500, "EngineCore died"), "HTTP 500: EngineCore died"),
        (httpx.ReadTimeout("slow"), "no answer within 300 s"),
        (httpx.ConnectError("refused"), "ConnectError: refused; is the server running"),
    ],
)
def test_a_broken_server_is_an_error_with_its_address_and_words(broken, words):
    server = FakeVllm()
    server.broken["/v1/completions"] = broken
    with pytest.raises(VllmError, match=f"POST /v1/completions at http://fake:1: {words}"):
        sampler_of(server).rollout(requests_of(1), PARAMS)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_after_the_time_it_asks_for(status):
    server, busy = FakeVllm(), [httpx.Response(status, headers={"Retry-After": "0.3"}, text="busy")]

    def handle(request):
        return busy.pop() if request.url.path == "/v1/completions" and busy else server.handle(request)

    sampler = VllmServerSampler(
        "http://fake:1", ToyTemplate(), client=server.client(), transport=lambda: httpx.MockTransport(handle)
    )
    started = time.monotonic()
    assert all(r.episode.done and not r.error for r in sampler.rollout(requests_of(1), PARAMS)) and not busy
    assert time.monotonic() - started >= 0.3


def test_a_server_that_stays_busy_ends_the_sampling_and_no_rollout_is_blamed():
    server, asked = FakeVllm(), []

    def handle(request):
        if request.url.path != "/v1/completions":
            return server.handle(request)
        asked.append(request)
        return httpx.Response(429, headers={"Retry-After": "0.01"}, json={"error": {"message": "queue is full"}})

    sampler = VllmServerSampler(
        "http://fake:1", ToyTemplate(), client=server.client(), transport=lambda: httpx.MockTransport(handle)
    )
    with pytest.raises(VllmError, match="HTTP 429: queue is full"):
        sampler.rollout(requests_of(1, 1), PARAMS)
    assert len(asked) == 3


def test_a_connection_that_breaks_once_is_tried_again():
    server, fails = FakeVllm(), [httpx.RemoteProtocolError("Server disconnected")]

    def handle(request):
        if request.url.path == "/v1/completions" and fails:
            raise fails.pop()
        return server.handle(request)

    sampler = VllmServerSampler(
        "http://fake:1", ToyTemplate(), client=server.client(), transport=lambda: httpx.MockTransport(handle)
    )
    assert all(r.episode.done and not r.error for r in sampler.rollout(requests_of(1), PARAMS)) and not fails


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: {**c, "prompt_token_ids": [0, *c["prompt_token_ids"]]}, "not the .* of this episode"),
        (lambda c: {**c, "token_ids": c["token_ids"] + [3]}, "log-probabilities"),
        (lambda c: {**c, "token_ids": [], "logprobs": {"token_logprobs": []}}, "0 tokens"),
        (
            lambda c: {
                **c,
                "token_ids": [1, *c["token_ids"][1:]] if len(c["token_ids"]) > 1 else [1, 3],
                "logprobs": {"token_logprobs": (c["logprobs"]["token_logprobs"] * 2)[: max(2, len(c["token_ids"]))]},
            },
            "behind a stop token",
        ),
        (lambda c: {**c, "logprobs": {"token_logprobs": [float("1e9")] * len(c["token_ids"])}}, "is not one"),
        (
            lambda c: {**c, "finish_reason": "stop", "token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}},
            "stopped at 5, which is no stop",
        ),
        (lambda c: {"text": "abc"}, "lacks"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(change, words):
    server = FakeVllm()
    server.change_answer = change
    with pytest.raises(NotWhatWasAsked, match=words):
        sampler_of(server).rollout(requests_of(1, 1), PARAMS)


@pytest.mark.parametrize(
    ("mode", "params", "words"),
    [
        ("raw_logprobs", {"temperature": 0.7}, "--logprobs-mode processed_logprobs"),
        ("processed_logprobs", {"top_p": 0.9}, "nucleus"),
        ("raw_logits", {}, "gives no log-probabilities"),
    ],
)
def test_a_server_whose_logprobs_are_of_another_distribution_is_refused(mode, params, words):
    with pytest.raises(NotWhatWasAsked, match=words):
        sampler_of(FakeVllm(mode)).rollout(requests_of(1), replace(PARAMS, **params))


def plain_server():
    """A server without developer mode."""
    server = FakeVllm()
    server.broken |= dict.fromkeys(("/server_info", "/weight_info"), (404, "Not Found"))
    return server


def test_in_a_run_a_server_without_developer_mode_is_named_as_such():
    with pytest.raises(VllmError, match="http://fake:1 has no /server_info: .*VLLM_SERVER_DEV_MODE=1"):
        sampler_of(plain_server(), needs_version=True).rollout(requests_of(1), PARAMS)


def test_outside_a_run_such_a_server_is_played_with_and_no_version_is_recorded():
    server = plain_server()
    rollouts = sampler_of(server).rollout(requests_of(), replace(PARAMS, temperature=0.7, greedy=True))
    assert all(r.episode.done and not r.error and r.version_spans == () for r in rollouts)
    assert not [path for path, _ in server.asked if path == "/weight_info"]


@pytest.mark.parametrize("label", ["default", "unproven"])
def test_in_a_run_a_server_without_a_version_is_not_sampled_from(label):
    server = FakeVllm()
    server.label = label
    with pytest.raises(
        VllmError, match=f"http://fake:1 carries the label '{label}' instead of a version: it was started again"
    ):
        sampler_of(server, needs_version=True).rollout(requests_of(1), PARAMS)
    assert completions(server) == []


def test_in_a_run_a_server_that_is_started_again_within_a_message_ends_the_sampling():
    server = FakeVllm()
    server.label = "9"
    server.on_completion = lambda body: setattr(server, "label", "default")
    with pytest.raises(VllmError, match="carries the label 'default'"):
        sampler_of(server, needs_version=True).rollout(requests_of(1), PARAMS)


def test_while_new_weights_are_being_proven_a_message_waits_for_their_label():
    server, labels = FakeVllm(), ["proving", "proving", "4"]
    server.do_weight_info = lambda body: {"weight_version": labels.pop(0) if len(labels) > 1 else labels[0]}
    server.on_completion = lambda body: labels == ["4"] or pytest.fail("sampled from weights that were not proven")
    rollouts = sampler_of(server, needs_version=True).rollout(requests_of(1, 1), PARAMS)
    assert [version for _, version in rollouts[0].version_spans] == [4]


def test_a_message_in_whose_time_the_server_was_sent_marked_weights_is_sampled_again():
    server, answers = FakeVllm(), []
    server.label = "4/aa"

    def other_way(choice):
        answers.append(choice)
        server.label = "4/bb" if len(answers) == 1 else "5/bb"
        return choice

    server.change_answer = other_way
    rollout = sampler_of(server, needs_version=True).rollout(requests_of(1, 1), PARAMS)[0]
    assert len(answers) == 2 and answers[0]["token_ids"] == answers[1]["token_ids"]
    assert [version for _, version in rollout.version_spans] == [4] and not rollout.error


def test_weights_that_are_never_proven_end_the_sampling_at_the_deadline():
    server = FakeVllm()
    server.label = "proving"
    with pytest.raises(VllmError, match="its new weights were not proven within 0.3 s"):
        sampler_of(server, needs_version=True, deadline_s=0.3).rollout(requests_of(1), PARAMS)


@pytest.mark.parametrize(
    ("change", "num_tokens"),
    [
        (lambda c: {**c, "finish_reason": "abort"}, ".*"),
        (lambda c: {**c, "finish_reason": "repetition"}, ".*"),
        (lambda c: {**c, "finish_reason": "abort", "token_ids": [], "logprobs": None}, "0"),
        (lambda c: {**c, "finish_reason": "length", "token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}}, "1"),
    ],
)
def test_a_message_that_the_server_breaks_off_is_an_invalid_rollout_and_not_one_that_ran_too_long(change, num_tokens):
    server = FakeVllm()
    server.label, server.change_answer = "3", change
    for rollout in sampler_of(server, needs_version=True).rollout(requests_of(1), PARAMS):
        assert rollout.episode.finish_reason is FinishReason.ERROR and rollout.mask.sum() == 0
        assert re.search(
            f"message 0: the engine broke it off after {num_tokens} tokens: (abort|length|repetition)", rollout.error
        )


class Lossy(ToyTemplate):
    """Decoding loses: several ids read as the same letter, so encoding what was decoded gives other ids."""

    def message_text(self, ids):
        return "".join("." if id_ in STOPS else "a" if id_ % 2 else "b" for id_ in ids)


def test_with_a_tokenizer_whose_decode_encode_is_not_the_identity_the_sampled_ids_are_kept():
    server, answers = FakeVllm(), []
    server.change_answer = lambda choice: answers.append(choice) or choice
    for rollout in sampler_of(server, Lossy()).rollout(requests_of(), PARAMS):
        assert all(set(message.text) <= {"a", "b", "."} for message in rollout.episode.messages)
        whole = rollout.token_ids.tolist()
        mine = [
            c
            for c in answers
            if whole[: len(c["prompt_token_ids"])] == c["prompt_token_ids"]
            and whole[len(c["prompt_token_ids"]) :][: len(c["token_ids"])] == c["token_ids"]
        ]
        assert sum(len(c["token_ids"]) for c in mine) >= int(rollout.mask.sum()) > 0
    assert len({id_ for choice in answers for id_ in choice["token_ids"]} - STOPS) > 2


def test_an_episode_without_room_is_over_before_anything_is_asked():
    live = LiveEpisode(requests_of(1, 1)[0], ToyTemplate(), replace(PARAMS, max_episode_tokens=3), 256)
    assert live.is_over and live.rollout().token_ids.tolist() == []
    assert live.request.episode.finish_reason is FinishReason.TOKEN_LIMIT
