"""How a stage says no: one failure type of the method and the words that name the call, value or rule."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.events import SynthesisFailure

PATCHABLE = frozenset(
    {
        SynthesisFailure.PARAM_GEN_FAILED,
        SynthesisFailure.DECOMPOSE_FAILED,
        SynthesisFailure.FUNC_SAMPLE_FAILED,
        SynthesisFailure.VM_EXEC_FAILED,
    }
)
"""Failures that a change of the initial state may mend. Source: RODS, appendix E."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended.

    Attributes:
        failure: One of the method's types, a gate, a guard or the judge.
        detail: In words: which call, value or rule.
        function: The function that failed, where one did; the next attempts of the seed may be forbidden it.
    """

    failure: SynthesisFailure
    detail: str
    function: str = ""
