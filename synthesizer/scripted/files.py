"""File and directory names: new words in the same style, keeping every word that the conversation uses elsewhere."""

from __future__ import annotations

import re

from synthesizer.scripted.draw import Draw
from synthesizer.scripted.pools import CODE_WORDS, FILE_WORDS
from synthesizer.scripted.view import SeedView
from synthesizer.values import word_pattern

FILE_FUNCTIONS = frozenset(
    {"cat", "cd", "cp", "diff", "echo", "find", "grep", "mkdir", "mv", "rm", "rmdir", "sort", "tail", "touch", "wc"}
)
NAME_PARAMETERS = frozenset(
    {"file_name", "file_name1", "file_name2", "dir_name", "source", "destination", "folder", "path"}
)
_PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^A-Za-z0-9]+")
_PLACE_WORD = r"(?:director(?:y|ies)|folders?|subdirectory)"


def collect(draw: Draw) -> None:
    """Rename every file and directory that the user names exactly and unmistakably."""
    names = [name for name in _names(draw.view) if _is_nameable(name, draw.view)]
    for name in names:
        new = _renamed(name, names, draw)
        if new:
            draw.word(name, new, "file")


def _names(view: SeedView) -> list[str]:
    """Names of the file tree and of new files, longest first."""
    found = {}
    tree = view.config.get("GorillaFileSystem", {}).get("root", {})
    _walk(tree, found)
    for argument in view.arguments:
        is_name = argument.name in NAME_PARAMETERS and argument.function in FILE_FUNCTIONS
        if is_name and isinstance(argument.value, str) and argument.value not in (".", ".."):
            found[argument.value] = None
    return sorted(found, key=lambda name: (-len(name), name))


def _walk(tree: dict, found: dict[str, None]) -> None:
    for name, node in tree.items():
        found[name] = None
        if isinstance(node, dict) and isinstance(node.get("contents"), dict):
            _walk(node["contents"], found)


def _is_nameable(name: str, view: SeedView) -> bool:
    if not view.says(name):
        return False
    if re.search(r"[._\d]|[a-z][A-Z]", name):
        return True
    spots = list(re.finditer(word_pattern(name), view.text))
    return all(_is_marked(view.text, spot) for spot in spots)


def _is_marked(text: str, spot: re.Match[str]) -> bool:
    """Whether a plain word is quoted or stands next to "directory" and the like."""
    before, after = text[: spot.start()], text[spot.end() :]
    if before[-1:] in "'\"`" and after[:1] in "'\"`":
        return True
    follows = re.match(rf"['\"`]?\s+{_PLACE_WORD}\b", after)
    precedes = re.search(rf"\b{_PLACE_WORD}\s+(?:named|called|titled)?\s*['\"`]?$", before)
    return bool(follows or precedes)


def _renamed(name: str, names: list[str], draw: Draw) -> str:
    stem, dot, extension = name.partition(".") if not name.startswith(".") else (name, "", "")
    pieces = _PIECES.findall(stem)
    elsewhere = _words_elsewhere(draw.view, names)
    new_pieces = [_new_piece(piece, elsewhere, draw) for piece in pieces]
    if new_pieces == pieces:
        new_pieces = _with_code_word(pieces, stem, draw)
    new = "".join(new_pieces) + dot + extension
    return new if new != name else ""


def _words_elsewhere(view: SeedView, names: list[str]) -> frozenset[str]:
    """Words of texts and search patterns outside the names themselves."""
    text = view.text
    for name in names:
        text = re.sub(word_pattern(name), " ", text)
    patterns = " ".join(str(a.value) for a in view.arguments if a.name in ("name", "pattern"))
    return frozenset(word.lower() for word in re.findall(r"[A-Za-z]+", f"{text} {patterns}"))


def _new_piece(piece: str, elsewhere: frozenset[str], draw: Draw) -> str:
    if re.fullmatch(r"(?:19|20)\d\d", piece):
        return str(int(piece) - draw.rng.randint(1, 4)) if piece not in elsewhere else piece
    word = piece.lower()
    if not word.isalpha() or _is_echoed(word, elsewhere):
        return piece
    options = FILE_WORDS.get(word)
    if options is None:
        return piece
    return _styled(draw.rng.choice(options), piece)


def _is_echoed(word: str, elsewhere: frozenset[str]) -> bool:
    """Whether the conversation uses this word, or one with the same beginning, in its own sentences."""
    stem = word[:5] if len(word) >= 5 else word
    return any(
        other == word or len(other) >= 4 and (other.startswith(stem) or word.startswith(other)) for other in elsewhere
    )


def _styled(word: str, like: str) -> str:
    if like.isupper() and len(like) > 1:
        return word.upper()
    return word.capitalize() if like[:1].isupper() else word


def _with_code_word(pieces: list[str], stem: str, draw: Draw) -> list[str]:
    """The name behind a project word, joined as the name itself is."""
    word = draw.rng.choice(CODE_WORDS)
    if "-" in stem:
        return [word, "-", *pieces]
    if stem[:1].isupper() and "_" not in stem:
        return [word.capitalize(), *pieces] if stem[1:2].islower() else [word.capitalize(), "_", *pieces]
    return [_styled(word, stem), "_", *pieces]
