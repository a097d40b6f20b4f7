"""One rollout under the turn protocol: the policy speaks, the environment answers, every turn ends in a verdict.

The rules are EnvTuning's public turn protocol with four corrections: the ground truth counts in every turn, also in one
where the policy called nothing; the reward's denominator is the number of turns of the task; withheld functions are
refused until they are restored; an answer is never executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from environments.actions import TurnAction, TurnTally
from environments.execution import execute, started
from environments.interface import EXECUTION_ERROR_PREFIX, Environment, ToolSchema
from environments.parsing.outcome import ParsedMessage, Parser
from environments.scoring import (
    Reference,
    binary_reward,
    contains_all,
    format_reward,
    observed_reward,
    progress_reward,
    same_state,
)
from environments.scoring.rewards import CALL_FAILED, CALLED, PARSE_ERROR, TURN_RIGHT, TURN_WRONG
from schemas.events import FinishReason, Message, MessageOutcome, Task, Turn

MAX_ATTEMPTS = 5
TOOLS_ADDED_TEXT = "More functions are available now. Please continue with my last request."
CALLED_IN_VAIN_TEXT = "No function should have been called for the previous request.\n"
PARSE_ERROR_TEXT = "Your message could not be read: {detail}. Please follow the output format."


@dataclass(frozen=True, slots=True)
class Incoming:
    """Something the policy must be shown before its next message.

    Attributes:
        kind: ``user`` (a user's text or an error text), ``tool`` (result of one call), ``tools_added``.
        text: The text to show.
        functions: Names that became available; only for ``tools_added``.
    """

    kind: str
    text: str
    functions: tuple[str, ...] = ()


class Episode:
    """One rollout of one task; not shared between threads. Drive it with ``incoming`` and ``step`` until ``done``.

    Args:
        environment: where the calls run.
        task: the task.
        parser: how messages are read (``environments.parsing.parser``).
        reference: ``Reference.of(environment, task)``.
        max_attempts: counted messages (calls and parse errors) a turn may have; the next one closes it.
        numbers_by_value: let a result with 65 count as the reference result with 65.0.
        warn_after_vain_call: tell the policy after a call in a turn where none was right, as EnvTuning does.
    """

    def __init__(
        self,
        environment: Environment,
        task: Task,
        parser: Parser,
        reference: Reference,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        numbers_by_value: bool = True,
        warn_after_vain_call: bool = True,
    ) -> None:
        self._environment, self._task, self._parser, self._reference = environment, task, parser, reference
        self._max_attempts, self._by_value, self._warn = max_attempts, numbers_by_value, warn_after_vain_call
        self._state = started(environment, task)
        self._all_tools = environment.tools(task)
        self._withheld = set(task.withheld_functions)
        self._turn = 0
        self._results: list[str] = []
        self._messages: list[Message] = []
        self._verdicts: list[int] = []
        self._actions: list[TurnAction] = []
        self.finish_reason: FinishReason | None = None if task.turns else FinishReason.FINISHED
        self.incoming: tuple[Incoming, ...] = ()
        self._open_turn("")

    @property
    def done(self) -> bool:
        """Whether the rollout has ended."""
        return self.finish_reason is not None

    @property
    def turn(self) -> int:
        """0-based index of the open turn; the number of turns when all are closed."""
        return self._turn

    @property
    def offered(self) -> Mapping[str, ToolSchema]:
        """The tools on offer now, in stable order."""
        return {name: tool for name, tool in self._all_tools.items() if name not in self._withheld}

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far."""
        return tuple(self._messages)

    @property
    def codes(self) -> tuple[int, ...]:
        """One code per message: -3 parse error, -2 a call failed, -1 called, 0 turn wrong, 1 turn right."""
        return tuple(message.code for message in self._messages)

    @property
    def turn_verdicts(self) -> tuple[int, ...]:
        """1 right, 0 wrong or not reached; one per turn of the task."""
        return (*self._verdicts, *(0,) * (len(self._task.turns) - len(self._verdicts)))

    @property
    def turn_actions(self) -> tuple[TurnAction, ...]:
        """What the policy did in each turn that has ended; see ``environments.actions``."""
        return tuple(self._actions)

    @property
    def reward(self) -> float:
        """Progress reward, 0 to 1, over all turns of the task."""
        return progress_reward(self._verdicts, len(self._task.turns))

    @property
    def format_reward(self) -> float:
        """Stage-1 format reward, 0 to 2."""
        return format_reward(self.codes)

    @property
    def binary_reward(self) -> float:
        """1 if every turn is right, else 0."""
        return binary_reward(self._verdicts, len(self._task.turns))

    @property
    def observed_reward(self) -> float:
        """Share of right turns among closed ones; for the log beside the reward."""
        return observed_reward(self.codes)

    def step(self, text: str) -> Message:
        """Take one assistant message; ``incoming`` then holds the environment's answer.

        Raises:
            RuntimeError: the rollout has ended.
        """
        parsed = self._read(text)
        if parsed.outcome is MessageOutcome.PARSE_ERROR:
            message = self._take_malformed(parsed)
        elif not self._current.ground_truth:
            message = self._take_abstention(parsed)
        elif parsed.calls:
            message = self._take_calls(parsed)
        else:
            self._tally.answer = text if parsed.outcome is MessageOutcome.ANSWER else ""
            message = self._closing(parsed, self._verdict())
        self._messages.append(message)
        return message

    def cut(self, reason: FinishReason) -> None:
        """End the rollout from outside (token limit, sampler error): the open and all later turns count as wrong."""
        if not self.done:
            self._actions.append(self._tally.close(self._task.category, self._current, 0))
            self.finish_reason = reason
            self.incoming = ()

    def _read(self, text: str) -> ParsedMessage:
        if self.done:
            raise RuntimeError(f"task {self._task.task_id}: the rollout has ended ({self.finish_reason})")
        return self._parser(text, self.offered)

    @property
    def _current(self) -> Turn:
        return self._task.turns[self._turn]

    def _open_turn(self, prefix: str) -> None:
        self._attempts = self._num_calls = 0
        self._tally = TurnTally(self._turn)
        if self._turn >= len(self._task.turns):
            self.finish_reason = self.finish_reason or FinishReason.FINISHED
            self.incoming = ()
            return
        turn = self._current
        shown = []
        if turn.restored_functions:
            self._withheld.difference_update(turn.restored_functions)
            note = TOOLS_ADDED_TEXT if not turn.user_text else ""
            shown.append(Incoming("tools_added", prefix + note, turn.restored_functions))
            prefix = ""
        if turn.user_text or not shown:
            shown.append(Incoming("user", prefix + turn.user_text))
        self.incoming = tuple(shown)

    def _take_malformed(self, parsed: ParsedMessage) -> Message:
        self._tally.num_malformed += 1
        self._attempts += 1
        if self._attempts > self._max_attempts:
            return self._closing(parsed, self._verdict() if self._current.ground_truth else TURN_WRONG)
        self.incoming = (Incoming("user", PARSE_ERROR_TEXT.format(detail=parsed.detail)),)
        return self._message(parsed, PARSE_ERROR)

    def _take_abstention(self, parsed: ParsedMessage) -> Message:
        """A turn where nothing should be called: an answer is right, a call is wrong and is not executed."""
        if parsed.outcome is MessageOutcome.ANSWER:
            self._tally.answer = parsed.text
            return self._closing(parsed, TURN_RIGHT)
        self._tally.num_calls += max(1, len(parsed.calls))
        detail = "not executed: nothing was to be called in this turn"
        return self._closing(parsed, TURN_WRONG, CALLED_IN_VAIN_TEXT if self._warn else "", detail)

    def _take_calls(self, parsed: ParsedMessage) -> Message:
        offered = self.offered
        results = tuple(execute(self._environment, self._state, call, offered) for call in parsed.calls)
        self._results.extend(results)
        self._num_calls += len(results)
        self._tally.num_calls += len(results)
        self._attempts += 1
        if self._attempts > self._max_attempts:
            return self._closing(parsed, self._verdict(), results=results)
        self._show_results(results)
        failed = any(result.startswith(EXECUTION_ERROR_PREFIX) for result in results)
        return self._message(parsed, CALL_FAILED if failed else CALLED, results)

    def _show_results(self, results: tuple[str, ...]) -> None:
        self.incoming = tuple(Incoming("tool", result) for result in results)

    def _verdict(self) -> int:
        if self._num_calls == 0:
            return TURN_WRONG
        right = same_state(self._environment, self._state, self._reference, self._turn) and contains_all(
            self._reference.results[self._turn], self._results, self._by_value
        )
        return TURN_RIGHT if right else TURN_WRONG

    def _closing(
        self, parsed: ParsedMessage, verdict: int, prefix: str = "", detail: str = "", results: tuple[str, ...] = ()
    ) -> Message:
        message = self._message(parsed, verdict, results, detail)
        self._actions.append(self._tally.close(self._task.category, self._current, verdict))
        self._verdicts.append(verdict)
        self._turn += 1
        self._open_turn(prefix)
        return message

    def _message(self, parsed: ParsedMessage, code: int, results: tuple[str, ...] = (), detail: str = "") -> Message:
        return Message(
            turn=self._turn,
            text=parsed.text,
            outcome=parsed.outcome,
            calls=parsed.calls if results else (),
            results=results,
            code=code,
            detail=parsed.detail or detail,
        )
