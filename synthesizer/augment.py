"""Stage five: give a base draft the structure of its seed's category, and check the protocol of that category.

miss_func and long_context are mechanical; miss_param takes a quoted value out of a text only where the sentence
survives it. Source of the rules: examples in RODS, appendix P, and the layout of BFCL's own tasks.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from environments.interface import Environment
from schemas.events import Category, SynthesisFailure, Task, Turn
from synthesizer.backend import Draft
from synthesizer.config import SynthesisConfig
from synthesizer.derive import rerun
from synthesizer.execution import Trace, run
from synthesizer.grounding import Position, visible_before
from synthesizer.outcome import Failure
from synthesizer.values import has_word, leaves

_REMOVABLE = (
    r"(?:named|called|titled|labell?ed|saying|stating|reading"
    r"|with the (?:title|name|message|description|content|text|id)"
    r"|with (?:id|message|title)|using the (?:title|name|message))"
)
_CLARIFY = "The {name} should be '{value}'."


def to_category(environment: Environment, draft: Draft, category: Category, seed: int) -> Draft | Failure:
    """A draft of the wanted category.

    Args:
        environment: simulators of the task.
        draft: a base draft, or one that has the category already.
        category: the seed task's category.
        seed: drives the choice of turn, function or value.
    """
    if draft.task.category is category:
        return draft
    if draft.task.category is not Category.BASE:
        return _cannot(f"a {draft.task.category.value} draft cannot become {category.value}")
    if category is Category.MISS_FUNC:
        return withhold_function(environment, draft, random.Random(seed))
    if category is Category.MISS_PARAM:
        return withhold_value(environment, draft, random.Random(seed))
    return lengthen(environment, draft)


def _cannot(detail: str) -> Failure:
    return Failure(SynthesisFailure.CONVERSATION_CONSTRUCT_FAILED, detail)


def withhold_function(environment: Environment, draft: Draft, rng: random.Random) -> Draft | Failure:
    """Hide one function until an added turn without text restores it; the turn that needs it first has no calls."""
    task = draft.task
    first_use: dict[str, int] = {}
    for index, turn in enumerate(task.turns):
        for call in turn.ground_truth:
            first_use.setdefault(call.name, index)
    if len(environment.tools(task)) < 2 or not first_use:
        return _cannot("no function can be withheld: at least one call and one other tool are needed")
    name = rng.choice(sorted(first_use))
    index = first_use[name]
    affected = task.turns[index]
    added = Turn(user_text="", ground_truth=affected.ground_truth, restored_functions=(name,))
    turns = (*task.turns[:index], replace(affected, ground_truth=()), added, *task.turns[index + 1 :])
    changed = replace(task, category=Category.MISS_FUNC, turns=turns, withheld_functions=(name,))
    note = f"{name} withheld until turn {index + 1}"
    return replace(draft, task=changed, trace=run(environment, changed), changes=(*draft.changes, note))


def lengthen(environment: Environment, draft: Draft) -> Draft | Failure:
    """Run the task with bulk content added; arguments that quote results follow them."""
    task = replace(draft.task, category=Category.LONG_CONTEXT, long_context=True)
    followed = rerun(environment, draft.task, draft.trace, task)
    if isinstance(followed, Failure):
        return followed
    changed, trace = followed
    return replace(draft, task=changed, trace=trace, changes=(*draft.changes, "long context"))


def withhold_value(environment: Environment, draft: Draft, rng: random.Random) -> Draft | Failure:
    """Take one quoted value out of a turn's text and give it in an added turn.

    Only a value that is said once, after words like "titled", and that nothing before shows can be taken out.
    """
    options = _removable_values(draft.task, draft.trace)
    if not options:
        return _cannot("no value can be taken out of a text without breaking the sentence or staying visible")
    turn_index, position, shortened, value = rng.choice(options)
    task = draft.task
    affected = task.turns[turn_index]
    clarifying = _CLARIFY.format(name=_spoken(position[2]), value=value)
    added = Turn(user_text=clarifying, ground_truth=affected.ground_truth)
    emptied = replace(affected, user_text=shortened, ground_truth=())
    turns = (*task.turns[:turn_index], emptied, added, *task.turns[turn_index + 1 :])
    changed = replace(task, category=Category.MISS_PARAM, turns=turns)
    missing = (turn_index + 1, *position[1:])
    note = f"{position[2]} withheld until turn {turn_index + 1}"
    trace = run(environment, changed)
    return replace(draft, task=changed, trace=trace, missing=(missing,), changes=(*draft.changes, note))


def _removable_values(task: Task, trace: Trace) -> list[tuple[int, Position, str, str]]:
    options = []
    for step in trace.steps:
        text = task.turns[step.turn].user_text
        for name, argument in step.arguments.items():
            for path, value in leaves(argument):
                if not isinstance(value, str) or len(value) < 3:
                    continue
                shortened = _without(value, text)
                if shortened and not visible_before(value, task, trace, step.turn):
                    options.append((step.turn, (step.turn, step.index, name, path), shortened, value))
    return options


def _without(value: str, text: str) -> str:
    """The text without " titled 'value'" and the like; empty if it does not read well without it or says it again."""
    pattern = re.compile(rf"\s+{_REMOVABLE}:?\s*(['\"]){re.escape(value)}\1(?=\s*[.,;!?]|\s+(?:and|to|in|for)\b|\s*$)")
    shortened, count = pattern.subn("", text)
    if count != 1 or has_word(value, shortened, ignore_case=True) or len(shortened.split()) < 4:
        return ""
    return shortened


def _spoken(parameter: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", parameter).lower()
    return words.removeprefix("dir ").replace("comment content", "comment")


def protocol_problem(seed: Task, draft: Draft, config: SynthesisConfig) -> Failure | None:
    """Where a draft breaks the rules of its category, or ``None``.

    Args:
        seed: the seed task; its category is the wanted one, and its own oddities are allowed to recur.
        draft: the candidate.
        config: settings.
    """
    task = draft.task
    if task.category is not seed.category:
        return _cannot(f"the draft is {task.category.value}, the seed is {seed.category.value}")
    if not 1 <= len(task.turns) <= config.max_turns:
        return _cannot(f"{len(task.turns)} turns, allowed are 1 to {config.max_turns}")
    if not any(turn.ground_truth for turn in task.turns):
        return _cannot("no turn has a reference call")
    if task.category is Category.MISS_FUNC:
        problem = _miss_func_problem(task)
    elif task.category is Category.MISS_PARAM:
        problem = _miss_param_problem(task)
    elif task.category is Category.LONG_CONTEXT:
        problem = _long_context_problem(task, draft.trace, config, draft.keeps_structure)
    else:
        problem = _base_problem(task)
    return _cannot(problem) if problem else None


def _base_problem(task: Task) -> str:
    if task.withheld_functions or task.long_context:
        return "a base task withholds no function and has no bulk content"
    silent = [index for index, turn in enumerate(task.turns) if not turn.user_text]
    return f"turn {silent[0]} has no text" if silent else ""


def _miss_func_problem(task: Task) -> str:
    if not task.withheld_functions:
        return "no function is withheld"
    restored = [name for turn in task.turns for name in turn.restored_functions]
    if sorted(restored) != sorted(task.withheld_functions):
        return f"withheld are {list(task.withheld_functions)}, restored {restored}"
    for index, turn in enumerate(task.turns):
        if turn.restored_functions:
            if index == 0 or task.turns[index - 1].ground_truth or not task.turns[index - 1].user_text:
                return f"turn {index} restores a function, but the turn before is no request without calls"
            if turn.user_text:
                return f"turn {index} restores a function and has a text of its own"
            if not turn.ground_truth:
                return f"turn {index} restores a function and has no calls"
        elif not turn.user_text:
            return f"turn {index} has no text"
    return ""


def _miss_param_problem(task: Task) -> str:
    for before, after in zip(task.turns, task.turns[1:], strict=False):
        if not before.ground_truth and before.user_text and after.user_text and after.ground_truth:
            return ""
    return "no turn without calls is followed by a turn that clarifies it"


def _long_context_problem(task: Task, trace: Trace, config: SynthesisConfig, keeps_structure: bool) -> str:
    if not task.long_context:
        return "the task does not run with bulk content"
    longest = max((len(step.result) for step in trace.steps), default=0)
    if longest < config.long_context_min_chars and not keeps_structure:
        return f"the longest result has {longest} characters, less than {config.long_context_min_chars}"
    return ""
