"""The problems that `gemmtune judge --shapes` names: those of a model that is built in, or of any file that
gemmtune reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from backends.errors import ReadError
from service.commands.common import read_input, token_counts
from service.formats import ReadOptions, read_stream
from service.formats.core.base import Imported
from service.model.plan import FORMAT

_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 8,
    "vocab_size": 128256, "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
#: Name -> the config.json of a published model.
NAMED: Mapping[str, Mapping[str, Any]] = {
    "llama3": {
        **_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32,
    },
    "llama3-70b": {
        **_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
        "num_hidden_layers": 80,
    },
}  # fmt: skip
#: Tokens of a forward pass where a named list is given without --tokens: decoding, a small batch, a prompt.
TOKENS = "1,16,2048"


def read_shapes(
    text: str, tp: int | None, tokens: str | None, dtype: str | None, format_name: str | None
) -> Imported:
    """The problems of a name of NAMED, else of a file. Raises ReadError, InvalidProblem."""
    if text not in NAMED:
        if not Path(text).exists():
            raise ReadError(f"--shapes {text!r} is neither a file nor one of {', '.join(NAMED)}")
        return read_input(Path(text), format_name, tp, tokens, dtype)
    options = ReadOptions(f"{text}.json", 1 if tp is None else tp, token_counts(tokens or TOKENS), dtype)
    return read_stream(BytesIO(json.dumps(NAMED[text]).encode()), text, FORMAT, options)
