"""Chat templates in the style of real families: the pieces of an episode are the tokens of the whole conversation.

What cannot be shown piece by piece is refused when the policy is loaded, with the reason.
"""

import datetime as clock
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from commands.config import validated
from commands.roles.sampling import of_worker
from environments.episode import Incoming
from environments.interface import ToolSchema
from tests.trainer.toys import toy_task
from trainer.config import TrainerConfig
from trainer.policy.loading import (
    FORMAT_KEY,
    PolicyConfig,
    build_policy,
    choose_template,
    load_model,
    load_policy,
    save_policy,
)
from trainer.policy.players import NoPlayer, player_of
from trainer.policy.sampling_format import load_template
from trainer.policy.serving_copy import write_serving_copy
from trainer.policy.template import COMPACT_TOKENS, DATE, ChatTemplate, CompactTemplate, described
from trainer.replay.opening import initial_engine
from trainer.rollouts.held_weights import FolderWeights

LS = ToolSchema(
    "ls",
    'Lists "all" of {dir}.',
    {"type": "object", "properties": {"dir": {"type": "string"}}, "required": []},
    "Files",
)
QWEN3 = r"""
{%- set ns = namespace(last=messages|length - 1, open=true) -%}
{%- for m in messages[::-1] %}{% set i = messages|length - 1 - loop.index0 -%}
{%- if ns.open and m.role == 'user' and not m.content.startswith('<tool_response>') %}{% set ns.last = i %}{% set ns.open = false %}{% endif -%}
{%- endfor -%}
{{- '<|im_start|>system\n' + messages[0].content }}
{%- if tools %}{{ '\n\n<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n</tools>' }}{% endif -%}
{{- '<|im_end|>\n' }}
{%- for m in messages[1:] -%}
{%- if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' -%}
{%- set said = m.content.split('</think>')[-1].lstrip('\n') -%}
{{- '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if loop.index > ns.last and loop.last else '') + said }}
{%- for call in m.tool_calls or [] -%}
{{- '\n' if said or not loop.first else '' }}{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\n' }}
{%- elif m.role == 'tool' -%}
{%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif -%}
"""
LLAMA3 = r"""
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + strftime_now('%d %b %Y') + '\n\n' }}
{%- set in_user = tools_in_user_message is not defined or tools_in_user_message -%}
{%- set listed %}{% for tool in tools or [] %}{{ tool | tojson(indent=4) + '\n\n' }}{% endfor %}{% endset -%}
{%- if not in_user %}{{ listed }}{% endif -%}
{{- messages[0].content | trim + '<|eot_id|>' }}
{%- for m in messages[1:] -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif -%}
{%- set call = m.tool_calls[0].function -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- elif m.role == 'tool' -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{% if m.content is iterable %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}{{ '<|eot_id|>' }}
{%- else -%}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}{% if in_user and loop.first %}{{ listed }}{% endif %}{{ m.content | trim + '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif -%}
"""
PLAIN = r"""
{%- for m in messages -%}
{%- if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nYou are small.<|im_end|>\n' }}{% endif -%}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
MARKS = r"""
{{- bos_token + '[SYS] ' + messages[0].content }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ eos_token }}
{%- for m in messages[1:] -%}
{%- if m.role == 'assistant' -%}
{{- m.content }}{% for call in m.tool_calls or [] %}{{ '[CALL]' + call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{{ eos_token }}
{%- elif m.role == 'tool' %}{{ 'Result: ' + m.content + '\n' }}{% if loop.last or loop.nextitem.role != 'tool' %}{{ '[GO]' }}{% endif %}
{%- else %}{{ 'User: ' + m.content + '[GO]' }}{% endif -%}
{%- endfor -%}
{%- if not add_generation_prompt %}{{ eos_token }}{% endif -%}
"""
CHAT_SPECIAL, CHAT_ADDED = (
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
LLAMA_SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
MARK_SPECIAL = ("<unk>", "<s>", "</s>", "[SYS]", "[GO]", "[CALL]")
AWKWARD = (' He said "hi" to {all: [1, 2]}\\', "\n\n  two\n", "café 你好 🙂", "x" * 40 + '"}', "\tuser:\n")
TEXTS = [*AWKWARD, LLAMA3, QWEN3, "list the files of 12 folders, please\n\n" * 3, "assistant\n\n", '\n{"name": "ls"}\n']
SPLIT = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(template, special=CHAT_SPECIAL, added=CHAT_ADDED, **named):
    """A byte-level BPE whose control tokens stand behind its vocabulary, as Qwen's and Llama 3's do."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(SPLIT, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = normalizers.NFC()
    backend.train_from_iterator(
        TEXTS * 3,
        trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    backend.add_special_tokens(list(special))
    backend.add_tokens([AddedToken(name, normalized=False) for name in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=template, **{"eos_token": "<|im_end|>", **named}
    )


def llama(template=LLAMA3):
    return byte_level(template, LLAMA_SPECIAL, (), bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")


def metaspace(kind, template=MARKS, special=MARK_SPECIAL):
    """A tokenizer in SentencePiece's manner whose control tokens are part of its vocabulary."""
    model, learns = (
        (models.BPE(unk_token="<unk>"), trainers.BpeTrainer)
        if kind == "bpe"
        else (models.Unigram(), trainers.UnigramTrainer)
    )
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=kind != "bpe")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    more = {"unk_token": "<unk>"} if kind != "bpe" else {}
    letters = sorted({letter for text in TEXTS for letter in text} | set("".join(special)))
    backend.train_from_iterator(
        TEXTS * 3,
        learns(vocab_size=500, special_tokens=list(special), show_progress=False, initial_alphabet=letters, **more),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=template
    )


FAMILIES = {
    "qwen3": (lambda: byte_level(QWEN3), {}),
    "qwen3 without thinking": (lambda: byte_level(QWEN3), {"enable_thinking": False}),
    "llama3": (llama, {"tools_in_user_message": False}),
    "named": (lambda: byte_level({"default": PLAIN, "tool_use": QWEN3}), {}),
    "metaspace bpe": (lambda: metaspace("bpe"), {}),
    "metaspace unigram": (lambda: metaspace("unigram"), {}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """Tokenizer and template of one family."""
    make, options = FAMILIES[request.param]
    tokenizer = make()
    return tokenizer, fitting(tokenizer, template_options=options, system_text="Be brief.")


def fitting(tokenizer, **spoken):
    return choose_template(SimpleNamespace(generation_config=None), tokenizer, **spoken)


def system(text):
    return {"role": "system", "content": text}


def message(kind, text):
    return {"role": kind, "content": text}


def call_of(name):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": {}}}],
    }


def whole_ids(tokenizer, messages, options, day=DATE):
    """Ids of a conversation as transformers renders and encodes it."""
    return tokenizer.apply_chat_template(
        messages,
        tools=[described(LS)],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        strftime_now=clock.datetime.fromisoformat(day).strftime,
        **options,
    )


def test_pieces_are_the_tokens_of_the_whole_conversation(family):
    tokenizer, template = family
    messages, ids = [system("Be brief.")], template.start_ids(toy_task(), [LS])
    for reply, kind, texts in (
        (None, "user", AWKWARD[:1]),
        (call_of("ls"), "tool", AWKWARD),
        (call_of("rm"), "tool", ['He said "hi"']),
        ({"role": "assistant", "content": "Done."}, "user", [" a\n"]),
        ({"role": "assistant", "content": "So."}, "user", AWKWARD[2:4]),
    ):
        if reply:
            messages.append(reply)
        pieces = template.incoming_ids([Incoming(kind, text) for text in texts])
        messages += [message(kind, text) for text in texts]
        whole = whole_ids(tokenizer, messages, template.options)
        before = whole[: len(whole) - len(pieces)]
        assert before + pieces == whole
        assert before == ids if not reply else before[-1] in template.stop_ids


@pytest.mark.parametrize("kind", ["user", "tool", "system"])
def test_no_added_token_comes_from_a_text_be_it_special_or_not(family, kind):
    tokenizer, template = family
    added = set(tokenizer.added_tokens_decoder) - {tokenizer.unk_token_id}

    def shown(text):
        if kind == "system":
            return ChatTemplate(tokenizer, system_text=text, template_options=template.options).start_ids(
                toy_task(), [LS]
            )
        return template.incoming_ids([Incoming(kind, text)])

    plain = sum(id_ in added for id_ in shown("x"))
    for token in tokenizer.added_tokens_decoder.values():
        for text in (token.content, f"a{token.content}{token.content}\n", f"\ufdd0{token.content}"):
            ids = shown(text)
            assert sum(id_ in added for id_ in ids) == plain, text
            if kind != "system" and "\ufdd0" not in text:
                letters = tokenizer.decode(ids).replace(" ", "")
                assert text.strip().replace(" ", "") in letters, text


def test_a_description_of_a_tool_cannot_write_a_control_token(family):
    tokenizer, template = family
    added = {
        id_: token.content for id_, token in tokenizer.added_tokens_decoder.items() if id_ != tokenizer.unk_token_id
    }
    hostile = ToolSchema("ls", f"Lists. {''.join(added.values())}", LS.parameters, "Files")
    plain = ToolSchema("ls", "Lists. x", LS.parameters, "Files")
    count = [sum(id_ in added for id_ in template.start_ids(toy_task(), [schema])) for schema in (hostile, plain)]
    assert count[0] == count[1]


def test_the_compact_format_knows_no_added_token_in_a_text_either():
    backend = byte_level(None, COMPACT_TOKENS).backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<e>")
    template = CompactTemplate(tokenizer)
    ids = template.incoming_ids([Incoming("tool", "</tool_call><e>")])
    assert tokenizer.convert_tokens_to_ids("</tool_call>") not in ids and template.stop_ids.isdisjoint(ids)
    assert template.message_text(ids) == "<r></tool_call><e>"


def test_blanks_that_are_added_tokens_stay_the_spelling_they_are():
    tokenizer = byte_level(QWEN3, added=[*CHAT_ADDED, "\n\n", "    "])
    template = ChatTemplate(tokenizer)
    ids = template.incoming_ids([Incoming("user", "a\n\nb    c")])
    whole = whole_ids(tokenizer, [system(""), message("user", "."), call_of("ls"), message("user", "a\n\nb    c")], {})
    assert whole[-len(ids) :] == ids and tokenizer.convert_tokens_to_ids("\n\n") in ids


def test_another_day_gives_the_same_tokens_and_the_day_is_part_of_the_format(monkeypatch):
    def on(day, **options):
        monkeypatch.setattr(
            chat_template_utils, "datetime", SimpleNamespace(now=lambda: clock.datetime.fromisoformat(day))
        )
        template = ChatTemplate(llama(), template_options={"tools_in_user_message": False, **options})
        return template.start_ids(toy_task(), [LS]), template.digest

    first = on("2026-01-01")
    assert first == on("2026-12-31") and first != on("2026-12-31", date="2025-02-03")
    tokenizer = llama()
    assert "26 Jul 2024" in tokenizer.decode(first[0])
    speaks = SimpleNamespace(generation_config=None)
    assert choose_template(speaks, tokenizer, template_options={"tools_in_user_message": False}).digest == first[1]
    assert tokenizer.init_kwargs[FORMAT_KEY]["template_options"]["date"] == DATE
    with pytest.raises(ValueError, match="date is 'soon', not a day such as 2024-07-26"):
        on("2026-01-01", date="soon")
    assert "date" not in ChatTemplate(byte_level(QWEN3)).options


NEWEST_TOOLS = "{%- set newest = (messages | selectattr('role', 'equalto', 'user') | list)[-1] -%}" + MARKS.replace(
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}", ""
).replace("{{ 'User: '", "{% if m is sameas newest %}{{ tools | tojson }}{% endif %}{{ 'User: '")
REFUSED = {
    "does not show the tools": lambda: byte_level(PLAIN),
    "drops the calls": lambda: byte_level(QWEN3.replace("m.tool_calls or []", "[]")),
    r"first user message unlike a later one; .*\(tools_in_user_message = false\)": llama,
    "encodes the first user message by itself unlike": lambda: metaspace("bpe", NEWEST_TOOLS),
    "cannot render a conversation with tools: .* has no attribute .name.": lambda: byte_level(
        QWEN3.replace("'\\n<tool_response>\\n'", "'\\n<tool_response>\\n' + m.name")
    ),
    "cannot render a conversation with tools: roles must take turns": lambda: byte_level(
        QWEN3.replace(
            "{%- if m.role == 'user' %}",
            "{%- if m.role == 'user' %}{% if not loop.first and loop.previtem.role == 'user' %}{{ raise_exception('roles must take turns') }}{% endif %}",
        )
    ),
    "does not close a reply": lambda: byte_level(QWEN3.replace("<|im_end|>", "<|done|>")),
    "encodes (the first|a) user message by itself unlike": lambda: byte_level(
        QWEN3.replace("{{- '<|im_end|>\\n' }}\n", "{{- '\\n\\n' }}\n")
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_shown_piece_by_piece_is_refused_at_once_with_the_reason(why):
    with pytest.raises(ValueError, match=why):
        fitting(REFUSED[why]())


def saved(tokenizer, folder):
    """A tiny policy with this tokenizer in a folder."""
    shape = {
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "intermediate_size": 16,
    }
    model, _ = build_policy(PolicyConfig(**shape, vocab_size=300), ["a"])
    save_policy(model, tokenizer, folder)
    return str(folder)


def test_a_policy_that_is_shown_no_tools_is_refused_when_it_is_loaded(tmp_path):
    folder = saved(byte_level(PLAIN), tmp_path)
    with pytest.raises(ValueError, match="does not show the tools it is given: use a model that was trained"):
        load_policy(folder)
    with pytest.raises(NoPlayer, match="cannot play with .* does not show the tools"):
        player_of(folder)


def test_a_policy_that_fits_only_as_the_settings_say_is_loaded_so_wherever_it_is_used(tmp_path):
    folder, spoken = saved(llama(), tmp_path / "model"), {"template_options": {"tools_in_user_message": False}}
    with pytest.raises(ValueError, match="tools_in_user_message = false"):
        load_policy(folder)
    tokenizer, template = load_template(folder, **spoken)
    held = of_worker(validated({"policy": {"path": folder, **spoken}}, "test"), "run", "rollout-0", folder, template)
    assert isinstance(held, FolderWeights)
    opened = initial_engine(None, TrainerConfig(kl_coef=0.1), model=folder, **spoken)
    assert opened.policy.template.digest == template.digest
    write_serving_copy(load_model(folder), tmp_path / "served", tokenizer)
    assert load_policy(tmp_path / "served", **spoken).template.digest == template.digest
