"""The benchmark of quantised weights: its products, the bundle that it writes, a run on emulated kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from benchmarks import client_quantised

SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 128,
}  # fmt: skip


def test_the_products_of_llama_3_8b() -> None:
    config = json.loads(client_quantised.CONFIG.read_text())
    assert client_quantised.layers(config) == [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336)]
    found = client_quantised.problems(config, [1, 8])
    assert len({one.id for one in found}) == 8
    assert {(one.n, one.dtype_a, one.zero_a, one.scale_a) for one in found} == {
        (m, "uint4", "eight", "block_1x128") for m in (1, 8)
    }


@pytest.mark.torch
@pytest.mark.compiler
def test_a_run_on_a_cpu(tmp_path: Path, cache: BinaryCache, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.client.torch.quantised.emulated import write

    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL))
    problems = [(one, "dequant-gemv") for one in client_quantised.problems(SMALL, [1])]
    bundle = write(tmp_path / "small.gtb", problems, cache)
    out = tmp_path / "found.json"
    client_quantised.main(["run", str(bundle), "--json", str(out), "--config", str(config), "--quick"])
    found: dict[str, Any] = json.loads(out.read_text())
    assert (found["layers"], found["quantized_modules"]) == (2, 14)
    (row,) = found["rows"]
    assert set(row) >= {"bf16", "gemmtune", "dequantised", "speedup"}
    assert row["gemmtune"]["modules"] == 14
    assert sum(calls for _, _, _, calls, _ in row["gemmtune"]["rows"]) == 14
    assert row["gemmtune"]["to_dequantised"] < 0.1
    assert "tokens/s" in capsys.readouterr().err
