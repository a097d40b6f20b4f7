"""What a replay found, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from analysis.replay import Divergence
from streams.archive.index import Problem

EQUAL, DIFFERS, TOLERANCE, SKIPPED = "equal", "differs", "tolerance", "skipped"
PARTS = ("decisions", "learning", "rewards", "synthesis")
UNITS = {"decisions": "decisions", "learning": "steps", "rewards": "groups", "synthesis": "outcomes"}


@dataclass(slots=True)
class Report:
    """What a replay found.

    Attributes:
        asked: parts that were asked for.
        verdicts: by part: equal, differs, tolerance or skipped.
        divergence: the first difference of each part that has one.
        notes: in words.
        counts: how much was compared, by part.
        damage: faults of the archive.
    """

    asked: tuple[str, ...]
    verdicts: dict[str, str] = field(default_factory=lambda: dict.fromkeys(PARTS, SKIPPED))
    divergence: dict[str, Divergence] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    damage: tuple[Problem, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether every part that was asked for was compared and is equal, bit for bit, and nothing is damaged.

        Synthesis may be skipped: a run may ask for no variant, and an older one did not record what its model answered.
        """
        left = {part for part in self.asked if self.verdicts[part] != EQUAL}
        return not self.damage and (not left or left == {"synthesis"} and self.verdicts["synthesis"] == SKIPPED)

    def set(self, part: str, difference: Divergence | None, count: int, note: str = "") -> None:
        """Record a part's outcome; nothing compared is no verdict."""
        self.verdicts[part] = DIFFERS if difference is not None else EQUAL if count else SKIPPED
        self.counts[part], self.notes[part] = count, note or ("" if count or difference else "nothing to compare")
        if difference is not None:
            self.divergence[part] = difference

    def refuse(self, difference: Divergence) -> None:
        """Nothing can be repeated: the same difference for every part."""
        for part in self.asked:
            self.set(part, difference, 0)

    def skip(self, part: str, why: str) -> None:
        """A part that was asked for and cannot be repeated here."""
        self.set(part, None, 0, why)

    def as_json(self, run_id: str) -> str:
        """Everything on one line."""
        return json.dumps(
            {
                "run_id": run_id,
                "verdicts": self.verdicts,
                "counts": self.counts,
                "notes": self.notes,
                "divergence": {part: asdict(difference) for part, difference in self.divergence.items()},
                "damage": [str(problem) for problem in self.damage],
            }
        )

    def show(self, run_id: str, console: Console) -> None:
        """The verdicts as a table, then what is damaged and the first differences."""
        table = Table(box=None, pad_edge=False, title=f"replay of {run_id}", title_justify="left")
        for heading in ("part", "verdict", "compared", "note"):
            table.add_column(heading)
        for part, verdict in self.verdicts.items():
            style = "green" if verdict == EQUAL else "dim" if verdict == SKIPPED else "red"
            count = f"{self.counts[part]} {UNITS[part]}" if part in self.counts else ""
            table.add_row(part, f"[{style}]{verdict}[/{style}]", count, self.notes.get(part, ""))
        console.print(table)
        for problem in self.damage:
            console.print(f"damaged: {problem}", highlight=False, soft_wrap=True, markup=False)
        for difference in dict.fromkeys(self.divergence.values()):
            parts = ", ".join(part for part, found in self.divergence.items() if found == difference)
            console.print(f"first difference in {parts}:\n{difference}", highlight=False, soft_wrap=True, markup=False)
