"""The section of docs/performance.md about low-bit products."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.tables_lowbit import section
from tests.benchmarks.gpus import gpu


def document(**more: Any) -> str:
    row = {
        "kind": "w4a16",
        "model": "llama-3-8b",
        "m": 1,
        "n": 4096,
        "k": 4096,
        "best_us": 2.0,
        "bf16_us": 6.0,
        "bound_us": 1.26,
        "over_bf16": 3.0,
    }
    return json.dumps(
        {
            "command": "python -m benchmarks.lowbit", "commit": "0123",
            "measured_at": "2026-11-26T00:00:00+00:00",
            "environment": gpu(0).environment.to_dict(), "rows_wanted": 2, "complete": False,
            "rows": [row, {**row, "tp": 8, "n": 512, "over_bf16": 5.0}], **more,
        }
    )  # fmt: skip


def test_every_model_and_tensor_parallelism_is_a_line(tmp_path: Path) -> None:
    assert section(tmp_path) == ""
    (tmp_path / "lowbit.json").write_text(document())
    (tmp_path / "lowbit-bytes.json").write_text(document(complete=True))
    text = section(tmp_path)
    assert text.count("| w4a16 | llama-3-8b | 1 | 1 | 1 | - | - | 3.00x | - | - | 3.00x |") == 2
    assert text.count("| w4a16 | llama-3-8b | 8 | 1 | 1 | - | - | 5.00x | - | - | 3.00x |") == 2
    assert text.count("2 of 2 products were measured") == 1
    assert "compiled beforehand.\n" not in text


def test_a_portfolio_that_was_compiled_beforehand_is_told(tmp_path: Path) -> None:
    (tmp_path / "lowbit.json").write_text(document(precompile={"seconds": 30.0, "exit_code": 0}))
    assert "The portfolio was compiled beforehand.\n" in section(tmp_path)
