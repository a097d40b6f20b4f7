"""Prompt texts from files: one per role, one per tool class, known by the hash over all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template

from synthesizer.llm.model import Message

SHIPPED = Path(__file__).parent.parent / "prompts"
SPLIT = "\n---\n"
"""Between what the system message says and what the user message says."""


class PromptMissing(LookupError):
    """There is no prompt file of that name; the text says where it was looked for."""


class Prompts:
    """The prompt files in use.

    Args:
        folder: own files, which win over the shipped ones of the same name; empty for none.
    """

    def __init__(self, folder: str = "") -> None:
        self._texts = {**_files(SHIPPED), **(_files(Path(folder)) if folder else {})}
        whole = json.dumps(self._texts, sort_keys=True)
        self.hash = hashlib.sha256(whole.encode()).hexdigest()

    def messages(self, role: str, values: Mapping[str, str], form: str) -> tuple[Message, Message]:
        """System and user message of a role.

        Args:
            role: name of the file.
            values: what its ``$names`` stand for.
            form: the sentence on the form of the answer; goes last.

        Raises:
            PromptMissing: no such file, or it names a value that is not given.
        """
        system, _, user = self.text(f"{role}.md").partition(SPLIT)
        try:
            filled = Template(user).substitute(values)
        except (KeyError, ValueError) as error:
            raise PromptMissing(f"prompt {role}.md asks for {error}, which this role does not give") from error
        return {"role": "system", "content": system.strip()}, {"role": "user", "content": f"{filled.strip()}\n\n{form}"}

    def text(self, name: str) -> str:
        """One file.

        Raises:
            PromptMissing: there is none.
        """
        if name not in self._texts:
            raise PromptMissing(f"there is no prompt file {name} in {SHIPPED.name}/ or synthesis.llm.prompts_folder")
        return self._texts[name]

    def for_class(self, owner: str, generic: bool) -> str | None:
        """Advice on writing for one tool class; the general one if allowed, else ``None``."""
        own = self._texts.get(f"classes/{owner}.md")
        return own if own is not None or not generic else self._texts.get("classes/general.md")


@cache
def _files(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise PromptMissing(f"synthesis.llm.prompts_folder {folder} does not exist")
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.md"))}


def as_data(value: object, max_chars: int = 6000) -> str:
    """A value as a prompt shows it: JSON that can neither end its block nor open a tag, long values cut.

    What tools, users and earlier models wrote goes into prompts only through here, so that it stays data.
    """
    text = json.dumps(value, ensure_ascii=False, default=str).replace("<", "\\u003c")
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]} …{len(text) - 2 * half} characters left out… {text[-half:]}"
