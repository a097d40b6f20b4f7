"""Real tasks, the compact format and a small untrained policy: the parts fit together."""

from dataclasses import replace

import numpy as np
import pytest

from environments.registry import load_tasks
from schemas import make
from schemas.events import BatchPlanned, FinishReason, GroupStatus
from trainer.policy.loading import PolicyConfig, build_policy
from trainer.policy.template import CompactTemplate
from trainer.policy.warm_start import texts_of
from trainer.rollouts.episodes import EpisodeMaker, UnplayableTask
from trainer.rollouts.groups import groups_of, play_batch
from trainer.rollouts.hf_sampler import HFSampler
from trainer.rollouts.sampler import SamplingParams

SMALL = PolicyConfig(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=64,
    vocab_size=400,
    max_tokens=512,
)


def test_an_untrained_policy_plays_real_tasks_to_an_end():
    tasks = {task.task_id: task for task in load_tasks("train")[::150]}
    model, tokenizer = build_policy(SMALL, texts_of(list(tasks.values())))
    plan = make(BatchPlanned, "run", step=1, epoch=0, task_ids=tuple(tasks), is_last_of_epoch=True, input_cursor=())
    template = CompactTemplate(tokenizer)
    params = SamplingParams(seed=0, max_message_tokens=24, max_episode_tokens=400)
    bodies = play_batch(plan, tasks, 4, HFSampler(model, template), params, EpisodeMaker(template.parser))
    groups = groups_of(plan, bodies)
    assert [group.status for group in groups] == [GroupStatus.COMPLETED] * len(tasks)
    for body in bodies:
        assert body.finish_reason in (FinishReason.FINISHED, FinishReason.TOKEN_LIMIT)
        assert np.isfinite(body.reward) and len(body.turn_verdicts) == len(tasks[body.task_id].turns)
    assert any(body.messages for body in bodies)


def test_a_task_that_its_environment_cannot_start_is_named():
    task = replace(load_tasks("train")[0], involved_classes=("NoSuchClass",), task_id="broken_1")
    with pytest.raises(UnplayableTask, match="broken_1"):
        EpisodeMaker("compact")(task)


def test_episodes_of_one_task_share_nothing():
    task = load_tasks("train")[0]
    new_episode = EpisodeMaker("compact")
    first, second = new_episode(task), new_episode(task)
    first.step("<e>")
    assert first.messages and not second.messages and second.incoming[0].text == task.turns[0].user_text
