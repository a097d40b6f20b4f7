"""Tags, mentions and the sentences a user dictates: posts, comments, messages, tickets, file contents."""

from __future__ import annotations

import re

from synthesizer.scripted.draw import Draw
from synthesizer.scripted.pools import AFFIXES, GREETINGS, LINES, MENTIONS, SHORT, TAGS, TOPICS
from synthesizer.scripted.view import Argument, SeedView
from synthesizer.values import has_word, result_leaves, word_pattern

SENTENCE_PARAMETERS = frozenset({"content", "comment_content", "message", "title", "description", "resolution"})
MAX_CHARS = 200
"""The complexity gate's limit on a string argument."""
ROOM = 40
"""Longest affix, characters."""


def collect_tags(draw: Draw) -> None:
    """New hashtags and mentions, where the user writes them with their sign, in quotes or as one marked word."""
    for argument in draw.view.arguments:
        if argument.name not in ("tags", "mentions", "mentioned_usernames") or not isinstance(argument.value, str):
            continue
        bare = argument.value.lstrip("@#")
        if bare in draw.words or not draw.view.says(bare) or not _is_marked(bare, draw.view.text):
            continue
        if argument.name == "tags":
            draw.pick(bare, [_styled(tag, bare) for tag in TAGS], "tag")
        else:
            draw.pick(bare, [_styled(name, bare) for name in MENTIONS], "mention")


def _styled(word: str, like: str) -> str:
    return word.lower() if like.islower() else word


def _is_marked(bare: str, text: str) -> bool:
    """Whether no spot could be an ordinary word: signed, quoted, or a word in mixed case."""
    if re.search(r"[a-z][A-Z]|_|\d", bare):
        return True
    spots = list(re.finditer(word_pattern(bare), text))
    return bool(spots) and all(text[: spot.start()][-1:] in "@#'\"" for spot in spots)


def collect_sentences(draw: Draw) -> None:
    """Change what a dictated sentence says around its subject, or what it says at all where it is free.

    A sentence with exchanged names or numbers in it is left to them.
    """
    for argument in _dictated(draw.view):
        old = str(argument.value)
        if old in draw.words or draw.touches(old):
            continue
        for _ in range(4):
            new = _rephrased(old, argument, draw)
            if new and len(new) <= MAX_CHARS and draw.word(old, new, argument.name):
                break


def _dictated(view: SeedView) -> list[Argument]:
    """Sentences that a text quotes word for word."""
    found = {}
    for argument in view.arguments:
        if argument.name not in SENTENCE_PARAMETERS or not isinstance(argument.value, str) or not argument.is_said:
            continue
        if len(argument.value) >= 4 and _is_quoted(argument.value, view.text):
            found.setdefault(argument.value, argument)
    return sorted(found.values(), key=lambda argument: -len(str(argument.value)))


def _is_quoted(sentence: str, text: str) -> bool:
    spots = list(re.finditer(word_pattern(sentence), text))
    if not spots:
        return False
    return all(text[: spot.start()][-1:] in "'\"‘“" and text[spot.end() :][:1] in "'\".,’”" for spot in spots)


def _rephrased(old: str, argument: Argument, draw: Draw) -> str:
    if len(old) > MAX_CHARS:
        return SHORT.get(argument.name, "")
    is_file = argument.function == "echo"
    words = old.split()
    if is_file and re.fullmatch(r"[A-Za-z' ]+!?", old) and len(words) <= 3:
        return _short_text(old, draw)
    if re.search(r"[|{}\\:]|\d", old) or len(words) < 2 or len(old) > MAX_CHARS - ROOM or not old[0].isupper():
        return ""
    templates = AFFIXES["note" if is_file else argument.name]
    return _fitted(draw.rng.choice(templates), old)


def _short_text(old: str, draw: Draw) -> str:
    if old.lower().startswith(("hello", "hi ", "halo", "hey")):
        return draw.rng.choice(GREETINGS) + ("!" if old.endswith("!") else "")
    if old.islower():
        return draw.rng.choice(TOPICS)
    return ""


def _fitted(template: str, old: str) -> str:
    """The template around the sentence, with a full stop between sentences."""
    if template.startswith("{} ") and template[3:4].isupper() and not re.search(r"[.!?]$", old):
        return template.replace("{}", f"{old}.", 1)
    return template.replace("{}", old, 1)


def collect_contents(draw: Draw) -> None:
    """New contents for files that no text, pattern or argument quotes; the number of lines stays."""
    view = draw.view
    if view.functions() & {"grep", "sort"} or "GorillaFileSystem" not in view.config:
        return
    for path, value in view.state_leaves:
        if path[-1] != "content" or "contents" not in path or not isinstance(value, str) or value in draw.words:
            continue
        num_lines = value.count("\n") + 1
        if len(value.split()) >= 3 and num_lines <= len(LINES) and _is_free(value, view):
            draw.override(path, "\n".join(draw.rng.sample(LINES, num_lines)), "content")


def _is_free(content: str, view: SeedView) -> bool:
    if re.search(r"\d", content):
        return False
    words = set(re.findall(r"[a-z]{4,}", content.lower()))
    quotes = [str(a.value) for a in view.arguments if isinstance(a.value, str) and not _is_whole_result(a.value, view)]
    if any(len(words & set(re.findall(r"[a-z]{4,}", quote.lower()))) >= 2 for quote in quotes):
        return False
    return not any(has_word(line.strip(), view.text) for line in content.splitlines() if line.strip())


def _is_whole_result(value: str, view: SeedView) -> bool:
    return any(leaf == value for step in view.trace.steps for _, leaf in result_leaves(step.result))
