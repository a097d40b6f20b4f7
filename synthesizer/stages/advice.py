"""What the planner is told after each type of failure. Source of the gist: RODS, appendix F; the words are ours."""

from __future__ import annotations

from types import MappingProxyType

from schemas.events import SynthesisFailure as F

ADVICE = MappingProxyType(
    {
        F.PARAM_GEN_FAILED: "Choose functions whose arguments can be read from the state or from an earlier result.",
        F.DECOMPOSE_FAILED: "Use the functions themselves, not high-level ones.",
        F.FUNC_SAMPLE_FAILED: "Choose only functions from the list.",
        F.VM_EXEC_FAILED: "Avoid functions that need a log-in or a state that is not there, and the path that failed.",
        F.DUPLICATE_FUNC: "Do not use a function twice in a turn with the same inputs.",
        F.QUERY_GEN_FAILED: "Combine functions more simply, so that one natural request covers a turn.",
        F.QUERY_VERIFY_FAILED: "One clear function a turn, with an intent that cannot be misread.",
        F.QUERY_VERIFY_NO_TAG: "One clear function a turn, with an intent that cannot be misread.",
        F.CONVERSATION_CONSTRUCT_FAILED: "Plan fewer turns, each resolvable from what came before it.",
        F.NO_PROMPTS: "Use another class.",
        F.NO_PATTERN: "Keep to the classes, their order and the form of the answer.",
        F.PIPELINE_EXCEPTION: "Make a simpler plan that is wholly different.",
        F.GUARD_PROVENANCE: "Choose functions whose arguments a user would say or an earlier result gives.",
        F.GUARD_PROFILE: "Keep the seed's number of turns and calls, and let later calls need earlier results.",
        F.GUARD_DUPLICATE: "Make a wholly different plan.",
        F.JUDGE_REJECTED: "Make a simpler story in which every turn follows from the one before.",
    }
)
