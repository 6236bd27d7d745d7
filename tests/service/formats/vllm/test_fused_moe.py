"""vLLM's and SGLang's fused-MoE configurations, read: what names, options and bodies say, and do not."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ReadError
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from service.formats import READERS, ReadOptions, read_stream
from service.formats.core.base import Imported, Rejected
from service.formats.vllm.beside import with_folder
from service.formats.vllm.experts import DOWN, GATE_UP, ExpertFile, ExpertLayer, KeyedCall
from service.formats.vllm.fused_moe import FAMILY, FusedMoe
from tests.backends.kernels.triton.test_legality import H200, MI300X

READER = FusedMoe()
NAME = "E=128,N=768,device_name=NVIDIA_H200.json"
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
          "num_warps": 4, "num_stages": 4}  # fmt: skip
SOLUTION = Solution(FAMILY, 1, CONFIG)
BODY = json.dumps({"triton_version": "3.5.1", "1": CONFIG, "64": {**CONFIG, "SPLIT_K": 1}}, indent=4)
QWEN = {"model_type": "qwen3_moe", "hidden_size": 2048, "num_experts_per_tok": 8}


def experts(tokens: int, product: str = GATE_UP, rows: int | None = None) -> GemmProblem:
    """A product of Qwen3-30B's experts."""
    n, k = (2 * 768, 2048) if product == GATE_UP else (2048, 768)
    return from_linear(rows or 8 * tokens, n, k, "bf16", groups=128, routing="uniform")


def named(options: str, size: int = 768) -> str:
    """The file's name with these options."""
    return f"E=128,N={size},device_name=NVIDIA_H200,{options}.json"


def read(text: str, name: str = NAME, fmt: str = "fused-moe", **options: Any) -> Imported:
    told = ReadOptions(name, **{"hidden_size": 2048, "top_k": 8, **options})
    return read_stream(io.BytesIO(text.encode()), "upload", fmt, told)


def claims(imported: Imported) -> list[tuple[GemmProblem, Solution | None]]:
    return [(item.problem, item.claim.solution) for item in imported.claims]


def test_an_entry_is_a_claim_about_both_products() -> None:
    imported = read(BODY)
    assert claims(imported) == [
        (experts(tokens, product), SOLUTION) for tokens in (1, 64) for product in (GATE_UP, DOWN)
    ]
    assert imported.rejected == []
    assert imported.header == {"E": "128", "N": "768", "device_name": "NVIDIA_H200"}
    assert imported.problems[2].keys == ("experts.gate_up_proj E=128,N=768,top_k=8,tokens=64",)
    assert KeyedCall.of(imported.problems[2].keys[0]) == KeyedCall(128, 768, 8, 64)
    assert imported.claims[0].claim.product == "NVIDIA_H200"


def test_a_name_that_says_so_is_read_whatever_the_format_is_called() -> None:
    """A body alone looks like a block-fp8 file."""
    assert claims(read(json.dumps({"1": CONFIG}), fmt="block-fp8")) == claims(read(json.dumps({"1": CONFIG})))
    told = ReadOptions(NAME, hidden_size=2048, top_k=8)
    detected = read_stream(io.BytesIO(json.dumps({"1": CONFIG}).encode()), "upload", None, told)
    assert [item.problem for item in detected.problems] == [experts(1), experts(1, DOWN)]


def test_devices_that_share_the_experts_have_the_rows_of_their_own() -> None:
    imported = read(json.dumps({"1": CONFIG, "2": CONFIG, "100": CONFIG}), expert_parallel=4, top_k=6)
    rows = [item.problem.n for item in imported.problems]
    assert rows == [2, 2, 3, 3, 150, 150], "tokens * top_k / devices, rounded up"
    assert [KeyedCall.of(item.keys[0]) for item in imported.problems[::2]] == [
        KeyedCall(128, 768, 6, tokens) for tokens in (1, 2, 100)
    ]


def test_fp16_where_it_is_asked_for() -> None:
    assert {item.problem.dtype_a for item in read(BODY, dtype="fp16").problems} == {"fp16"}


def test_a_config_json_in_the_stream_says_what_names_do_not() -> None:
    text = f"==> a/config.json <==\n{json.dumps(QWEN)}\n==> a/{NAME} <==\n{BODY}\n"
    assert claims(read(text, "", hidden_size=None, top_k=None)) == claims(read(BODY))
    # What an option says stands.
    assert {item.problem.n for item in read(text, "", hidden_size=None, top_k=2).problems} == {2, 128}
    nested = json.dumps({"text_config": {"hidden_size": 2048, "experts_per_token": 8}})
    text = f"==> config.json <==\n{nested}\n==> {NAME} <==\n{BODY}\n"
    assert claims(read(text, "", hidden_size=None, top_k=None)) == claims(read(BODY))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "the document is cut short"),
        ("[]", "config.json: a model's config.json is an object"),
        ('{"hidden_size": "x"}', "config.json: hidden_size must be a whole number"),
        ('{"hidden_size": 64}', "config.json: num_experts_per_tok is missing"),
    ],
)
def test_a_config_json_that_does_not_say_it(config: str, words: str) -> None:
    text = f"==> config.json <==\n{config}\n==> {NAME} <==\n{BODY}\n"
    first, second = read(text, "", hidden_size=None, top_k=None).rejected
    assert words in first.reason
    assert "give hidden_size (--hidden-size) and top_k (--top-k)" in second.reason


def test_a_config_json_in_the_files_folder(tmp_path: Path) -> None:
    file, beside = tmp_path / NAME, tmp_path / "config.json"
    file.write_text(BODY)
    assert with_folder(file, ReadOptions()) == ReadOptions()
    beside.write_text(json.dumps(QWEN))
    assert with_folder(file, ReadOptions()) == ReadOptions(hidden_size=2048, top_k=8)
    assert with_folder(file, ReadOptions(top_k=2)) == ReadOptions(hidden_size=2048, top_k=2)
    assert with_folder(beside, ReadOptions()) == ReadOptions()
    beside.write_text('{"hidden_size": 64}')
    assert with_folder(file, ReadOptions()) == ReadOptions(), "a model without experts"
    beside.write_text('{"hidden_size": ')
    with pytest.raises(ReadError, match=r"config\.json beside the file cannot be read"):
        with_folder(file, ReadOptions())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("", {}, "no name says the E, N and device"),
        ("E=8,N=,device_name=X.json", {}, "does not say the E, N and device"),
        ("E=8,N=16.json", {}, "does not say the E, N and device"),
        (NAME, {"hidden_size": None}, "give hidden_size (--hidden-size), or lay the model's config.json"),
        (NAME, {"top_k": None}, "give top_k (--top-k), or lay"),
        (NAME, {"top_k": 129}, "a token has 129 experts (top_k), and the layer has 128 in all"),
        (NAME, {"dtype": "fp32"}, "grouped products are of bf16, fp16, fp8_e4m3 or fp8_e4m3_fnuz, not fp32"),
        (NAME.replace("E=128", "E=0"), {}, "a layer of 0 experts on a device: 1 to 1023 are known"),
        (NAME.replace("E=128", "E=2048"), {}, "a layer of 2048 experts on a device"),
        (NAME.replace("N=768", "N=0"), {}, "the intermediate size of a layer of experts is from 1"),
        (named("dtype=fp8_w8a8,block_shape=[64,64]"), {}, "block_shape=[64,64]: gemmtune has grouped"),
        (
            named("dtype=fp8_w8a8,block_shape=[128,128],per_channel_quant=True"),
            {},
            "per_channel_quant=True: gemmtune has grouped products",
        ),
        (named("dtype=fp8_w8a8,per_channel_quant=False"), {}, "per_channel_quant=False: gemmtune has"),
        (named("per_channel_quant=True"), {}, "experts of per_channel_quant=True: gemmtune has"),
        (named("dtype=int4_w4a16"), {}, "experts of dtype=int4_w4a16: gemmtune has"),
        (named("dtype=int8_w8a8"), {}, "experts of dtype=int8_w8a8: gemmtune has"),
        (named("block_shape=[128, 128]"), {}, "experts of block_shape=[128, 128]: gemmtune has"),
        (named("dtype=fp8_w8a8,block_shape=[128,128]", 96), {}, "96 on a device cuts a block of 128"),
        (
            "E=8,N=256,device_name=AMD_Radeon_Graphics,dtype=fp8_w8a8.json",
            {},
            "AMD_Radeon_Graphics may be one that computes in the FNUZ formats",
        ),
        (named("backend=cutlass"), {}, "backend=cutlass in its name: only configurations of Triton's kernel"),
        (NAME.replace(".json", ",mood=good.json"), {}, "mood=good in its name is unknown"),
    ],
)
def test_names_and_options_that_make_no_layer(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ReadError) as caught:
        read(BODY, name, **options)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


BLOCKS: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128", "dtype_d": "bf16"}
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer", "dtype_d": "bf16"}
DEEP = {**CONFIG, "BLOCK_SIZE_K": 256}


@pytest.mark.parametrize(
    ("name", "kind", "scales"),
    [
        ("NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128]", "fp8_e4m3", BLOCKS),
        ("NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]", "fp8_e4m3", BLOCKS),
        ("AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128]", "fp8_e4m3_fnuz", BLOCKS),
        ("NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8", "fp8_e4m3", ROWS),
        ("NVIDIA_GeForce_RTX_5090,dtype=fp8_w8a8,per_channel_quant=True", "fp8_e4m3", ROWS),
        ("AMD_Instinct_MI325X,dtype=fp8_w8a8", "fp8_e4m3_fnuz", ROWS),
        ("AMD_Instinct_MI350_OAM,dtype=fp8_w8a8", "fp8_e4m3", ROWS),
    ],
)
def test_names_of_8_bit_floats(name: str, kind: str, scales: dict[str, Any]) -> None:
    imported = read(
        json.dumps({"8": {**CONFIG, "SPLIT_K": 1}, "64": DEEP}), f"E=128,N=768,device_name={name}.json"
    )
    assert imported.rejected == []
    assert imported.header["dtype"] == "fp8_w8a8"
    # vLLM runs a step of a whole block where a file says more.
    deepest = 128 if scales is BLOCKS else 256
    assert claims(imported) == [
        (
            from_linear(8 * tokens, n, k, kind, groups=128, routing="uniform", **scales),
            Solution(FAMILY, 1, {**CONFIG, "BLOCK_SIZE_K": step}),
        )
        for tokens, step in ((8, 128), (64, deepest))
        for n, k in ((2 * 768, 2048), (2048, 768))
    ]
    environment = MI300X if kind.endswith("fnuz") else H200
    for item in imported.claims:
        assert item.claim.solution is not None
        solution = replace(item.claim.solution, build="3.6.0")
        assert TritonFusedMoe().illegal(item.problem, solution, environment) is None
    assert {item.claim.arch for item in imported.claims} == {
        "gfx942" if environment is MI300X else "gfx950" if "MI350" in name else ""
    }


@pytest.mark.parametrize(
    "name",
    [
        "E=128,N=704,device_name=NVIDIA_GB10,dtype=fp8_w8a8,per_channel_quant=True_down.json",
        "E=128,N=768,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128]_down.json",
        "E=128,N=768,device_name=NVIDIA_H200_down.json",
    ],
)
def test_sglangs_file_for_the_second_product_alone(name: str) -> None:
    both = read(json.dumps({"8": CONFIG}), name.replace("_down", ""))
    imported = read(json.dumps({"8": {**CONFIG, "USE_TMA": False}, "9": {**CONFIG, "USE_TMA": True}}), name)
    assert claims(imported) == claims(both)[1:]
    assert imported.problems[0].keys == both.problems[1].keys
    (bad,) = imported.rejected
    assert "USE_TMA is True" in bad.reason


def test_a_backend_in_the_name_changes_nothing() -> None:
    assert claims(read(BODY, NAME.replace(".json", ",backend=triton.json"))) == claims(read(BODY))
    assert ExpertFile.of("/x/" + NAME) == ExpertFile(128, 768, "NVIDIA_H200", (), False)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("x", CONFIG, "key 'x' is no number of tokens"),
        ("0", CONFIG, "key '0' is no number of tokens"),
        ("99999999999", CONFIG, "is no number of tokens"),
        ("1", [], "an entry must be an object"),
        ("1", {**CONFIG, "SPLIT_K": 2}, "SPLIT_K is 2; only 1"),
        ("1", {**CONFIG, "SPLIT_K": True}, "SPLIT_K is True"),
        ("1", {"BLOCK_SIZE_M": 16}, "BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, num_warps, num_stages is"),
        ("1", {**CONFIG, "BLOCK_SIZE_M": 48}, "BLOCK_SIZE_M is 48; Triton takes powers of two"),
        ("1", {**CONFIG, "num_warps": True}, "num_warps must be a whole number"),
        ("1", {**CONFIG, "USE_TMA": True}, "USE_TMA is True; descriptors are no part of the kernel"),
        ("1", {**CONFIG, "USE_TMA": 0}, "USE_TMA is 0; descriptors"),
        ("1", {**CONFIG, "mood": 1}, "'mood' is no parameter of the fused mixture of experts"),
        ("2147483647", CONFIG, "2147483647 tokens make no product of experts"),
    ],
)  # fmt: skip
def test_entries_that_are_left_out(key: str, value: object, words: str) -> None:
    imported = read(json.dumps({key: value, "7": CONFIG}))
    (bad,) = imported.rejected
    assert words in bad.reason
    assert len(imported.claims) == 2


def test_damaged_files() -> None:
    twice = f'{{"1": {json.dumps(CONFIG)}, "1": {json.dumps(CONFIG)}}}'
    (bad,) = read(twice).rejected
    assert bad.reason == "1 tokens stand twice; the framework takes the last, so give it once"
    for text in (BODY[:-3], "{", BODY + "x", '{"1"', '{"1": '):
        assert read(text).rejected, text
    assert read("{}").claims == []


def test_a_layer_and_its_rows() -> None:
    layer = ExpertLayer(8, 14336, 4096, 2)
    assert [layer.rows(tokens) for tokens in (1, 3, 4096)] == [2, 6, 8192]
    assert ExpertLayer(1, 64, 64, 8, 8).rows(1) == 1
    assert ExpertLayer(1, 64, 64, 1, 8).rows(1) == 1, "a device without rows is nothing to tune"
    with pytest.raises(ReadError, match=r"9 experts \(top_k\), and the layer has 8 in all"):
        ExpertLayer(8, 64, 64, 9)


def test_detection() -> None:
    for head in (
        READER.example,
        f"==> x/{NAME} <==\n{BODY}",
        f"==> {NAME.replace('.json', '_down.json')} <==",
    ):
        assert READER.detect(head.encode())
    others = (fmt.example for fmt in READERS.values() if fmt.name != READER.name)
    for head in ("", "{}", BODY, "==> config.json <==\n{}", "==> notes.txt <==", *others):
        assert not READER.detect(head.encode())


def test_options_that_are_not_used_change_no_identity() -> None:
    old = "ReadOptions(file_name='x', tensor_parallel=1, tokens=(1,), dtype=None, layers='fused')"
    told = ReadOptions("x", tokens=(1,))
    assert told.identity(("top_k",)) == old, "imports of earlier versions are known by it"
    more = ReadOptions("x", tokens=(1,), top_k=2)
    assert more.identity(("dtype",)) == old
    assert more.identity(("top_k",)) == old + "{'top_k': 2}"
    for wrong in ({"top_k": 0}, {"hidden_size": -1}, {"expert_parallel": 0}):
        with pytest.raises(ReadError, match="must be from 1 to"):
            ReadOptions(**wrong)  # type: ignore[arg-type]


@given(st.binary(max_size=200), st.sampled_from([NAME, ""]))
def test_no_bytes_raise_anything_but_a_read_error(raw: bytes, name: str) -> None:
    for text in (raw, READER.example.encode() + b"\n" + raw, BODY.encode()[:40] + raw):
        with suppress(ReadError):
            found = list(READER.read_told(text.split(b"\n"), ReadOptions(name, hidden_size=64, top_k=2)))
            bad = [part for part in found if isinstance(part, Rejected)]
            assert all(part.reason and (part.reason + part.text).isprintable() for part in bad)
