"""All processes of a run agree on template, tokenizer and tool schemas, or they are refused."""

from dataclasses import replace

import pytest

from schemas import make
from schemas.events import RunStarted
from trainer.policy.loading import load_policy, tokenizer_digest
from trainer.policy.players import ASSET
from trainer.policy.sampling_format import FormatMismatch, SamplingFormat, load_template, refuse_mismatch

OWN = SamplingFormat("t", "k", "s")
STARTED = make(
    RunStarted,
    "run-9",
    config_json="{}",
    seed=1,
    versions={},
    template_hash="t",
    tokenizer_hash="k",
    tool_schema_hash="s",
    weights_digest="",
)


def test_the_same_format_is_accepted():
    refuse_mismatch(OWN, STARTED, "w0")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("template_hash", "prompt format"),
        ("tokenizer_hash", "tokenizer"),
        ("tool_schema_hash", "environment, its version"),
    ],
)
def test_whatever_differs_is_named_with_both_digests_and_who_differs(name, hint):
    with pytest.raises(FormatMismatch, match=f"w0: {name} is other, run run-9 started with .: another {hint}"):
        refuse_mismatch(replace(OWN, **{name: "other"}), STARTED, "w0")


def test_the_digest_changes_with_each_part():
    others = [replace(OWN, **{name: "x"}) for name in ("template_hash", "tokenizer_hash", "tool_schema_hash")]
    assert len({form.digest for form in (OWN, *others)}) == 4


def test_a_worker_without_weights_has_the_very_format_of_the_trainer():
    policy = load_policy(ASSET)
    tokenizer, template = load_template(ASSET)
    assert (template.digest, template.stop_ids) == (policy.template.digest, policy.template.stop_ids)
    assert tokenizer_digest(tokenizer) == tokenizer_digest(policy.tokenizer)
