"""One process of a DeepSpeed update, started by torchrun: ``deepspeed_member.py FOLDER SETTINGS_JSON...``.

The first process learns two batches under each of the settings, saves weights, metrics and state, and learns a third;
then it does the same once more from the saved state. The others follow, and say what they were told and what they kept.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from tests.trainer.sequences import batch_of, settings, some_sequences
from tests.trainer.toys import toy_model
from trainer.update.deepspeed_engine import DeepSpeedEngine


class Watched(DeepSpeedEngine):
    """Notes what a following process is told to load and what it keeps of a gathered state."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.seen = []

    def _state(self, value):
        state = super()._state(value)
        self.seen.append(["kept", state["shards"]])
        return state

    def _load(self, state, shards=None):
        self.seen.append(["told", sorted(state)])
        super()._load(state, shards)


def learned(values: dict, folder: Path, name: str, rank: int) -> None:
    config = settings(**values)
    reference = toy_model(3) if config.kl_coef else None
    first = (Watched if rank else DeepSpeedEngine)(toy_model(), config, reference)
    if rank:
        seen = []
        for engine in (first, None):
            engine = engine or Watched(toy_model(), config, reference)
            engine.follow()
            seen += engine.seen
        (folder / f"{name}.follower.json").write_text(json.dumps(seen))
        return
    metrics = [first.update(batch_of(some_sequences(toy_model(), seed), seed + 1)) for seed in range(2)]
    weights, state = {n: w.clone() for n, w in first.model.state_dict().items()}, first.state_dict()
    torch.save({"weights": weights, "metrics": metrics, "state": state}, folder / f"{name}.pt")
    first.update(batch_of(some_sequences(toy_model(), 9), 4))
    first.close()
    second = DeepSpeedEngine(toy_model(), config, reference)
    second.model.load_state_dict(weights)
    second.load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True)["state"])
    second.update(batch_of(some_sequences(toy_model(), 9), 4))
    second.close()
    (folder / f"{name}.json").write_text(json.dumps([first.digest(), second.digest()]))


def main() -> None:
    folder = Path(sys.argv[1])
    for number, text in enumerate(sys.argv[2:]):
        learned(json.loads(text), folder, str(number), int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
