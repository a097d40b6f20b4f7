"""Asks vLLM inside this process three questions at once through our client; runs in .venv-vllm."""

from __future__ import annotations

import asyncio
import json
import sys

from synthesizer.config import ModelConfig
from synthesizer.llm.in_process import InProcessModel
from synthesizer.llm.model import Question

SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["accept", "reject"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}


async def main() -> None:
    """Print the replies as JSON; the last line."""
    extra = {"enforce_eager": True, "max_model_len": 1024, "dtype": "bfloat16"}
    model = InProcessModel(ModelConfig(client="vllm", model=sys.argv[1], extra=extra, send_seed=True))
    ask = ({"role": "user", "content": "Is water wet? Answer accept or reject."},)
    questions = [
        Question("judge", ask, schema, 1.0, 0.7, 24, seed) for schema, seed in ((SCHEMA, 1), (SCHEMA, 1), (None, 2))
    ]
    replies = await asyncio.gather(*(model.complete(question) for question in questions))
    await model.close()
    print(json.dumps([[reply.text, reply.num_prompt_tokens, reply.num_completion_tokens] for reply in replies]))


if __name__ == "__main__":
    asyncio.run(main())
