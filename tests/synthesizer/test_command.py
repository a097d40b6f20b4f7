"""``rods synthesize``: one seed for a person to watch."""

import io
import json

import pytest
from rich.console import Console

from commands import synthesize as command
from commands.config import ConfigError
from synthesizer.backends import UnknownBackend
from synthesizer.llm.model import ModelRefused
from synthesizer.llm.prompts import PromptMissing


def shown(seed, *overrides, draw=0, as_json=False):
    """(admitted, what was printed)."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "console", Console(file=out, width=200))
        return command.synthesize(seed, None, list(overrides), as_json, draw), out.getvalue()


def test_a_person_sees_seed_stages_variant_and_profile():
    admitted, text = shown("multi_turn_base_130")
    assert admitted
    for words in (
        "seed multi_turn_base_130",
        "attempt 1 · draft: passed",
        "attempt 1 · critique: passed",
        "variant multi_turn_base_130~",
        "cancel_order",
        "structural profile",
        "num_cross_turn_edges",
    ):
        assert words in text
    assert shown("multi_turn_base_130")[1] == text != shown("multi_turn_base_130", draw=1)[1]


def test_a_seed_that_gives_no_variant_says_why():
    admitted, text = shown("multi_turn_base_47")
    assert not admitted and "gate_complexity" in text and "no variant after 3 attempts" in text


def test_a_lost_model_is_a_reason_too():
    admitted, text = shown(
        "multi_turn_base_130",
        "synthesis.backend=llm",
        "synthesis.llm.base_url=http://127.0.0.1:1/v1",
        "synthesis.llm.retry_wait_s=0",
        "synthesis.llm.server_patience_s=0",
    )
    assert not admitted and "pipeline_exception" in text and "127.0.0.1:1" in text and "planner:" in text


def test_the_event_comes_as_one_json_object(capsys):
    assert shown("multi_turn_base_130", as_json=True) == (True, "")
    event = json.loads(capsys.readouterr().out)
    assert event["parent_task_id"] == "multi_turn_base_130" and [stage["stage"] for stage in event["stages"]] == [
        "draft",
        "critique",
    ]


@pytest.mark.parametrize(
    ("seed", "overrides", "words"),
    [
        ("base_130", (), "did you mean multi_turn_base_130"),
        ("multi_turn_base_130", ("synthesis.backend=oracle",), "scripted, llm, hybrid"),
        ("multi_turn_base_130", ("synthesis.backend=llm", "synthesis.llm.api_key_env=NO_SUCH_KEY"), "NO_SUCH_KEY"),
        ("multi_turn_base_130", ("synthesis.backend=llm", "synthesis.llm.prompts_folder=/no/such"), "does not exist"),
        ("multi_turn_base_130", ("synthesis.llm.roles.poet.temperature=1",), "no role poet"),
    ],
)
def test_what_a_person_can_mend_is_named(seed, overrides, words):
    with pytest.raises((ConfigError, ModelRefused, PromptMissing, UnknownBackend), match=words):
        shown(seed, *overrides)
