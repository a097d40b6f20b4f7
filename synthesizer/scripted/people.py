"""People, their user names, passwords, ids and tokens."""

from __future__ import annotations

import random
import re

from synthesizer.scripted.draw import Draw
from synthesizer.scripted.pools import FEMALE_NAMES, HANDLES, LAST_NAMES, MALE_NAMES
from synthesizer.scripted.tables import DEFAULT_CONTACTS, DEFAULT_INBOX
from synthesizer.scripted.view import SeedView
from synthesizer.values import has_word

_FIRST_NAMES = frozenset({*FEMALE_NAMES, *MALE_NAMES})
SECRET_PARAMETERS = frozenset({"access_token", "refresh_token", "client_secret", "client_id"})
ID_PARAMETERS = frozenset({"card_id", "booking_id", "insurance_id", "passport_number", "card_number"})
LOGIN_PARAMETERS = frozenset({"username", "password"})
_RUNS = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|[^A-Za-z0-9]+")
_NAME_FIELDS = frozenset(
    {
        "user_first_name",
        "user_last_name",
        "cardholder_name",
        "card_holder_name",
        "current_user",
        "created_by",
        "name",
        "passenger_name",
    }
)


def collect(draw: Draw) -> None:
    """Rename the people of a task, then everything that carries their names, then ids and secrets."""
    _contacts(draw)
    _names(draw)
    _logins(draw)
    _secrets(draw)
    _card_details(draw)


def _contacts(draw: Draw) -> None:
    """New ids for workspace contacts; a workspace that the task leaves to defaults is written out first."""
    if "MessageAPI" not in draw.view.task.involved_classes:
        return
    state = draw.config.get("MessageAPI")
    if not state or "user_map" not in state:
        draw.config = {**draw.config, "MessageAPI": {**_default_workspace(), **(state or {})}}
    contacts: dict = draw.config["MessageAPI"]["user_map"]
    for user_id in dict.fromkeys(contacts.values()):
        match = re.fullmatch(r"(USR)(\d{3})", str(user_id))
        if match:
            draw.word(user_id, f"{match[1]}{draw.rng.randint(10, 999):03d}", "contact id")


def _default_workspace() -> dict:
    return {
        "user_count": len(DEFAULT_CONTACTS),
        "user_map": dict(DEFAULT_CONTACTS),
        "inbox": [dict(message) for message in DEFAULT_INBOX],
        "message_count": len(DEFAULT_INBOX),
    }


def _names(draw: Draw) -> None:
    """First and last names, in every case they occur in, and inside user names."""
    for name in _person_words(draw):
        pool = _pool(name)
        if pool is None:
            continue
        for new in draw.rng.sample(list(pool), len(pool)):
            if not draw.view.knows(new) and not _inside(new, draw.view) and draw.word(name, new, "person"):
                draw.word(name.lower(), new.lower())
                break


def _inside(name: str, view: SeedView) -> bool:
    return name.lower() in view.text.lower() or name.lower() in view.state_text.lower()


def _person_words(draw: Draw) -> list[str]:
    view, found = draw.view, {}
    for path, value in view.state_leaves:
        if path and path[-1] in _NAME_FIELDS and isinstance(value, str):
            found.update(dict.fromkeys(word for word in value.split() if word.isalpha() and word[0].isupper()))
    for name in draw.config.get("MessageAPI", {}).get("user_map", {}):
        found.update(dict.fromkeys(word for word in name.split() if word.isalpha()))
    for argument in view.arguments:
        if argument.name in (
            "first_name",
            "last_name",
            "user_first_name",
            "user_last_name",
            "cardholder_name",
            "user_name",
        ):
            found.update(dict.fromkeys(word for word in str(argument.value).split() if word.isalpha()))
    for word in re.findall(r"\b[A-Z][a-z]+\b", view.text):
        if word in _FIRST_NAMES:
            found[word] = None
    return [name for name in found if _is_changeable(name, view)]


def _is_changeable(name: str, view: SeedView) -> bool:
    """Capitalised everywhere, so that no ordinary word is taken for a name."""
    if not name[:1].isupper() or len(name) < 3:
        return False
    return name in _FIRST_NAMES or not has_word(name.lower(), view.text)


def _pool(name: str) -> tuple[str, ...] | None:
    if name in FEMALE_NAMES:
        return FEMALE_NAMES
    if name in MALE_NAMES:
        return MALE_NAMES
    return LAST_NAMES


def _logins(draw: Draw) -> None:
    """User names and passwords: name parts follow the person, the rest is drawn."""
    found: dict[str, str] = {}
    for path, value in draw.view.state_leaves:
        if path[-1] in LOGIN_PARAMETERS and isinstance(value, str) and len(path) == 2:
            found[value] = str(path[-1])
    for argument in draw.view.arguments:
        if argument.name in LOGIN_PARAMETERS and isinstance(argument.value, str) and argument.is_said:
            found.setdefault(argument.value, argument.name)
    for value, kind in found.items():
        if value in draw.words:
            continue
        new = _carried_names(value, draw)
        if kind == "password":
            new = scrambled(new, draw.rng, letters=False)
        if new != value:
            draw.word(value, new, kind)
        elif kind == "username" and value.lower() not in {name.lower() for name in _FIRST_NAMES}:
            draw.pick(value, HANDLES, kind)


def _carried_names(value: str, draw: Draw) -> str:
    """The value with every exchanged name that it contains, also as initial and last name."""
    for old, new in sorted(draw.words.items(), key=lambda pair: -len(pair[0])):
        if len(old) >= 4 and old.islower() and old in value:
            return _carried_names(value.replace(old, new), draw) if new not in value else value
    return value


def scrambled(value: str, rng: random.Random, letters: bool) -> str:
    """The same shape with other digits, and with other letters in runs too short to be words."""
    parts = []
    for run in _RUNS.findall(value):
        if run.isdigit():
            parts.append("".join(_digit(rng, not parts and index == 0 and run[0] != "0") for index in range(len(run))))
        elif letters and run.isalpha() and len(run) <= 3:
            alphabet = "abcdefghjkmnpqrstuvwxyz" if run.islower() else "ABCDEFGHJKMNPQRSTUVWXYZ"
            parts.append("".join(rng.choice(alphabet) for _ in run))
        else:
            parts.append(run)
    return "".join(parts)


def _digit(rng: random.Random, is_first: bool) -> str:
    return str(rng.randint(1, 9) if is_first else rng.randint(0, 9))


def _secrets(draw: Draw) -> None:
    """Tokens, card and booking ids, passport numbers: the same shape, other characters."""
    found: dict[str, bool] = {}
    for argument in draw.view.arguments:
        known = argument.name in SECRET_PARAMETERS or argument.name in ID_PARAMETERS
        if known and isinstance(argument.value, str) and argument.is_said and re.search(r"\d", argument.value):
            found.setdefault(argument.value, argument.name in SECRET_PARAMETERS)
    for path, value in draw.view.state_leaves:
        if path[-1] in SECRET_PARAMETERS and isinstance(value, str) and re.search(r"\d", value):
            found.setdefault(value, True)
    for value, is_secret in found.items():
        for _ in range(5):
            if draw.word(value, scrambled(value, draw.rng, letters=is_secret), "id"):
                _tail(value, draw)
                break


def _tail(value: str, draw: Draw) -> None:
    """The last digits of an id that stand alone elsewhere, as in "card ending in 3478"."""
    digits = re.search(r"(\d{4,})$", value)
    if digits and digits[1] != value and draw.view.knows(digits[1]):
        draw.word(digits[1], draw.words[value][-len(digits[1]) :])


def _card_details(draw: Draw) -> None:
    """Card numbers in the state that nobody names."""
    for path, value in draw.view.state_leaves:
        if path[-1] not in ("card_number", "number") or not isinstance(value, str) or draw.view.says(value):
            continue
        if not draw.touches(value) and value not in draw.words:
            draw.override(path, scrambled(value, draw.rng, letters=False), "card number")
