"""One rollout under the leaderboard's protocol, for evaluation: same surface as Episode, other rules.

A message without calls, or one that cannot be read, ends its turn. Calls run in every turn, also where the ground truth is
empty. A turn that runs over its step limit ends the whole conversation. ``valid`` is the leaderboard's 0 or 1 per task.
"""

from __future__ import annotations

from environments.deadline import WATCHDOG
from environments.episode import Episode
from environments.interface import EXECUTION_ERROR_PREFIX, Environment
from environments.parsing.outcome import ParsedMessage, Parser
from environments.scoring import Reference
from environments.scoring.official import LEADERBOARD, OfficialSettings, callers, turn_fault
from environments.scoring.rewards import CALL_FAILED, CALLED, TURN_RIGHT, TURN_WRONG
from schemas.events import FinishReason, Message, MessageOutcome, Task


class OfficialEpisode(Episode):
    """Drive it like an Episode; see ``environments.scoring.official`` for the settings.

    ``reward`` and ``turn_verdicts`` judge each turn on its own; ``valid`` (and ``binary_reward``) is the benchmark's score.
    """

    def __init__(
        self,
        environment: Environment,
        task: Task,
        parser: Parser,
        reference: Reference,
        *,
        settings: OfficialSettings = LEADERBOARD,
    ) -> None:
        self._settings = settings
        self._callers = callers(environment, task, settings)
        super().__init__(environment, task, parser, reference, numbers_by_value=settings.numbers_by_value)

    @property
    def valid(self) -> bool:
        """Whether every turn is right and the conversation was not stopped."""
        return self.binary_reward == 1.0

    def step(self, text: str) -> Message:
        """Take one assistant message; ``incoming`` then holds the environment's answer.

        Raises:
            RuntimeError: the rollout has ended.
        """
        parsed = self._read(text)
        if parsed.calls:
            message = self._run(parsed)
        else:
            malformed = parsed.outcome is MessageOutcome.PARSE_ERROR
            self._tally.num_malformed += malformed
            self._tally.answer = None if malformed else text
            message = self._closing(parsed, self._verdict())
        self._messages.append(message)
        return message

    def _run(self, parsed: ParsedMessage) -> Message:
        results = self._execute(parsed)
        self._results.extend(results)
        self._num_calls += len(results)
        self._tally.num_calls += len(results)
        self._attempts += 1
        limit = self._settings.max_steps + (0 if self._settings.exact_step_limit else 1)
        if self._attempts >= limit:
            return self._stop(parsed, results)
        self._show_results(results)
        failed = any(result.startswith(EXECUTION_ERROR_PREFIX) for result in results)
        return self._message(parsed, CALL_FAILED if failed else CALLED, results)

    def _execute(self, parsed: ParsedMessage) -> tuple[str, ...]:
        call_tool = self._callers[self._turn]
        late = (f"{EXECUTION_ERROR_PREFIX} the calls ran longer than {WATCHDOG.limit_s:g} s",) * len(parsed.calls)
        return WATCHDOG.run(lambda: tuple(call_tool(self._state, call) for call in parsed.calls), late)

    def _stop(self, parsed: ParsedMessage, results: tuple[str, ...]) -> Message:
        """The step limit ends the conversation; in the last turn the leaderboard still grades what was done."""
        is_last = self._turn == len(self._task.turns) - 1
        graded = is_last and not self._settings.last_turn_overrun_fails
        self.finish_reason = FinishReason.TURN_LIMIT
        message = self._closing(parsed, self._verdict() if graded else TURN_WRONG, results=results)
        self.incoming = ()
        return message

    def _verdict(self) -> int:
        if not self._current.ground_truth:
            return TURN_WRONG if self._settings.require_abstention and self._num_calls else TURN_RIGHT
        fault = turn_fault(
            self._environment,
            self._state,
            self._reference,
            self._turn,
            self._num_calls == 0,
            self._results,
            self._settings.numbers_by_value,
        )
        return TURN_WRONG if fault else TURN_RIGHT
