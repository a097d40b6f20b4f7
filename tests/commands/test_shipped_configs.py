"""The shipped configurations: they load, they hold the published numbers, and every number has its source."""

import re

import pytest

from commands.config import DEFAULT_FILE, PolicySection, StageSection, load_config
from environments.parsing import parser
from schemas.events import MessageOutcome

FOLDER = DEFAULT_FILE.parent
SOURCED = ("default.toml", "paper-qwen3-4b.toml", "envtuning.toml")
WORDS = (
    "RODS",
    "measured",
    "EnvTuning",
    "paper",
    "choice",
    "likewise",
    "verl",
    "bfloat16 server",
    "unpublished",
    "plain environment",
)


def config_of(name):
    return load_config(FOLDER / name, {}, [])


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.toml")))
def test_every_shipped_configuration_loads(name):
    assert config_of(name).stages


@pytest.mark.parametrize("name", SOURCED)
def test_every_value_says_where_it_comes_from(name):
    lines = (FOLDER / name).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        said = lines[number - 2] if line.endswith('"""') else line
        if re.match(r"[a-z_]+ = ", line) and not line.startswith("name = "):
            assert any(word in said for word in WORDS), f"{name}:{number}: {line}"


def test_the_papers_numbers_are_in_the_papers_configuration():
    config = config_of("paper-qwen3-4b.toml")
    assert [(s.name, s.epochs, s.reward.value, s.synthesis, len(s.categories)) for s in config.stages] == [
        ("format", 5, "format", False, 1),
        ("base", 5, "progress", False, 1),
        ("full", 5, "progress", True, 4),
    ]
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


def test_envtunings_policy_is_told_the_grammar_it_is_read_by():
    spoken = config_of("envtuning.toml").policy.spoken
    assert spoken["parser"] == "strict" and spoken["template_options"] == {}
    call, answer = re.findall(r"<tool_call>.*?</tool_call>|<answer>.*?</answer>", spoken["system_text"])
    call = call.replace('"..."', '"ls"').replace("{...}", "{}").replace(", ...]", "]")
    read = parser("strict")
    assert [found.name for found in read(f"<think>first</think>\n{call}", {}).calls] == ["ls"]
    assert read(f"<think>first</think>\n{answer}", {}).outcome is MessageOutcome.ANSWER
    assert read(answer, {}).outcome is MessageOutcome.PARSE_ERROR


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"path": "m", "parser": "loose"}, "no parser named 'loose'"),
        ({"path": "m", "parser": "nowhere:parse"}, "nowhere"),
        ({"parser": "strict"}, "speaks a format of its own"),
        ({"template_options": {"enable_thinking": False}}, "speaks a format of its own"),
    ],
)
def test_a_format_that_cannot_be_spoken_is_refused_with_the_reason(values, reason):
    with pytest.raises(ValueError, match=reason):
        PolicySection(**values)


def test_a_stage_that_may_end_early_makes_no_tasks():
    with pytest.raises(ValueError, match="needs synthesis = false"):
        StageSection(name="a", epochs=2, synthesis=True, advance={"by": "converged"})
    with pytest.raises(ValueError, match="kept for continued stages"):
        StageSection(name="a+1", epochs=2)
