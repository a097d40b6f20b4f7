"""Rewards as functions of verdicts and codes."""

from __future__ import annotations

from collections.abc import Sequence

PARSE_ERROR, CALL_FAILED, CALLED, TURN_WRONG, TURN_RIGHT = -3, -2, -1, 0, 1


def progress_reward(verdicts: Sequence[int], num_turns: int) -> float:
    """Right turns over all turns of the task, 0 to 1 (RODS section 3: (1/N) sum s_t e_t, N fixed).

    Turns never reached count as wrong; a task without turns earns 0.

    Raises:
        ValueError: more verdicts than turns.
    """
    if len(verdicts) > num_turns:
        raise ValueError(f"{len(verdicts)} verdicts for {num_turns} turns")
    return sum(verdicts) / num_turns if num_turns else 0.0


def observed_reward(codes: Sequence[int]) -> float:
    """Right turns over turns that were closed (EnvTuning's code); inflates cut rollouts; for the log only."""
    closed = [code for code in codes if code >= 0]
    return sum(closed) / len(closed) if closed else 0.0


def binary_reward(verdicts: Sequence[int], num_turns: int) -> float:
    """1 if every turn is right, else 0."""
    return float(len(verdicts) == num_turns and num_turns > 0 and all(verdicts))


def format_reward(codes: Sequence[int]) -> float:
    """Stage-1 reward, 0 to 2 (EnvTuning's code): any executed call times (well-formed share + successful share)."""
    executed, succeeded = sum(code in (CALL_FAILED, CALLED) for code in codes), sum(code == CALLED for code in codes)
    if executed == 0:
        return 0.0
    well_formed = sum(code != PARSE_ERROR for code in codes) / len(codes)
    return well_formed + succeeded / executed
