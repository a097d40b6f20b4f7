"""The transformers sampler: what it shows, what it samples and what it records."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config

from schemas.events import FinishReason
from tests.trainer.toys import STOPS, ToyEpisode, ToyTemplate, toy_model, toy_task
from trainer.policy.causal_lm import halves
from trainer.policy.kv_cache import BufferedCache
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import RolloutRequest, SamplingParams
from trainer.update.logprobs import padded, score

PARAMS = SamplingParams(seed=7, max_message_tokens=40, max_episode_tokens=200)


def requests_of(tasks, group_size=3, episode=ToyEpisode):
    return [RolloutRequest(task, episode(task), k, (1, task.task_id, k)) for task in tasks for k in range(group_size)]


def some_tasks():
    return [toy_task(f"base_{'x' * number}", num_turns=1 + number) for number in range(4)]


@pytest.fixture(scope="module")
def model():
    return toy_model()


@pytest.fixture(scope="module")
def rollouts(model):
    return HFSampler(model, ToyTemplate()).rollout(requests_of(some_tasks()), PARAMS)


def test_results_come_in_the_order_of_the_requests_and_all_have_ended(rollouts):
    assert [(r.task_id, r.rollout_index) for r in rollouts] == [
        (task.task_id, k) for task in some_tasks() for k in range(3)
    ]
    assert all(rollout.episode.done for rollout in rollouts)
    assert {rollout.episode.finish_reason for rollout in rollouts} >= {FinishReason.FINISHED}


def test_the_recorded_logprobs_are_those_of_the_policy(model, rollouts):
    batch = padded([r.token_ids for r in rollouts], [r.mask for r in rollouts], model.device)
    with torch.no_grad():
        own_N = score(halves(model), batch).logprobs_N.numpy()
    recorded_N = np.concatenate([rollout.logprobs[rollout.mask == 1] for rollout in rollouts])
    np.testing.assert_allclose(recorded_N, own_N, atol=2e-5)
    assert all((rollout.logprobs[rollout.mask == 0] == 0).all() for rollout in rollouts)


def spans_of(rollout):
    """(sampled?, ids) of every run of equal mask."""
    edges = np.flatnonzero(np.diff(rollout.mask)) + 1
    parts = np.split(np.arange(len(rollout.mask)), edges)
    return [(bool(rollout.mask[part[0]]), rollout.token_ids[part].tolist()) for part in parts]


def test_the_mask_is_one_exactly_on_the_messages_and_shown_text_is_what_the_template_gave(rollouts):
    template = ToyTemplate()
    for rollout in rollouts:
        fresh = ToyEpisode(rollout.episode.task)
        shown = [template.start_ids(fresh.task, ()) + template.incoming_ids(fresh.incoming)]
        texts = []
        for sampled, ids in spans_of(rollout):
            if not sampled:
                assert ids == shown.pop()
            else:
                texts.append(template.message_text(ids))
                if ids[-1] in STOPS:
                    fresh.step(texts[-1])
                    shown.append(template.incoming_ids(fresh.incoming))
        assert [message.text for message in rollout.episode.messages] == texts[: len(rollout.episode.messages)]


def test_a_message_ends_with_its_stop_token_and_holds_no_other(rollouts):
    finished = [r for r in rollouts if r.episode.finish_reason is FinishReason.FINISHED]
    spans = [ids for rollout in finished for sampled, ids in spans_of(rollout) if sampled]
    assert spans
    assert all(ids[-1] in STOPS and STOPS.isdisjoint(ids[:-1]) for ids in spans)


def test_the_same_requests_give_the_same_bytes(model, rollouts):
    again = HFSampler(model, ToyTemplate()).rollout(requests_of(some_tasks()), PARAMS)
    for first, second in zip(rollouts, again, strict=True):
        assert first.token_ids.tobytes() == second.token_ids.tobytes()
        assert first.logprobs.tobytes() == second.logprobs.tobytes()


def test_a_rollout_does_not_depend_on_what_else_is_in_the_batch(model, rollouts):
    request = requests_of(some_tasks())[7]
    alone = HFSampler(model, ToyTemplate()).rollout([request], PARAMS)[0]
    assert alone.token_ids.tolist() == rollouts[7].token_ids.tolist()
    np.testing.assert_allclose(alone.logprobs, rollouts[7].logprobs, atol=2e-5)


def test_rollouts_of_a_group_differ_and_another_seed_gives_others(model, rollouts):
    assert len({rollout.token_ids.tobytes() for rollout in rollouts[9:12]}) == 3
    params = SamplingParams(seed=8, max_message_tokens=40, max_episode_tokens=200)
    others = HFSampler(model, ToyTemplate()).rollout(requests_of(some_tasks()), params)
    assert all(a.token_ids.tobytes() != b.token_ids.tobytes() for a, b in zip(rollouts, others, strict=True))


def test_greedy_rollouts_of_a_group_are_equal_and_follow_the_likeliest_token(model):
    params = SamplingParams(seed=0, max_message_tokens=12, max_episode_tokens=60, greedy=True)
    played = HFSampler(model, ToyTemplate()).rollout(requests_of([toy_task()], 2), params)
    assert played[0].token_ids.tolist() == played[1].token_ids.tolist()
    ids = torch.from_numpy(played[0].token_ids.astype(np.int64))[None]
    with torch.no_grad():
        likeliest = model(input_ids=ids).logits[0].argmax(-1)
    sampled = np.flatnonzero(played[0].mask)
    assert likeliest[sampled - 1].tolist() == played[0].token_ids[sampled].tolist()


class NeverStops(ToyTemplate):
    stop_ids = frozenset({1000})


def test_a_message_that_does_not_end_cuts_its_episode(model):
    params = SamplingParams(seed=0, max_message_tokens=9, max_episode_tokens=200)
    for rollout in HFSampler(model, NeverStops()).rollout(requests_of(some_tasks()), params):
        assert rollout.episode.finish_reason is FinishReason.TOKEN_LIMIT
        assert rollout.mask.sum() == 9
        assert rollout.episode.messages == ()


def test_an_episode_never_grows_beyond_its_limit(model):
    params = SamplingParams(seed=0, max_message_tokens=100, max_episode_tokens=30)
    played = HFSampler(model, ToyTemplate()).rollout(requests_of(some_tasks()), params)
    assert max(len(rollout.token_ids) for rollout in played) <= 30
    cut = [rollout for rollout in played if rollout.episode.finish_reason is FinishReason.TOKEN_LIMIT]
    assert cut and len(cut) < len(played)


def test_a_prompt_without_room_for_an_answer_is_cut_before_a_token_is_fed(model):
    params = SamplingParams(seed=0, max_message_tokens=5, max_episode_tokens=12)
    long, short = toy_task("base_with_a_long_name", 1), toy_task("b", 1)
    played = HFSampler(model, ToyTemplate()).rollout(requests_of([long, short], 1), params)
    assert played[0].episode.finish_reason is FinishReason.TOKEN_LIMIT and len(played[0].token_ids) == 0
    assert played[1].mask.sum() > 0


def test_the_length_a_model_was_built_for_is_a_limit_too():
    played = HFSampler(toy_model(max_tokens=24), NeverStops()).rollout(requests_of([toy_task()], 2), PARAMS)
    assert [len(rollout.token_ids) for rollout in played] == [24, 24]


class Breaks(ToyEpisode):
    def step(self, text):
        if self.task.task_id == "base_xx":
            raise KeyError("a tool of this environment is broken")
        return super().step(text)


def test_an_environment_that_breaks_ends_its_own_episodes_and_no_other(model, rollouts):
    played = HFSampler(model, ToyTemplate()).rollout(requests_of(some_tasks(), episode=Breaks), PARAMS)
    for rollout, whole in zip(played, rollouts, strict=True):
        if rollout.task_id == "base_xx" and rollout.error:
            assert rollout.episode.finish_reason is FinishReason.ERROR
            assert "KeyError" in rollout.error
        else:
            assert rollout.token_ids.tolist() == whole.token_ids.tolist()
    assert any(rollout.error for rollout in played)


def test_progress_is_told_up_to_the_last_rollout(model):
    told = []
    HFSampler(model, ToyTemplate()).rollout(requests_of(some_tasks()), PARAMS, lambda *counts: told.append(counts))
    assert told[-1] == (12, 12)
    assert told == sorted(told)


def fed_to(model, requests):
    """What was played, and the token ids of every call of the decoder, shape (live rows, new tokens)."""
    sampler, fed = HFSampler(model, ToyTemplate()), []
    handle = model.model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].numpy()), with_kwargs=True
    )
    try:
        return sampler.rollout(requests, PARAMS), fed
    finally:
        handle.remove()


def test_every_position_is_read_once_however_many_turns_an_episode_has(model):
    requests = [RolloutRequest(task, ToyEpisode(task), 0, (1, task.task_id, k)) for k, task in enumerate(some_tasks())]
    for request in requests:
        (rollout,), fed = fed_to(model, [request])
        assert np.concatenate(fed, axis=1)[0].tolist() == rollout.token_ids[:-1].tolist()
        assert len(spans_of(rollout)) == 2 * len(rollout.episode.messages)
    assert max(len(request.episode.messages) for request in requests) > 2


def test_rows_of_a_batch_are_read_once_too(model):
    played, fed = fed_to(model, requests_of(some_tasks()))
    assert sum(ids.size for ids in fed) == sum(len(rollout.token_ids) - 1 for rollout in played)


def test_no_requests_give_no_rollouts(model):
    assert HFSampler(model, ToyTemplate()).rollout([], PARAMS) == []


def test_long_episodes_outgrow_the_first_buffer_and_stay_right():
    model = toy_model(max_tokens=900)
    params = SamplingParams(seed=3, max_message_tokens=600, max_episode_tokens=900)
    tasks = [toy_task(f"base_{'y' * (40 * number)}", num_turns=2) for number in range(4)]
    played = HFSampler(model, NeverStops()).rollout(requests_of(tasks, 2), params)
    assert {len(rollout.token_ids) > 600 for rollout in played} == {True}
    batch = padded([r.token_ids for r in played], [r.mask for r in played], model.device)
    with torch.no_grad():
        own_N = score(halves(model), batch).logprobs_N.numpy()
    np.testing.assert_allclose(np.concatenate([r.logprobs[r.mask == 1] for r in played]), own_N, atol=1e-4)


def test_a_model_with_other_layers_than_full_attention_is_refused_by_name():
    config = Qwen3Config(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], sliding_window=8)
    with pytest.raises(ValueError, match="qwen3.*sliding_attention"):
        BufferedCache(config, 64)
