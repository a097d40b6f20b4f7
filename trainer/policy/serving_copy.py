"""A policy as vLLM should serve it: ``python -m trainer.policy.serving_copy MODEL FOLDER``.

The output head is a tensor of its own, also where the policy ties it to its embeddings. vLLM on a CPU keeps a packed copy
of a tied head and goes on using it when the weights are reloaded; with a head of its own every tensor is reloaded. Served
from such a copy, and updated from such copies, its log-probabilities follow the trainer's to 1e-6.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from trainer.policy.loading import load_model

HEAD = "lm_head.weight"
ONE_FILE = "100000GB"
BODY_FILE, HEAD_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def write_serving_copy(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Write weights, config and tokenizer as a transformers folder whose output head is not tied.

    Raises:
        OSError: the folder cannot be written.
    """
    model.save_pretrained(folder, max_shard_size=ONE_FILE)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if not model.config.tie_word_embeddings:
        return
    body = (folder / "model.safetensors").rename(folder / BODY_FILE)
    head = model.get_output_embeddings().weight.detach().clone().contiguous().cpu()
    save_file({HEAD: head}, folder / HEAD_FILE, metadata={"format": "pt"})
    with safe_open(body, framework="pt") as tensors:
        places = {**dict.fromkeys(tensors.keys(), BODY_FILE), HEAD: HEAD_FILE}
    num_bytes = sum((folder / name).stat().st_size for name in (BODY_FILE, HEAD_FILE))
    index = {"metadata": {"total_size": num_bytes}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": False}, indent=2))


def main() -> None:
    """Entry point."""
    source, target = sys.argv[1:]
    write_serving_copy(load_model(source), Path(target), AutoTokenizer.from_pretrained(source))


if __name__ == "__main__":
    main()
