"""Settings of the synthesizer, each with its meaning and where its default comes from. Unknown names are refused."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class ProfileMode(StrEnum):
    """What a structural difference between seed and variant does."""

    OFF = "off"
    REPORT = "report"
    ENFORCE = "enforce"


class SynthesisConfig(BaseModel):
    """How variants are made and judged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str = Field("scripted", description="Name of the backend that drafts variants.")
    max_attempts: int = Field(3, ge=1, le=20, description="K_max, full attempts per signal. Source: RODS, 3.")
    max_generation: int = Field(
        4, ge=1, description="Largest distance of a variant from its human ancestor. Not published; our choice."
    )
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
