"""Whether a sampling engine has the weights it was sent: its log-probabilities against the trainer's.

Two questions. *Does the way work?* Marked weights, every one negated, are sent once and must change what the engine says
as they change what the trainer says. One update moves a policy by less than a bfloat16 engine differs from the trainer
anyway, so this is what tells a faithful engine from one that keeps its old weights. *Is this update sound?* A short probe
after every update must agree within a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.policy.causal_lm import halves
from trainer.rollouts.live_episode import NotWhatWasAsked
from trainer.update.logprobs import padded, score

PROMPT_TOKENS, PROBE_TOKENS, MARKED_TOKENS, SEED = 24, 8, 32, 20_260_619
Ask = Callable[[list[int], int], tuple[list[int], list[float]]]
"""Samples so many tokens behind a prompt; returns their ids and log-probabilities."""


def probe_ids(vocab_size: int) -> list[int]:
    """A fixed text: ids spread over a vocabulary."""
    return [(7_919 * number + 13) % vocab_size for number in range(PROMPT_TOKENS)]


@torch.no_grad()
def likeliest(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """What the model says behind a prompt when it takes the likeliest token each time."""
    policy, ids = halves(model), list(prompt)
    for _ in range(num_tokens):
        hidden = policy.decoder(input_ids=torch.tensor([ids], device=policy.device)).last_hidden_state
        ids.append(int(policy.head(hidden[0, -1]).argmax()))
    return ids[len(prompt) :]


def own_logprobs(model: PreTrainedModel, prompt: list[int], ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """The model's log-probabilities of ``ids`` behind ``prompt``, shape (len(ids),), float64."""
    policy = halves(model)
    tokens = padded([np.array(prompt + ids)], [np.array([0] * len(prompt) + [1] * len(ids))], policy.device)
    with torch.no_grad():
        return score(policy, tokens, temperature).logprobs_N.double().cpu().numpy()


def probe_gap(ask: Ask, model: PreTrainedModel, temperature: float = 1.0) -> float:
    """Largest difference between an engine's log-probabilities of a message it samples and the model's own, nats.

    Raises:
        NotWhatWasAsked: the engine did not sample as many tokens.
    """
    prompt = probe_ids(model.config.vocab_size)
    ids, logprobs = sampled(ask, prompt, PROBE_TOKENS)
    return float(np.abs(own_logprobs(model, prompt, ids, temperature) - logprobs).max())


def sampled(ask: Ask, prompt: list[int], num_tokens: int) -> tuple[list[int], np.ndarray]:
    """What an engine samples, its log-probabilities as float64.

    Raises:
        NotWhatWasAsked: it did not sample as many tokens.
    """
    ids, logprobs = ask(prompt, num_tokens)
    if not len(ids) == len(logprobs) == num_tokens:
        raise NotWhatWasAsked(
            f"{len(ids)} tokens with {len(logprobs)} log-probabilities came back, {num_tokens} were asked for"
        )
    return ids, np.array(logprobs, np.float64)


@contextmanager
def marked(model: PreTrainedModel) -> Iterator[None]:
    """Every weight negated meanwhile; negating again restores them to the last bit."""
    _negate(model)
    try:
        yield
    finally:
        _negate(model)


@torch.no_grad()
def _negate(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        parameter.neg_()


def takes_weights(bring: Callable[[], None], ask: Ask, model: PreTrainedModel, temperature: float = 1.0) -> bool:
    """Whether an engine samples with the weights it is sent; it holds marked ones afterwards.

    Its log-probabilities must be nearer to those of the marked weights than to those of the real ones by a factor of 2.

    Args:
        bring: sends the weights the model has when it is called.
        ask: samples.
        model: the policy; the same afterwards.
        temperature: of the sampling.

    Raises:
        NotWhatWasAsked: the engine did not sample as many tokens.
    """
    prompt = probe_ids(model.config.vocab_size)
    with marked(model):
        bring()
        ids, theirs = sampled(ask, prompt, MARKED_TOKENS)
        from_marked = np.abs(own_logprobs(model, prompt, ids, temperature) - theirs).mean()
    return bool(2 * from_marked < np.abs(own_logprobs(model, prompt, ids, temperature) - theirs).mean())
