"""One process of a DeepSpeed update, started by torchrun: ``deepspeed_member.py FOLDER SETTINGS_JSON...``.

The first process learns two batches under each of the settings, saves weights, metrics and state, and learns a third;
then it does the same once more from the saved state. The others follow.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from tests.trainer.sequences import batch_of, settings, some_sequences
from tests.trainer.toys import toy_model
from trainer.deepspeed_engine import DeepSpeedEngine


def learned(values: dict, folder: Path, name: str, rank: int) -> None:
    config = settings(**values)
    reference = toy_model(3) if config.kl_coef else None
    first = DeepSpeedEngine(toy_model(), config, reference)
    if rank:
        first.follow()
        DeepSpeedEngine(toy_model(), config, reference).follow()
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
