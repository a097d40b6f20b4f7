"""What happened while one signal was worked on: stages, questions and answers, refused candidates, lessons.

One notebook per signal. Its stages and completions go into the terminal event; its lessons are what later attempts
know of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.events import Completion, SynthesisStage, Task
from synthesizer.outcome import Failure


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that was built and refused in an attempt."""

    attempt: int
    candidate: Task
    failure: Failure


def _nobody(what: object) -> None:
    """Hear nothing."""


@dataclass(slots=True)
class Notebook:
    """The notes on one signal.

    Attributes:
        tell: hears every stage and completion as it is noted.
        stages, completions, refused: in order.
        failures: why each attempt so far ended.
        blocked: functions that later attempts may not plan.
        config_patch: accepted changes of the initial state, accumulated, to be merged into it.
        num_bytes: size of all prompts and answers.
    """

    tell: Callable[[object], None] = _nobody
    stages: list[SynthesisStage] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    config_patch: dict = field(default_factory=dict)
    num_bytes: int = 0

    def passed(self, attempt: int, stage: str, detail: str = "") -> None:
        """A stage was passed."""
        self._note(SynthesisStage(attempt=attempt, stage=stage, passed=True, detail=detail))

    def missed(self, attempt: int, stage: str, detail: str) -> None:
        """A side stage came to nothing, and the attempt goes on."""
        self._note(SynthesisStage(attempt=attempt, stage=stage, passed=False, detail=detail))

    def stopped(self, attempt: int, stage: str, failure: Failure) -> Failure:
        """A stage ended the attempt; returns the failure."""
        self._note(
            SynthesisStage(
                attempt=attempt, stage=stage, passed=False, failure=failure.failure.value, detail=failure.detail
            )
        )
        return failure

    def _note(self, stage: SynthesisStage) -> None:
        self.stages.append(stage)
        self.tell(stage)

    def answered(self, completion: Completion) -> None:
        """A model was asked."""
        self.completions.append(completion)
        self.num_bytes += len(completion.text.encode()) + len(completion.prompt.encode())
        self.tell(completion)
