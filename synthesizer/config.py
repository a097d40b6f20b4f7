"""Settings of the synthesizer, each with its meaning and where its default comes from. Unknown names are refused."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ROLES = (
    "planner",
    "parameters",
    "query",
    "verifier",
    "rewriter",
    "withholder",
    "judge",
    "classifier",
    "refiner",
    "patcher",
)
"""Who can be asked; each has its own prompt and may have its own sampling."""


class ProfileMode(StrEnum):
    """What a structural difference between seed and variant does."""

    OFF = "off"
    REPORT = "report"
    ENFORCE = "enforce"


class AnswerFormat(StrEnum):
    """How a model is made to answer in sections."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    TAGGED = "tagged"


class Sampling(BaseModel):
    """How one role samples; what is not set is taken from the model's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: float | None = Field(None, ge=0, le=2, description="Temperature.")
    top_p: float | None = Field(None, gt=0, le=1, description="Nucleus.")
    max_tokens: int | None = Field(None, ge=1, description="Longest answer, tokens.")


class ModelConfig(BaseModel):
    """Which language model is asked, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    client: Literal["http", "vllm"] = Field(
        "http", description="http: a server with OpenAI's chat completions, vLLM first; vllm: vllm.LLM in this process."
    )
    base_url: str = Field("http://127.0.0.1:8000/v1", description="Address of the server up to and with /v1.")
    model: str = Field("", description="Model name; empty takes the first that the server lists.")
    api_key_env: str = Field("", description="Name of the environment variable that holds the API key; empty for none.")
    answer_format: AnswerFormat = Field(
        AnswerFormat.JSON_SCHEMA,
        description="json_schema or json_object: the server enforces JSON; tagged: sections in tags, for any server.",
    )
    temperature: float = Field(1.0, ge=0, le=2, description="Temperature. Source: RODS.")
    top_p: float = Field(0.7, gt=0, le=1, description="Nucleus. Source: RODS.")
    max_tokens: int = Field(4096, ge=1, description="Longest answer, tokens. Not published; source: ToolWeave.")
    roles: dict[str, Sampling] = Field(
        default_factory=dict, description=f"Sampling by role, where it differs: {', '.join(ROLES)}."
    )
    extra: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of every request, for example chat_template_kwargs."
    )
    send_seed: bool = Field(
        False,
        description="Whether each request carries a sampling seed. Off, because vLLM 0.32 on CPUs dies of one when it"
        " takes a long prompt in parts; a synthesis is repeated from its recorded answers either way.",
    )
    request_timeout_s: float = Field(120.0, gt=0, description="Longest wait for one answer. Not published; our choice.")
    request_retries: int = Field(
        3,
        ge=0,
        description="Requests repeated after 429, 5xx, a lost connection or no answer; no attempts. Our choice.",
    )
    retry_wait_s: float = Field(
        0.5, ge=0, description="Wait before the first repetition; doubles each time. Our choice."
    )
    server_patience_s: float = Field(
        120.0, ge=0, description="How long a server that nobody reaches is waited for, as while it loads. Our choice."
    )
    max_requests: int = Field(64, ge=1, description="Requests under way at the same time. Our choice.")
    max_answer_chars: int = Field(32_768, ge=256, description="Answers are cut here and then are unusable. Our choice.")
    max_recorded_bytes: int = Field(
        2_000_000,
        ge=10_000,
        description="Prompts and answers of one synthesis, at most, so that its event fits the log.",
    )
    record_prompts: bool = Field(True, description="Whether events hold prompts; their hashes are always there.")
    prompts_folder: str = Field("", description="Own prompt files; what is not there is taken from the shipped ones.")
    prompt_price: float = Field(0.0, ge=0, description="Price of a million prompt tokens, for the cost figures.")
    completion_price: float = Field(0.0, ge=0, description="Price of a million answered tokens, for the cost figures.")

    @field_validator("roles")
    @classmethod
    def check_roles(cls, roles: dict[str, Sampling]) -> dict[str, Sampling]:
        """Only roles that exist may be set."""
        unknown = sorted(set(roles) - set(ROLES))
        if unknown:
            raise ValueError(f"no role {', '.join(unknown)}; there are {', '.join(ROLES)}")
        return roles


class SynthesisConfig(BaseModel):
    """How variants are made and judged."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    backend: str = Field(
        "scripted", description="scripted: by program; llm: by a model; hybrid: structure by program, texts by a model."
    )
    llm: ModelConfig = ModelConfig()
    consumer: Literal["assign", "group"] = Field(
        "assign",
        description="assign: this process answers every signal; group: processes share them as a consumer group.",
    )
    group: str = Field("rods-synthesizer", min_length=1, description="Consumer group; the run's id is added.")
    max_in_flight: int = Field(
        16,
        ge=1,
        description="Signals worked on at the same time; a scripted run takes one after the other. Our choice.",
    )
    drain_s: float = Field(8.0, ge=0, description="How long work under way may go on after SIGTERM. Our choice.")
    deadline_s: float = Field(1800.0, gt=0, description="Longest synthesis of one signal. Our choice.")
    max_attempts: int = Field(3, ge=1, le=20, description="K_max, full attempts per signal. Source: RODS, 3.")
    planner_tries: int = Field(
        3, ge=1, description="Answers of the planner that are read per attempt. Source: RODS, 3."
    )
    answer_tries: int = Field(2, ge=1, description="Answers of any other role that are read. Source: ToolWeave, 2.")
    min_plan_turns: int = Field(2, ge=1, description="Shortest plan, turns. Source: RODS, 2.")
    max_plan_turns: int = Field(5, ge=1, description="Longest plan, turns. Source: RODS, 5.")
    max_plan_calls: int = Field(3, ge=1, description="Functions in one planned turn, at most. Source: RODS, 3.")
    macros: dict[str, dict[str, list[str]]] = Field(
        default_factory=dict,
        description="High-level functions by class: name to the functions it stands for. RODS' own map is unpublished.",
    )
    generic_query_prompt: bool = Field(
        True, description="Whether a class without a query prompt of its own gets a general one; false is no_prompts."
    )
    max_query_chars: int = Field(1500, ge=40, description="Longest user text, characters. Our choice.")
    narrative_planning: bool = Field(True, description="Off: functions are drawn without a story. Ablation of RODS.")
    coherence_rewrite: bool = Field(True, description="Off: texts stay as written turn by turn. Ablation of RODS.")
    feedback: bool = Field(True, description="Off: no patches, no blocklist, no failure history. Ablation of RODS.")
    max_string_chars: int = Field(200, ge=1, description="Longest string argument, characters. Source: RODS gate 3.")
    max_list_items: int = Field(5, ge=1, description="Longest list argument, items. Source: RODS gate 3.")
    max_turns: int = Field(
        9, ge=1, description="Longest variant, turns. BFCL's longest task has 8. Not published; our choice."
    )
    profile_mode: ProfileMode = Field(
        ProfileMode.ENFORCE, description="Whether a variant must keep its seed's structure. Not published; our choice."
    )
    call_slack_per_turn: int = Field(1, ge=0, description="Allowed change of calls in one turn. Our choice.")
    call_slack: int = Field(2, ge=0, description="Allowed change of calls in all. Our choice.")
    depth_slack: int = Field(1, ge=0, description="Allowed change of dependency depth, calls. Our choice.")
    write_slack_frac: float = Field(
        0.25, ge=0, le=1, description="Allowed change of the share of calls that change state. Our choice."
    )
    near_duplicate_frac: float = Field(
        0.98,
        gt=0,
        le=1,
        description="A variant this similar (Jaccard over calls and text words) to a task of its own family is refused;"
        " 1 switches the guard off. Not published; our choice.",
    )
    long_context_min_chars: int = Field(
        2048,
        ge=0,
        description="Some result of a long-context variant must be this long, characters. Source: ToolWeave.",
    )

    @model_validator(mode="after")
    def check_plan(self) -> SynthesisConfig:
        """A plan must be possible."""
        if self.min_plan_turns > self.max_plan_turns:
            raise ValueError(f"min_plan_turns {self.min_plan_turns} is above max_plan_turns {self.max_plan_turns}")
        return self
