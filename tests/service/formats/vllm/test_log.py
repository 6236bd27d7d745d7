"""What vLLM and SGLang print about missing configurations, read as problems."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ReadError
from backends.problem import from_linear
from service.formats import READERS, ReadOptions, read_stream
from service.formats.core.base import Imported, Rejected
from service.formats.vllm.log import VllmLog

READER = VllmLog()
NAME = "E=16,N=1536,device_name=NVIDIA_L40S.json"
SAID = "Using default MoE config. Performance might be sub-optimal! Config file not found at"
FOLDER = "/opt/venv/lib/python3.12/site-packages/vllm/model_executor/layers/fused_moe/configs"
#: Spellings of releases of vLLM and SGLang.
SPELLINGS = {
    "0.6": f"WARNING 11-03 15:51:20 [fused_moe.py:690] {SAID} {FOLDER}/{NAME}",
    "0.10": f"(Worker_TP2_EP2 pid=2080) WARNING 09-24 20:53:34 [fused_moe.py:727] {SAID} ['{FOLDER}/{NAME}']",
    "two folders": f"WARNING 09-24 20:53:34 [fused_moe.py:727] {SAID} ['/tuned/{NAME}', '{FOLDER}/{NAME}']",
    "0.30": f"(EngineCore pid=310) WARNING [fused_moe.py:1071] {SAID} /tuned/{NAME}, {FOLDER}/{NAME}",
    "colours": f"\x1b[0;36m(EngineCore pid=310)\x1b[0;0m WARNING [fused_moe.py:1071] {SAID} {FOLDER}/{NAME}",
    "SGLang": (
        "[2026-08-27 03:45:56] Using default MoE kernel config. Performance might be sub-optimal! Config "
        f"file not found at /sgl/triton_utils/configs/triton_3_7_1/{NAME}, you can create them with "
        "https://github.com/sgl-project/sglang/tree/main/benchmark/kernels/fused_moe_triton"
    ),
    "SGLang, down": (
        "[2026-08-27 03:45:56] Using MoE kernel config with down_moe=False. Performance might be "
        "sub-optimal! Config file not found at /sgl/configs/triton_3_5_1/"
        f"{NAME.replace('.json', '_down.json')}, you can"
    ),
}  # fmt: skip


def read(text: str, **options: Any) -> Imported:
    told = ReadOptions("server.log", **{"hidden_size": 4096, "top_k": 8, "tokens": (1, 64), **options})
    return read_stream(io.BytesIO(text.encode()), "upload", "vllm-log", told)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_names_the_layer(spelling: str) -> None:
    line = SPELLINGS[spelling]
    assert READER.detect(line.encode())
    imported = read(f"INFO starting\n{line}\n{line}\nINFO ready\n")
    assert imported.rejected == []
    assert [(item.problem, item.count) for item in imported.problems] == [
        (from_linear(8 * tokens, n, k, "bf16", groups=16, routing="uniform"), 1)
        for tokens in (1, 64)
        for n, k in ((3072, 4096), (4096, 1536))
    ], "once, however many processes print it"
    assert imported.problems[0].keys == ("experts.gate_up_proj E=16,N=1536,top_k=8,tokens=1",)


def test_a_server_s_log_names_each_layer_once() -> None:
    other = SPELLINGS["0.10"].replace("E=16", "E=8")
    imported = read("\n".join([*SPELLINGS.values(), other]), tokens=(1,))
    assert [item.problem.groups for item in imported.problems] == [16, 16, 8, 8]


def test_block_fp8_layers_need_no_option() -> None:
    line = (
        "WARNING 09-24 20:53:33 [fp8_utils.py:581] Using default W8A8 Block FP8 kernel config. Performance "
        "might be sub-optimal! Config file not found at /x/configs/"
        "N=4096,K=1024,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,{}128].json"
    )
    for separator in ("", " "):
        imported = read(line.format(separator), hidden_size=None, top_k=None)
        assert [item.problem.slug for item in imported.problems] == [
            from_linear(
                m, 4096, 1024, "fp8_e4m3", dtype_d="bf16", scale_a="block_1x128", scale_b="block_128x128"
            ).slug
            for m in (1, 64)
        ]
        assert imported.rejected == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (NAME, {"hidden_size": None}, "give hidden_size (--hidden-size), or lay the model's config.json"),
        (NAME, {"top_k": None}, "give top_k (--top-k), or lay"),
        (NAME, {"top_k": 17}, "a token has 17 experts (top_k), and the layer has 16 in all"),
        (
            NAME.replace("L40S", "L40S,dtype=int8_w8a8"),
            {},
            "experts of dtype=int8_w8a8: gemmtune has grouped products",
        ),
        (
            NAME.replace("L40S", "L40S,dtype=fp8_w8a8,block_shape=[128, 64]"),
            {},
            "experts of dtype=fp8_w8a8, block_shape=[128, 64]: gemmtune has grouped products",
        ),
        (
            NAME.replace("1536,", "192,").replace("L40S", "L40S,dtype=fp8_w8a8,block_shape=[128,128]"),
            {},
            "an intermediate size of 192 on a device cuts a block of 128 scaled weights",
        ),
        ("E=x,N=1536,device_name=NVIDIA_L40S.json", {}, "it names no file of tuned configurations"),
        ("E=16,N=99999999999999999999,device_name=X.json", {}, "no layer of experts has such a name"),
        ("N=64,K=64,device_name=X.json", {}, "does not say the N, K, device, type and block shape"),
    ],
)
def test_lines_that_make_no_problem(name: str, options: dict[str, Any], words: str) -> None:
    imported = read(f"hello\nWARNING {SAID} {FOLDER}/{name}\n", **options)
    (bad,) = imported.rejected
    assert (bad.line, imported.problems) == (2, [])
    assert words in bad.reason
    assert bad.reason.isprintable()


def test_devices_that_share_experts() -> None:
    rows = [item.problem.n for item in read(SPELLINGS["0.6"], expert_parallel=8).problems]
    assert rows == [1, 1, 64, 64]


def test_a_config_json_in_the_stream() -> None:
    config = json.dumps({"hidden_size": 4096, "num_experts_per_tok": 8, "model_type": "qwen3_moe"})
    text = f"==> config.json <==\n{config}\n\n==> server.log <==\n{SPELLINGS['0.10']}\n"
    assert READER.detect(text.encode())
    assert read(text, hidden_size=None, top_k=None).problems == read(SPELLINGS["0.10"]).problems
    broken = read(f"==> config.json <==\n[]\n==> server.log <==\n{SPELLINGS['0.10']}\n", hidden_size=None)
    assert [bad.line for bad in broken.rejected] == [1, 4]


def test_other_files_are_none() -> None:
    others = (fmt.example for fmt in READERS.values() if fmt.name != READER.name)
    for head in ("", "hello", "Config file not found at /etc/app.json", *others):
        assert not READER.detect(head.encode())
    assert not READER.detect(SPELLINGS["0.6"].encode("utf-16"))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_read_error(raw: bytes) -> None:
    for text in (raw, READER.example.encode() + b"\n" + raw, SPELLINGS["0.6"].encode()[:-9] + raw):
        with suppress(ReadError):
            found = list(
                READER.read_told(text.split(b"\n"), ReadOptions(hidden_size=64, top_k=2, tokens=(1,)))
            )
            bad = [part for part in found if isinstance(part, Rejected)]
            assert all(part.reason and (part.reason + part.text).isprintable() for part in bad)


def test_experts_scaled_by_blocks() -> None:
    name = NAME.replace("L40S", "L40S,dtype=fp8_w8a8,block_shape=[128, 128]")
    imported = read(f"WARNING {SAID} {FOLDER}/{name}\n")
    assert imported.rejected == []
    for item in imported.problems:
        p = item.problem
        assert (p.groups, p.dtype_a, p.dtype_d) == (16, "fp8_e4m3", "bf16")
        assert (p.scale_a, p.scale_b) == ("block_128x128", "block_1x128")
    assert {item.problem.m for item in imported.problems} == {2 * 1536, imported.problems[0].problem.k}


@pytest.mark.parametrize("options", ["dtype=fp8_w8a8", "dtype=fp8_w8a8,per_channel_quant=True"])
@pytest.mark.parametrize("down", ["", "_down"])
def test_experts_scaled_by_rows(options: str, down: str) -> None:
    name = NAME.replace("L40S", f"L40S,{options}{down}")
    imported = read(f"WARNING {SAID} {FOLDER}/{name}\n")
    assert imported.rejected == []
    assert {(item.problem.scale_a, item.problem.scale_b) for item in imported.problems} == {("outer",) * 2}
    assert {item.problem.m for item in imported.problems} == {2 * 1536, imported.problems[0].problem.k}
