"""The warm start imitates training seeds only, reproducibly, and is made once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from environments.episode import Episode
from environments.parsing import parser
from environments.registry import environment, load_tasks
from environments.scoring import Reference
from trainer.policy.loading import PolicyConfig, load_policy, train_tokenizer
from trainer.policy.template import CompactTemplate
from trainer.policy.warm_start import (
    HeldOutTask,
    WarmStartConfig,
    copy_batch,
    learning_rate,
    one_thread,
    texts_of,
    trace,
    training_tasks,
    warm_start,
)

POLICY = PolicyConfig(
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=32,
    vocab_size=320,
    max_tokens=1024,
)
IDS = ("multi_turn_base_144", "multi_turn_miss_func_133", "multi_turn_miss_param_45")


def config(folder: Path, **changes) -> WarmStartConfig:
    settings = {
        "policy": POLICY,
        "task_ids": IDS,
        "num_steps": 2,
        "num_copy_steps": 1,
        "batch_size": 2,
        "num_warmup_steps": 1,
        "cache_dir": folder,
    }
    return WarmStartConfig(**(settings | changes))


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def template() -> CompactTemplate:
    return CompactTemplate(train_tokenizer(texts_of(load_tasks("train")[:20]), 600))


def messages_of(ids: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    starts = [at for at in range(len(ids)) if mask[at] and not mask[at - 1]]
    ends = [at + 1 for at in range(len(ids)) if mask[at] and (at + 1 == len(ids) or not mask[at + 1])]
    return [ids[start:end].tolist() for start, end in zip(starts, ends, strict=True)]


def test_the_masked_tokens_of_a_trace_earn_the_full_reward_when_played(template: CompactTemplate) -> None:
    world = environment()
    for task in load_tasks("train")[::40]:
        made = trace(task, template, "bfcl-v3")
        episode = Episode(world, task, parser("compact"), Reference.of(world, task))
        seen = list(template.start_ids(task, tuple(episode.offered.values())))
        for message in messages_of(made.ids_T, made.mask_T):
            seen += [*template.incoming_ids(episode.incoming), *message]
            episode.step(template.message_text(message))
        assert episode.done and episode.reward == 1, task.task_id
        assert seen == made.ids_T.tolist(), task.task_id


def test_a_task_whose_reference_cannot_be_finished_gives_no_trace(template: CompactTemplate) -> None:
    task = load_tasks("train")[0]
    call = task.turns[0].ground_truth[0]
    endless = replace(task, turns=(replace(task.turns[0], ground_truth=(call,) * 9), *task.turns[1:]))
    assert trace(task, template, "bfcl-v3") is not None
    assert trace(endless, template, "bfcl-v3") is None


def test_equal_configs_give_equal_weights(tmp_path: Path) -> None:
    first, second = (warm_start(config(tmp_path / name)) for name in ("a", "b"))
    assert manifest(first)["weights_digest"] == manifest(second)["weights_digest"]
    assert first.name == second.name
    other = warm_start(config(tmp_path / "a", seed=1))
    assert manifest(other)["weights_digest"] != manifest(first)["weights_digest"] and other != first


def test_a_finished_warm_start_is_not_made_again(tmp_path: Path) -> None:
    seen: list[str] = []
    first = warm_start(config(tmp_path), lambda progress: seen.append(progress.phase))
    assert set(seen) == {"traces", "copy", "imitate", "done"}
    seen.clear()
    assert warm_start(config(tmp_path), lambda progress: seen.append(progress.phase)) == first
    assert seen == []


def test_variants_and_other_tasks_make_another_warm_start(tmp_path: Path) -> None:
    task = load_tasks("train")[0]
    variant = replace(task, task_id=f"{task.task_id}~1")
    plain, varied = warm_start(config(tmp_path)), warm_start(config(tmp_path), variants=[variant])
    assert plain != varied and manifest(varied)["num_variant_traces"] == 1
    assert manifest(plain)["data_digest"] != manifest(varied)["data_digest"]


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_held_out_task_is_refused(tmp_path: Path, split: str) -> None:
    held_out = load_tasks(split)[0].task_id
    with pytest.raises(HeldOutTask, match=held_out):
        training_tasks(config(tmp_path, task_ids=(held_out,)))
    assert not {task.task_id for task in training_tasks(config(tmp_path, task_ids=()))} & {
        task.task_id for task in load_tasks(split)
    }


def test_a_variant_of_a_held_out_task_is_refused(tmp_path: Path) -> None:
    held_out = load_tasks("val")[0]
    variant = replace(held_out, task_id=f"{held_out.task_id}~1")
    with pytest.raises(HeldOutTask, match=variant.task_id):
        warm_start(config(tmp_path), variants=[variant])


def test_a_few_steps_teach_one_task(tmp_path: Path) -> None:
    losses: list[float] = []
    folder = warm_start(
        config(tmp_path, task_ids=IDS[:1], num_steps=60, num_copy_steps=0, lr=1e-2),
        lambda progress: losses.append(progress.loss) if progress.phase == "imitate" else None,
    )
    assert losses[-1] < losses[0] / 4
    assert load_policy(folder).template.name == "compact"


def test_the_copy_warm_up_asks_only_for_what_was_said_before() -> None:
    batch = copy_batch(torch.Generator().manual_seed(0), 100, num=3, half=5)
    assert torch.equal(batch.ids_BT[:, :5], batch.ids_BT[:, 5:])
    assert batch.mask_BT.sum(dim=1).tolist() == [4, 4, 4] and not batch.mask_BT[:, :6].any()
    assert batch.ids_BT.min() > 7, "control tokens are not copied"


def test_the_learning_rate_rises_then_falls_to_its_share(tmp_path: Path) -> None:
    shape = config(tmp_path, num_steps=100, num_warmup_steps=10, lr=1.0, final_lr_frac=0.1)
    rates = [learning_rate(step, shape) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[100] == pytest.approx(0.1)
    assert max(rates) == rates[9] and rates[9:] == sorted(rates[9:], reverse=True)


def test_one_thread_is_given_back() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_the_cache_folder_does_not_decide_the_weights_nor_does_a_half_written_one_count(tmp_path: Path) -> None:
    folder = warm_start(config(tmp_path))
    (folder / "manifest.json").unlink()
    again = warm_start(config(tmp_path))
    assert again == folder and manifest(again)["num_seed_traces"] == len(IDS)
