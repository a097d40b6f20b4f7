"""A chat policy plays a real task: what is recorded is what was shown and sampled, to the id, in both kinds of sampler.

What the policy says is written down here: it thinks, calls the reference calls, and answers. Its messages are spelled
letter by letter, as a policy may, so encoding their text gives other ids. The prompt format strips the thinking of
earlier turns when a conversation is rendered again, which must never happen.
"""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from environments.registry import environment, load_tasks
from schemas.events import Category, FinishReason
from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.toys import toy_model
from trainer.policy.causal_lm import halves
from trainer.policy.template import SYSTEM_TEXT, ChatTemplate, described
from trainer.policy.warm_start import texts_of
from trainer.rollouts import hf_sampler
from trainer.rollouts.episodes import EpisodeMaker
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.rollouts.token_choice import uniforms
from trainer.rollouts.vllm_server_sampler import VllmServerSampler
from trainer.update.logprobs import padded, score

STRIPS_THINKING = r"""
{%- set last = namespace(question=0) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}{% endfor -%}
{%- if messages[0].role == 'system' or tools -%}
{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else '') -}}
{%- if tools %}{{ '\n\n<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n</tools>' }}{% endif -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' -}}
{%- elif m.role == 'assistant' -%}
{%- set said = m.content if loop.index0 > last.question else m.content.split('</think>')[-1].lstrip('\n') -%}
{{- '<|im_start|>assistant\n' + said -}}
{%- for call in m.tool_calls or [] -%}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- elif m.role == 'tool' -%}
{%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
PARAMS = SamplingParams(seed=5, max_message_tokens=1_500, max_episode_tokens=30_000)


def base_tasks():
    """Two real tasks of several turns."""
    tasks = [
        task
        for task in load_tasks("train")
        if task.category is Category.BASE
        and len(task.turns) >= 3
        and all(turn.ground_truth for turn in task.turns)
        and len(task.involved_classes) == 1
    ]
    return tasks[0], tasks[7]


@pytest.fixture(scope="module")
def tasks():
    return base_tasks()


@pytest.fixture(scope="module")
def tokenizer(tasks):
    """A byte-level BPE with chat tokens, trained on the tasks' texts and tools."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tools = [json.dumps(described(schema)) for task in tasks for schema in environment().tools(task).values()]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend.train_from_iterator(
        [*texts_of(list(tasks)), *tools],
        trainers.BpeTrainer(
            vocab_size=900,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=STRIPS_THINKING)


@pytest.fixture(scope="module")
def model(tokenizer):
    return toy_model(max_tokens=32_768, num_ids=len(tokenizer))


def script_of(task, tokenizer):
    """What the policy says, message by message, letter by letter, each with its stop token."""
    texts = []
    for number, turn in enumerate(task.turns):
        calls = "\n".join(
            f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments_json}}}\n</tool_call>'
            for call in turn.ground_truth
        )
        texts += [
            f"<think>\nturn {number} of {task.task_id}\n</think>\n\n{calls}",
            f"<think>\nall of {number}\n</think>\n\nDone.",
        ]
    return [[*(id_ for letter in text for id_ in tokenizer.encode(letter)), tokenizer.eos_token_id] for text in texts]


def expected_ids(task, rollout, tokenizer):
    """Ids and mask of the whole episode, put together here: rendered start, then what was said and what came between."""
    tools = [described(schema) for schema in rollout.episode.offered.values()]
    start = tokenizer.apply_chat_template(
        [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": task.turns[0].user_text}],
        tools=tools,
        add_generation_prompt=True,
        tokenize=False,
    )
    ids, mask, turn = [], [], 0
    between = start
    for message, said in zip(rollout.episode.messages, script_of(task, tokenizer), strict=True):
        for part, sampled in ((tokenizer.encode(between, add_special_tokens=False), 0), (said, 1)):
            ids += part
            mask += [sampled] * len(part)
        if message.results:
            shown = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in message.results)
        else:
            turn += 1
            shown = "\n" + task.turns[turn].user_text if turn < len(task.turns) else ""
        between = f"\n<|im_start|>user{shown}<|im_end|>\n<|im_start|>assistant\n"
    return ids, mask


def requests_of(tasks):
    maker = EpisodeMaker("hermes")
    return [RolloutRequest(task, maker(task), 0, (1, task.task_id, 0)) for task in tasks]


def with_transformers(monkeypatch, model, tokenizer, tasks):
    """Rollouts of the transformers sampler, whose choices are those of the scripts."""
    requests = requests_of(tasks)
    scripts = [iter([id_ for said in script_of(task, tokenizer) for id_ in said]) for task in tasks]
    owner = {
        float(number): i
        for i, r in enumerate(requests)
        for number in uniforms(PARAMS.seed, r.stream_key, PARAMS.max_episode_tokens)
    }

    def choose(logits_RV, uniforms_R, params):
        ids_R = torch.tensor([next(scripts[owner[float(number)]]) for number in uniforms_R])
        return ids_R, logits_RV.float().log_softmax(-1).gather(1, ids_R[:, None])[:, 0]

    monkeypatch.setattr(hf_sampler, "choose", choose)
    return HFSampler(model, ChatTemplate(tokenizer)).rollout(requests, PARAMS), []


def with_vllm(monkeypatch, model, tokenizer, tasks):
    """Rollouts of the server sampler and the prompts the server was sent; it says what the scripts say."""
    server, prompts = FakeVllm(), []
    scripts = {task.turns[0].user_text: iter(script_of(task, tokenizer)) for task in tasks}

    def sampled(body):
        prompts.append(body["prompt"])
        shown = tokenizer.decode(body["prompt"])
        said = next(script for first, script in scripts.items() if first in shown)
        ids = next(said)
        batch = padded(
            [np.array(body["prompt"] + ids)], [np.array([0] * len(body["prompt"]) + [1] * len(ids))], model.device
        )
        with torch.no_grad():
            logprobs = score(halves(model), batch).logprobs_N.tolist()
        return {
            "choices": [
                {
                    "prompt_token_ids": body["prompt"],
                    "token_ids": ids,
                    "finish_reason": "stop",
                    "logprobs": {"token_logprobs": logprobs},
                }
            ]
        }

    server.sampled = sampled
    server.do_v1_models = lambda body: {"data": [{"id": "policy", "max_model_len": 32_768}]}
    sampler = VllmServerSampler(
        "http://fake:1", ChatTemplate(tokenizer), client=server.client(), transport=server.transport
    )
    return sampler.rollout(requests_of(tasks), PARAMS), prompts


@pytest.fixture(params=[with_transformers, with_vllm], ids=["transformers", "vllm"])
def played(request, monkeypatch, model, tokenizer, tasks):
    return request.param(monkeypatch, model, tokenizer, tasks)


def test_what_is_recorded_is_what_was_shown_and_sampled_to_the_id(played, tokenizer, tasks, model):
    rollouts, prompts = played
    for task, rollout in zip(tasks, rollouts, strict=True):
        assert rollout.error == "" and rollout.episode.finish_reason is FinishReason.FINISHED
        assert rollout.episode.turn_verdicts == (1,) * len(task.turns) and len(task.turns) >= 3
        ids, mask = expected_ids(task, rollout, tokenizer)
        assert rollout.token_ids.tolist() == ids and rollout.mask.tolist() == mask
        batch = padded([rollout.token_ids], [rollout.mask], model.device)
        with torch.no_grad():
            np.testing.assert_allclose(
                rollout.logprobs[rollout.mask == 1], score(halves(model), batch).logprobs_N.numpy(), atol=1e-4
            )
    for prompt in prompts:
        assert any(rollout.token_ids[: len(prompt)].tolist() == prompt for rollout in rollouts)


def test_each_message_continues_the_very_ids_of_the_one_before_and_earlier_thinking_stays(
    monkeypatch, model, tokenizer, tasks
):
    rollouts, prompts = with_vllm(monkeypatch, model, tokenizer, tasks[:1])
    said = script_of(tasks[0], tokenizer)
    assert len(prompts) == len(said) == 2 * len(tasks[0].turns)
    for before, message, after in zip(prompts, said, prompts[1:], strict=False):
        assert after[: len(before) + len(message)] == before + message and len(after) > len(before) + len(message)
    assert "<think>\nturn 0 of" in tokenizer.decode(prompts[-1])


def test_these_formats_and_messages_would_change_if_they_were_rendered_or_encoded_again(tokenizer, tasks):
    said = script_of(tasks[0], tokenizer)
    for ids in said:
        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}]
    assert "hm" in tokenizer.apply_chat_template(talk, tokenize=False)
    assert "hm" not in tokenizer.apply_chat_template([*talk, {"role": "user", "content": "c"}], tokenize=False)
