"""What the policy did in a turn, beside whether it was right: acted, asked, declined, answered or malformed.

A turn with an empty ground truth scores 1 for any answer. That number cannot tell a policy that asks for the missing
value from one that says "done". The class can: each such turn has a class that would have been right, and an aggregate
that passes while the class is wrong shows up as ``num_right_verdict_wrong_class``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from schemas.events import Category, Turn


class Action(StrEnum):
    """Class of a turn."""

    ACTED = "acted"
    ASKED = "asked"
    DECLINED = "declined"
    ANSWERED = "answered"
    MALFORMED = "malformed"


_DECLINES = re.compile(
    r"\b(?:can(?:not|'t|no[tn])|unable|not (?:able|available|possible|supported)|unavailable|"
    r"(?:do not|don't|doesn't|does not) (?:have|support|provide|offer)|no (?:function|tool|way)|"
    r"lack|missing (?:a )?(?:function|tool))\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\?|\b(?:please|could you|can you|would you|kindly) (?:\w+ ){0,2}?(?:provide|specify|tell|share|give|clarify|"
    r"confirm|let me know|supply|enter)\b|\bneed (?:to know|more|the|your|an?)\b|\bwhich\b|\blet me know\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"<think>.*?</think>|</?[a-z_]{1,12}>", re.DOTALL)
MAX_CLASSIFIED_CHARS = 4_000


def classify_answer(text: str) -> Action:
    """Class of an answer by its words: a refusal names what is not possible, a question asks; declining wins."""
    words = _MARKUP.sub(" ", text[-MAX_CLASSIFIED_CHARS:]).replace("\u2019", "'")
    if _DECLINES.search(words):
        return Action.DECLINED
    return Action.ASKED if _ASKS.search(words) else Action.ANSWERED


def has_words(text: str) -> bool:
    """Whether an answer says anything at all beside its markup; a grammar without text cannot show a class."""
    return bool(re.search(r"\w", _MARKUP.sub(" ", text[-MAX_CLASSIFIED_CHARS:])))


def expected_actions(category: Category, turn: Turn) -> frozenset[Action]:
    """Classes that are right in a turn: acting where the ground truth acts, else asking or declining by category."""
    if turn.ground_truth:
        return frozenset({Action.ACTED})
    if category is Category.MISS_PARAM:
        return frozenset({Action.ASKED})
    if category is Category.MISS_FUNC:
        return frozenset({Action.DECLINED})
    return frozenset({Action.ASKED, Action.DECLINED, Action.ANSWERED})


@dataclass(frozen=True, slots=True)
class TurnAction:
    """What was done in one turn.

    Attributes:
        turn: 0-based turn.
        action: Class of the turn.
        verdict: 1 right, 0 wrong or cut.
        expects_no_call: Whether the ground truth of the turn is empty.
        class_right: Whether the class is one that is right here; None where a silent answer shows none.
    """

    turn: int
    action: Action
    verdict: int
    expects_no_call: bool
    class_right: bool | None


@dataclass(slots=True)
class TurnTally:
    """Counts within the open turn; ``close`` makes the record."""

    turn: int
    num_calls: int = 0
    num_malformed: int = 0
    answer: str | None = None

    def close(self, category: Category, turn: Turn, verdict: int) -> TurnAction:
        """The record of the turn that ends now."""
        silent = False
        if self.num_calls:
            action = Action.ACTED
        elif self.answer is not None:
            action, silent = classify_answer(self.answer), not has_words(self.answer)
        else:
            action = Action.MALFORMED
        right: bool | None = action in expected_actions(category, turn)
        if silent and not turn.ground_truth:
            right = None
        return TurnAction(self.turn, action, verdict, not turn.ground_truth, right)


@dataclass(frozen=True, slots=True)
class ActionSummary:
    """Counts over many turns.

    Attributes:
        num_turns: All turns.
        num_by_action: Turns of each class, every class present.
        num_no_call_turns: Turns with an empty ground truth.
        num_no_call_class_right: Of those, turns whose class was right.
        num_no_call_silent: Of those, turns ended without a word.
        num_right_verdict_wrong_class: Turns that scored 1 although the class was wrong.
    """

    num_turns: int
    num_by_action: dict[str, int] = field(hash=False)
    num_no_call_turns: int
    num_no_call_class_right: int
    num_no_call_silent: int
    num_right_verdict_wrong_class: int


def summarize(actions: Iterable[TurnAction]) -> ActionSummary:
    """Count a collection of turns."""
    turns = list(actions)
    abstentions = [each for each in turns if each.expects_no_call]
    return ActionSummary(
        num_turns=len(turns),
        num_by_action={kind.value: sum(each.action is kind for each in turns) for kind in Action},
        num_no_call_turns=len(abstentions),
        num_no_call_class_right=sum(each.class_right is True for each in abstentions),
        num_no_call_silent=sum(each.class_right is None for each in abstentions),
        num_right_verdict_wrong_class=sum(each.verdict == 1 and each.class_right is False for each in turns),
    )
