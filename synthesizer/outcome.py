"""How a stage says no: one failure type of the method and the words that name the call, value or rule."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.events import SynthesisFailure


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended.

    Attributes:
        failure: One of the method's types, a gate, a guard or the judge.
        detail: In words: which call, value or rule.
    """

    failure: SynthesisFailure
    detail: str
