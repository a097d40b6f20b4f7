"""A bicycle workshop: a second, small environment of our own, in all four categories.

Two tool classes, parts in stock and repair jobs, and eight seeds: each seed opens a job, takes parts and books work.
Job ids are random, so that they must be read from results. It shows that the interface is not made for one benchmark, and
it needs no data package.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from functools import cache
from typing import Any

from environments.execution import make_call
from environments.toolbox import Toolbox
from schemas.events import Call, Category, Task, Turn

NAME, VERSION = "workshop", "1"
NUM_BULK_PARTS = 240
SPLITS = {"train": range(4), "val": range(4, 5), "test": range(5, 8), "all": range(8)}


class Stock:
    """Parts on the shelf."""

    def __init__(self, shelf: dict[str, dict[str, float]], long_context: bool = False) -> None:
        self.shelf = shelf
        self._bulk = [f"fitting-{number:04d}" for number in range(NUM_BULK_PARTS)] if long_context else []

    def list_parts(self) -> dict[str, Any]:
        """Name every part the workshop knows."""
        return {"parts": [*self._bulk, *self.shelf]}

    def part_info(self, part: str) -> dict[str, Any]:
        """Tell how many of a part are on the shelf and what one costs.

        Args:
            part: Name of the part.
        """
        return {"part": part, **self._row(part)}

    def take_part(self, part: str, quantity: int) -> dict[str, Any]:
        """Take parts from the shelf.

        Args:
            part: Name of the part.
            quantity: How many to take.
        """
        row = self._row(part)
        if not 0 < quantity <= row["quantity"]:
            raise ValueError(f"cannot take {quantity} of {row['quantity']} {part}")
        row["quantity"] -= quantity
        return {"part": part, "left": row["quantity"]}

    def _row(self, part: str) -> dict[str, float]:
        if part not in self.shelf:
            raise ValueError(f"no part named {part}; list_parts names them all")
        return self.shelf[part]


class Jobs:
    """Repair jobs and the work booked on them."""

    def __init__(self, random: random.Random, rate: float = 1.0) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.rate = rate
        self._random = random

    def open_job(self, customer: str, bicycle: str) -> dict[str, Any]:
        """Open a repair job.

        Args:
            customer: Name of the customer.
            bicycle: What is to be repaired.
        """
        job_id = f"J{self._random.randint(1000, 9999)}"
        self.jobs[job_id] = {"customer": customer, "bicycle": bicycle, "minutes": 0, "notes": []}
        return {"job_id": job_id}

    def add_work(self, job_id: str, note: str, minutes: int) -> dict[str, Any]:
        """Book work on a job.

        Args:
            job_id: Id that open_job returned.
            note: What was done.
            minutes: Working time in minutes.
        """
        job = self._job(job_id)
        job["minutes"] += minutes
        job["notes"].append(note)
        return {"job_id": job_id, "minutes": job["minutes"]}

    def job_total(self, job_id: str) -> dict[str, Any]:
        """Tell what the work on a job costs.

        Args:
            job_id: Id that open_job returned.
        """
        return {"job_id": job_id, "total": round(self._job(job_id)["minutes"] * self.rate, 2)}

    def _job(self, job_id: str) -> dict[str, Any]:
        if job_id not in self.jobs:
            raise ValueError(f"no job {job_id}")
        return self.jobs[job_id]


SEEDS = (
    ("Mira", "touring bike", "brake pad", 2, "brakes renewed", 35),
    ("Jonas", "cargo bike", "spoke", 6, "rear wheel trued", 50),
    ("Aiko", "racing bike", "chain", 1, "drive train cleaned", 25),
    ("Lena", "city bike", "inner tube", 2, "both tubes replaced", 20),
    ("Omar", "tandem", "brake cable", 2, "cables routed anew", 45),
    ("Petra", "folding bike", "hinge bolt", 1, "hinge tightened", 15),
    ("Noor", "mountain bike", "brake pad", 4, "brakes bled", 60),
    ("Elio", "child's bike", "training wheel", 2, "wheels mounted", 10),
)


def load(split: str) -> tuple[Task, ...]:
    """Tasks of a split by category, then by seed; one seed is in one split only.

    Raises:
        ValueError: no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"no split '{split}'; there are {', '.join(SPLITS)}")
    return tuple(_task(category, index) for category in Category for index in SPLITS[split])


@cache
def _task(category: Category, index: int) -> Task:
    customer, bicycle, part, quantity, note, minutes = SEEDS[index]
    take = make_call("take_part", {"part": part, "quantity": quantity})
    opening = make_call("open_job", {"customer": customer, "bicycle": bicycle})
    book = _booking(_draft(category, index, ()), opening, note, minutes)
    turns = (
        Turn(user_text=f"Please open a job for {customer}'s {bicycle}.", ground_truth=(opening,)),
        *_taking(category, part, quantity, take),
        Turn(
            user_text=f"Book {minutes} minutes on the job with the note '{note}' and tell me what the work costs.",
            ground_truth=book,
        ),
    )
    return _draft(category, index, turns)


def _taking(category: Category, part: str, quantity: int, take: Call) -> Iterable[Turn]:
    whole = Turn(user_text=f"Take {quantity} of the part '{part}' from the shelf for it.", ground_truth=(take,))
    if category is Category.MISS_FUNC:
        restored = Turn(user_text="", ground_truth=(take,), restored_functions=("take_part",))
        return Turn(user_text=whole.user_text, ground_truth=()), restored
    if category is Category.MISS_PARAM:
        vague = Turn(user_text=f"Take some of the part '{part}' from the shelf for it.", ground_truth=())
        return vague, Turn(user_text=f"{quantity} of them.", ground_truth=(take,))
    if category is Category.LONG_CONTEXT:
        look = make_call("list_parts", {})
        text = f"Look through the whole list of parts, then take {quantity} of the part '{part}' from the shelf for it."
        return (Turn(user_text=text, ground_truth=(look, take)),)
    return (whole,)


def _booking(draft: Task, opening: Call, note: str, minutes: int) -> tuple[Call, ...]:
    """The last turn's calls; the job id is the one that opening the job really gives."""
    job_id = json.loads(WORKSHOP.call(WORKSHOP.start(draft), opening))["job_id"]
    work = make_call("add_work", {"job_id": job_id, "note": note, "minutes": minutes})
    return work, make_call("job_total", {"job_id": job_id})


def _draft(category: Category, index: int, turns: tuple[Turn, ...]) -> Task:
    parts = [part for _, _, part, *_ in SEEDS]
    shelf = {part: {"quantity": 10 + position + index, "price": 4.5} for position, part in enumerate(parts)}
    return Task(
        task_id=f"workshop_{category.value}_{index}",
        environment=NAME,
        environment_version=VERSION,
        category=category,
        involved_classes=("Stock", "Jobs"),
        initial_config_json=json.dumps({"Stock": {"shelf": shelf}, "Jobs": {"rate": 0.8}}),
        turns=turns,
        withheld_functions=("take_part",) if category is Category.MISS_FUNC else (),
        long_context=category is Category.LONG_CONTEXT,
    )


WORKSHOP = Toolbox(NAME, VERSION, {"Stock": Stock, "Jobs": Jobs}, load)
