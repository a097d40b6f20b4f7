"""The shipped configurations: they load, they hold the published numbers, and every number has its source."""

import re

import pytest

from commands.config import DEFAULT_FILE, StageSection, load_config

FOLDER = DEFAULT_FILE.parent
SOURCED = ("default.toml", "paper-qwen3-4b.toml", "envtuning.toml")
WORDS = (
    "RODS", "measured", "EnvTuning", "paper", "choice", "likewise", "verl", "bfloat16 server", "unpublished", "plain environment")


def config_of(name):
    return load_config(FOLDER / name, {}, [])


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.toml")))
def test_every_shipped_configuration_loads(name):
    assert config_of(name).stages


@pytest.mark.parametrize("name", SOURCED)
def test_every_value_says_where_it_comes_from(name):
    for number, line in enumerate((FOLDER / name).read_text().splitlines(), 1):
        if re.match(r"[a-z_]+ = ", line) and not line.startswith("name = "):
            assert any(word in line for word in WORDS), f"{name}:{number}: {line}"


def test_the_papers_numbers_are_in_the_papers_configuration():
    config = config_of("paper-qwen3-4b.toml")
    assert [(s.name, s.epochs, s.reward.value, s.synthesis, len(s.categories)) for s in config.stages] == [
        ("format", 5, "format", False, 1), ("base", 5, "progress", False, 1), ("full", 5, "progress", True, 4)]
    trainer = config.trainer
    assert (trainer.group_size, trainer.learning_rate, trainer.kl_coef, trainer.num_minibatches) == (16, 1e-6, 0.01, 1)
    assert (trainer.clip_low, trainer.clip_high, trainer.dual_clip, trainer.max_grad_norm) == (0.2, 0.28, 10, 1)
    pool = config.pool
    assert (pool.alpha_low, pool.alpha_high, pool.alpha_retire, pool.max_generated) == (0.2, 0.85, 0.95, 400)
    assert pool.batch_size * trainer.group_size == 512


def test_envtunings_stages_end_when_they_have_converged_and_make_no_tasks():
    config = config_of("envtuning.toml")
    assert [stage.advance.by for stage in config.stages] == ["converged"] * 3
    assert config.pool.static_pool and not any(stage.synthesis for stage in config.stages)
    assert (config.trainer.kl_coef, config.trainer.loss_aggregation.value) == (0.1, "seq_mean_token_mean")


def test_a_stage_that_may_end_early_makes_no_tasks():
    with pytest.raises(ValueError, match="needs synthesis = false"):
        StageSection(name="a", epochs=2, synthesis=True, advance={"by": "converged"})
    with pytest.raises(ValueError, match="kept for continued stages"):
        StageSection(name="a+1", epochs=2)
