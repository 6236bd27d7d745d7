"""vLLM's and SGLang's fused-MoE configurations, written: which configuration, for which tokens."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from backends.environment import DeviceClass, Environment
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.kernels.triton.moe_untuned import BLOCK_SCALES, HALVES, KINDS, ROW_SCALES
from backends.kernels.triton.moe_untuned import SGLANG as OF_SGLANG
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from service.formats import ExportOptions, ExportRefused, ExportReport, ExportRow, ReadOptions, read_stream
from service.formats.core.export import MeasuredCandidate
from service.formats.core.tar_text import unpack
from service.formats.vllm.experts import DOWN, GATE_UP, ExpertLayer
from service.formats.vllm.fused_moe import FAMILY
from service.formats.vllm.fused_moe_writer import SglangMoe, VllmMoe
from tests.service.formats.made import CPU, LINEAR, row
from tests.service.formats.made import H200 as BARE
from tests.service.formats.made import MI300X as BARE_AMD

VLLM, SGLANG = VllmMoe(), SglangMoe()
H200 = replace(BARE, libraries={**BARE.libraries, "triton": "3.6.0"})
MI300X = replace(BARE_AMD, libraries={**BARE_AMD.libraries, "triton": "3.6.0"})
MI355X = replace(MI300X, arch="gfx950", product="AMD Instinct MI355X")
FEW, MANY = TritonFusedMoe().defaults(H200)
#: Mixtral 8x7B, whole.
LAYER = ExpertLayer(8, 14336, 4096, 2)
NAME = "E=8,N=14336,device_name=NVIDIA_H200.json"
TOKENS = (1, 16, 1024)


def config(**changed: int) -> Solution:
    return replace_parameters(FEW, **changed)


def replace_parameters(solution: Solution, **changed: int) -> Solution:
    return Solution(FAMILY, 1, {**solution.parameters, **changed}, solution.build)


WIDE, DEEP = config(BLOCK_SIZE_N=128), config(num_stages=4)
#: Of a candidate its seconds in both products.
Times = Mapping[Solution, tuple[float, float]]
#: The defaults, one that is best for both together, and one that is best for the first alone.
USUAL: Times = {FEW: (3e-5, 2e-5), MANY: (4e-5, 3e-5), WIDE: (2e-5, 1e-5), DEEP: (1e-5, 4e-5)}


def product(name: str, tokens: int, found: Mapping[Solution, float], **changed: Any) -> ExportRow:
    """A row of one product of a layer; the key knows its tokens."""
    layer = changed.pop("layer", LAYER)
    candidates = tuple(MeasuredCandidate(one, seconds, True) for one, seconds in found.items())
    torch = Solution("torch-grouped", 1, {"call": "grouped_mm"}, "2.15.0")
    given = {
        "environment": H200, "solution": torch, "baseline": torch, "judgement": "TIE",
        "keys": (layer.key(name, tokens),), "candidates": candidates,
    }  # fmt: skip
    return row(layer.problem(name, tokens), **{**given, **changed})


def layer(tokens: Sequence[int] = TOKENS, times: Times = USUAL, **changed: Any) -> list[ExportRow]:
    """Both products of a layer at these tokens."""
    return [
        product(name, count, {one: of[place] for one, of in times.items()}, **changed)
        for count in tokens
        for place, name in enumerate((GATE_UP, DOWN))
    ]


def written(
    rows: Sequence[ExportRow],
    writer: VllmMoe | SglangMoe = VLLM,
    device: DeviceClass | None = None,
    **options: Any,
) -> tuple[dict[str, dict[str, Any]], ExportReport]:
    """The archive's files, and the report."""
    report = ExportReport()
    asked = ExportOptions(device or rows[0].environment.device_class, **options)
    archive = "".join(writer.write(iter(rows), asked, report))
    return {path: json.loads(text) for path, text in unpack(archive).items()}, report


def only_reason(rows: Sequence[ExportRow], **options: Any) -> str:
    files, report = written(rows, device=H200.device_class, environments=(H200,), **options)
    assert files == {}
    (reason,) = report.omitted
    assert report.written == 0
    return reason


# ---- which configuration -------------------------------------------------------------------------


def test_the_configuration_with_the_least_time_of_both_products_is_written() -> None:
    files, report = written(layer())
    assert files == {NAME: {str(tokens): dict(WIDE.parameters) for tokens in TOKENS}}
    assert report.to_dict() == {"written": 3, "omitted": {}}
    gain = report.gain()
    assert gain is not None
    # Up to as many tokens as experts vLLM runs the first default untuned (5e-5), else the second (7e-5).
    assert gain["geometric_mean"] == pytest.approx((5 / 3 * 7 / 3 * 7 / 3) ** (1 / 3))
    assert report.one_seed == 0


def test_what_wins_against_another_baseline_alone_is_not_written() -> None:
    """A session's own verdict is against torch, which vLLM does not run for experts."""
    rows = [replace(one, judgement="WIN", solution=DEEP) for one in layer()]
    assert written(rows)[0] == written(layer())[0]


def test_a_configuration_that_is_no_faster_is_never_written() -> None:
    slower = {FEW: (2e-5, 1e-5), MANY: (2e-5, 1e-5), WIDE: (3e-5, 0.5e-5), DEEP: (2e-5, 0.99e-5)}
    rows = layer(times=slower)
    assert only_reason(rows).startswith("TIE: left out, so its tokens take the nearest entry")
    files, report = written(rows, ties="default")
    assert files[NAME] == {
        "1": dict(FEW.parameters),
        "16": dict(MANY.parameters),
        "1024": dict(MANY.parameters),
    }
    assert report.to_dict() == {"written": 3, "omitted": {}}
    gain = report.gain()
    assert gain is not None
    assert gain["geometric_mean"] == 1.0


def test_releases_differ_in_what_they_run_untuned_and_the_fastest_counts() -> None:
    for tokens in TOKENS:
        newer = TritonFusedMoe().untuned(tokens, 8, H200)[1]
        fast, slow = {**USUAL, newer: (2e-5, 1.02e-5)}, {**USUAL, newer: (9e-5, 9e-5)}
        assert only_reason(layer((tokens,), fast)).startswith("TIE: left out")
        reasons = written(layer((tokens,), slow))[1].omitted
        assert not any(reason.startswith("TIE") for reason in reasons)


def test_only_configurations_that_both_products_verified_count() -> None:
    lone = replace_parameters(WIDE, num_warps=8)
    rows = layer()
    fastest = MeasuredCandidate(lone, 1e-9, True)
    rows = [
        replace(one, candidates=(*one.candidates, fastest)) if i % 2 else one for i, one in enumerate(rows)
    ]
    assert written(rows)[0] == written(layer())[0]
    apart = [
        product(name, tokens, {one: 1e-5})
        for tokens in TOKENS
        for name, one in ((GATE_UP, WIDE), (DOWN, DEEP))
    ]
    assert "measured no configuration in common: tune both again" in only_reason(apart)
    assert f"no candidate of {FAMILY} was verified and timed for it" in only_reason(layer(times={}))
    without = {WIDE: (1e-5, 1e-5)}
    assert "what vLLM runs untuned for its tokens was not measured" in only_reason(layer(times=without))


def raced(rows: Sequence[ExportRow], times: Mapping[Solution, Sequence[float]]) -> list[ExportRow]:
    """The rows with rounds of a final: each configuration's screened seconds times these."""
    return [
        replace(
            one,
            candidates=tuple(
                replace(c, raced={n: c.screened * of for n, of in enumerate(times[c.solution])})
                if c.screened is not None and c.solution in times
                else c
                for c in one.candidates
            ),
        )
        for one in rows
    ]


#: Noise of rounds: the median is 1.
NOISE = [1 + 0.1 * ((7 * number) % 11 - 5) / 5 for number in range(33)]
#: WIDE is 10% faster than both defaults where they were screened.
CLOSE: Times = {FEW: (3e-5, 2e-5), MANY: (3e-5, 2e-5), WIDE: (2.7e-5, 1.8e-5)}


def test_a_race_of_both_products_decides_where_there_is_one() -> None:
    """By its screenings WIDE is 10% faster. In the rounds of the finals it is 3% slower, or faster by no more
    than noise, or as much faster as the screenings say."""
    screened = layer(times=CLOSE)
    _, report = written(screened)
    (basis,) = report.rests_on
    assert basis.startswith("separate screenings of both products")
    assert [len(slugs) for slugs in report.rests_on.values()] == [3]
    steady = dict.fromkeys((FEW, MANY), [1.0] * 33)
    slower = raced(screened, {**steady, WIDE: [1.03 / 0.9 * of for of in NOISE]})
    assert only_reason(slower).startswith("TIE: left out")
    unsure = raced(screened, {**steady, WIDE: [0.97 / 0.9 * of for of in NOISE]})
    assert only_reason(unsure).startswith("TIE: left out")
    files, report = written(raced(screened, {**steady, WIDE: [1 + (of - 1) / 10 for of in NOISE]}))
    assert files[NAME]["16"] == dict(WIDE.parameters)
    (basis,) = report.rests_on
    assert basis.startswith("finals of both products timed")
    gain = report.gain()
    assert gain is not None
    assert gain["geometric_mean"] == pytest.approx(1 / 0.9, rel=0.01)


def test_times_of_a_final_and_of_a_screening_are_never_compared() -> None:
    """The finals of the defaults alone, on a device that had slowed down by then, do not make WIDE a winner;
    nor is one that no phase timed beside them."""
    even: Times = {FEW: (3e-5, 2e-5), MANY: (3e-5, 2e-5), WIDE: (3e-5, 2e-5)}
    assert only_reason(raced(layer(times=even), dict.fromkeys((FEW, MANY), [1.2] * 33))).startswith("TIE")
    apart = [
        replace(one, candidates=tuple(
            replace(c, screened=None, raced=dict.fromkeys(range(33), 1e-9)) if c.solution == WIDE else c
            for c in one.candidates
        )) for one in layer(times=even)
    ]  # fmt: skip
    assert only_reason(apart).startswith("TIE")


def test_separate_timings_need_a_larger_gain_than_a_race() -> None:
    near: Times = {FEW: (3e-5, 2e-5), MANY: (3e-5, 2e-5), WIDE: (2.9e-5, 1.93e-5)}
    assert only_reason(layer(times=near)).startswith("TIE: left out")
    rounds = raced(layer(times=near), dict.fromkeys((FEW, MANY, WIDE), [1.0] * 33))
    assert written(rounds)[0][NAME]["1"] == dict(WIDE.parameters)
    few = raced(layer(times=near), dict.fromkeys((FEW, MANY, WIDE), [1.0] * 5))
    assert only_reason(few).startswith("TIE: left out"), "five rounds decide nothing"


def test_one_that_was_verified_on_one_seed_is_counted() -> None:
    rows = [
        replace(
            one, candidates=tuple(replace(c, proven=c.solution != WIDE or i % 2 > 0) for c in one.candidates)
        )
        for i, one in enumerate(layer())
    ]
    _, report = written(rows)
    assert (report.written, report.one_seed) == (3, 3)


def test_parameters_that_a_device_does_not_take() -> None:
    amd = replace_parameters(WIDE, waves_per_eu=2)
    files, _ = written(layer(times={**USUAL, amd: (1e-6, 1e-6)}))
    assert files[NAME]["1"] == dict(WIDE.parameters)
    few, many = TritonFusedMoe().defaults(MI300X)
    rows = layer(times={few: (3e-5, 2e-5), many: (3e-5, 2e-5), amd: (1e-5, 1e-5)}, environment=MI300X)
    files, report = written(rows)
    assert files == {
        NAME.replace("NVIDIA_H200", "AMD_Instinct_MI300X"): {str(t): dict(amd.parameters) for t in TOKENS}
    }
    assert report.omitted == {}


# ---- which tokens --------------------------------------------------------------------------------


def test_the_experts_of_a_token_may_be_an_option() -> None:
    rows = [replace(one, keys=("a name", "experts.nothing")) for one in layer()]
    assert only_reason(rows) == "its tokens are not known: give top_k, the experts of a token"
    assert written(rows, top_k=2)[0] == written(layer())[0]
    assert list(written(rows, top_k=1)[0][NAME]) == ["2", "32", "2048"]
    files, report = written(layer((1, 8, 2048, 4096)), top_k=2)
    assert list(files[NAME]) == ["1", "8", "2048", "4096"]
    assert report.omitted == {}
    files, report = written([replace(one, keys=()) for one in layer((1, 16, 2048))], top_k=4)
    assert list(files[NAME]) == ["8", "1024"]
    assert report.omitted == {"its rows are no multiple of 4, the experts of a token": 2}


def test_keys_of_models_that_share_the_rows() -> None:
    other = replace(LAYER, top_k=4)
    rows = [
        replace(one, keys=(*one.keys, other.key(GATE_UP, one.problem.n // 4))) for one in layer((2, 16, 2048))
    ]
    assert "different experts of a token share its rows: give top_k" in only_reason(rows)
    assert list(written(rows, top_k=4)[0][NAME]) == ["1", "8", "1024"]
    assert list(written(rows, top_k=2)[0][NAME]) == ["2", "16", "2048"]


def test_devices_that_share_experts_round_rows_and_keys_know_the_tokens() -> None:
    shared = ExpertLayer(16, 768, 2048, 8, 8)
    rows = layer((8, 1024), layer=shared)
    keys = tuple(shared.key(GATE_UP, tokens) for tokens in (7, 8))
    rows[0] = replace(rows[0], keys=keys)
    files, _ = written(rows)
    assert list(files["E=16,N=768,device_name=NVIDIA_H200.json"]) == ["7", "8", "1024"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((1, 8, 64, 512), "no entry from 1024 tokens, and prefill would take one for fewer: tune 1,8,16,"),
        ((32, 1024, 4096), "no entry up to 16 tokens, and decoding would take one for more: tune 1,8,16,"),
    ],
)
def test_a_file_for_some_calls_alone_would_make_the_others_slow(tokens: tuple[int, ...], words: str) -> None:
    assert words in only_reason(layer(tokens))


def test_a_tie_is_no_entry_that_a_call_could_take() -> None:
    slow = {FEW: (3e-5, 2e-5), MANY: (1e-5, 1e-5), WIDE: (2e-5, 1e-5)}
    rows = [*layer((1,)), *layer((1024,), slow)]
    files, report = written(rows)
    assert files == {}
    assert [reason.partition(":")[0] for reason in report.omitted] == [
        "TIE",
        next(reversed(report.omitted)).partition(":")[0],
    ]
    assert any("no entry from 1024 tokens" in reason for reason in report.omitted)
    assert list(written(rows, ties="default")[0][NAME]) == ["1", "1024"]


# ---- which rows ----------------------------------------------------------------------------------


def experts(rows: int, n: int, k: int, **changed: Any) -> GemmProblem:
    return from_linear(rows, n, k, **{"dtype_a": "bf16", "groups": 8, "routing": "uniform", **changed})


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(LINEAR, environment=H200)], "its problem is no grouped product"),
        (layer((1,))[:1], "the other product of its layer was not tuned for as many rows"),
        (layer((1,))[1:], "the other product of its layer was not tuned for as many rows"),
        (
            [row(experts(2, 28672, 4096, routing=[2, 0, 0, 0, 0, 0, 0, 0]), environment=H200)],
            "its problem is none of the kernel's: packed rows of experts with a named routing",
        ),
        ([row(experts(2, 28672, 4096, ldd=28680), environment=H200)], "its problem is none of the kernel's"),
        ([row(experts(2, 28672, 4096, dtype_d="fp32"), environment=H200)], "its problem is none of"),
        ([row(experts(2, 28672, 4096, alignment=8), environment=H200)], "its problem is none of"),
        (
            [
                row(
                    experts(
                        2, 28672, 4096, dtype_a="fp8_e4m3", scale_a="outer", scale_b="outer", dtype_d="fp32"
                    ),
                    environment=H200,
                )
            ],
            "its problem is none of the kernel's",
        ),
        (
            [
                row(
                    experts(
                        2,
                        28672,
                        4096,
                        dtype_a="fp8_e4m3_fnuz",
                        scale_a="outer",
                        scale_b="outer",
                        dtype_d="bf16",
                    ),
                    environment=H200,
                )
            ],
            "its 8-bit float is not the fp8_e4m3 that vLLM uses there",
        ),
        (
            [
                row(
                    experts(2, 28672, 4096, dtype_b="uint4", scale_b="block_1x32", scale_dtype="bf16"),
                    environment=H200,
                )
            ],
            "its problem is none of the kernel's",
        ),
        (layer((1,), environment=replace(H200, units=66)), "measured on cuda:sm_90:NVIDIA-H200:66: the file"),
    ],
)
def test_rows_that_are_left_out(rows: list[ExportRow], words: str) -> None:
    assert words in only_reason(rows)


def test_layers_are_files_of_their_own_and_rows_come_in_any_order() -> None:
    qwen = ExpertLayer(128, 768, 2048, 8)
    rows = sorted([*layer(), *layer(layer=qwen)], key=lambda one: one.problem.id)
    files, report = written(rows)
    assert list(files) == [NAME, "E=128,N=768,device_name=NVIDIA_H200.json"]
    assert [list(of) for of in files.values()] == [["1", "16", "1024"]] * 2
    assert report.written == 6


def test_fp16_and_bf16_have_one_file() -> None:
    half = layer(layer=replace(LAYER, dtype="fp16"), times={**USUAL, DEEP: (1e-6, 1e-6)}, count=9)
    files, report = written([*layer(), *half])
    assert files == {NAME: {str(tokens): dict(DEEP.parameters) for tokens in TOKENS}}
    assert list(report.omitted.values()) == [3]
    assert "tells entries apart by E, N, tokens and the device only" in next(iter(report.omitted))


def test_what_imported_files_say_is_written_where_it_is_asked_for() -> None:
    def claimed(*solutions: Solution) -> list[ExportRow]:
        return [
            replace(one, provenance="imported", judgement="", solution=solutions[i % 2], candidates=())
            for i, one in enumerate(layer())
        ]

    files, report = written(claimed(WIDE, WIDE))
    assert files[NAME]["1"] == dict(WIDE.parameters)
    assert report.gain() is None
    assert "say of its layer's two products differs" in only_reason(claimed(WIDE, DEEP))
    torch = Solution("torch-grouped", 1, {"call": "loop"})
    assert "solutions of family torch-grouped have no name in vLLM's files" in only_reason(
        claimed(torch, torch)
    )


def test_what_is_written_is_read_back() -> None:
    report = ExportReport()
    archive = "".join(VLLM.write(iter(layer()), ExportOptions(H200.device_class), report))
    ((path, text),) = unpack(archive).items()
    told = ReadOptions(path, hidden_size=4096, top_k=2)
    imported = read_stream(io.BytesIO(text.encode()), "export", "fused-moe", told)
    assert imported.rejected == []
    assert [(claim.problem, claim.claim.solution) for claim in imported.claims] == [
        (LAYER.problem(name, tokens), replace(WIDE, build=None))
        for tokens in TOKENS
        for name in (GATE_UP, DOWN)
    ]
    assert [item.keys for item in imported.problems] == [one.keys for one in layer()]


# ---- 8-bit floats --------------------------------------------------------------------------------

#: DeepSeek-V3's experts on one of 8 devices, by blocks; and what RedHat's Qwen3 has, by rows.
SCALED = {
    BLOCK_SCALES: ExpertLayer(256, 256, 7168, 8, dtype="fp8_e4m3"),
    ROW_SCALES: ExpertLayer(128, 768, 2048, 8, dtype="fp8_e4m3", row_scales=True),
}
STORED = {
    (BLOCK_SCALES, VLLM): ",dtype=fp8_w8a8,block_shape=[128,128]",
    (BLOCK_SCALES, SGLANG): ",dtype=fp8_w8a8,block_shape=[128, 128]",
    (ROW_SCALES, VLLM): ",dtype=fp8_w8a8",
    (ROW_SCALES, SGLANG): ",dtype=fp8_w8a8,per_channel_quant=True",
}


def scaled_times(kind: str, environment: Environment = H200) -> dict[Solution, tuple[float, float]]:
    """What all frameworks run untuned for the tokens, and one that is faster."""
    family = TritonFusedMoe()
    untuned = [
        one
        for tokens in TOKENS
        for framework in (VLLM.stack, SGLANG.stack)
        for one in family.untuned(tokens, SCALED[kind].experts, environment, kind, framework)
    ]
    fast = replace_parameters(untuned[0], BLOCK_SIZE_M=32, num_stages=4)
    assert fast not in untuned
    return {**dict.fromkeys(untuned, (4e-5, 3e-5)), fast: (2e-5, 1e-5)}


@pytest.mark.parametrize(("kind", "writer"), STORED, ids=lambda one: getattr(one, "name", one))
def test_8_bit_floats_have_names_of_their_own_and_are_read_back(
    kind: str, writer: VllmMoe | SglangMoe
) -> None:
    """For gfx950, whose matrix cores add 8-bit floats up in single precision."""
    times, made = scaled_times(kind, MI355X), SCALED[kind]
    fast = list(times)[-1]
    rows = layer(times=times, layer=made, environment=MI355X)
    files, report = written(rows, writer)
    ((path, entries),) = files.items()
    assert report.omitted == {}
    name = f"E={made.experts},N={made.size},device_name=AMD_Instinct_MI355X{STORED[kind, writer]}.json"
    assert path == (name if writer is VLLM else f"configs/triton_3_6_0/{name}")
    assert entries == {str(tokens): dict(fast.parameters) for tokens in TOKENS}
    told = ReadOptions(path, hidden_size=made.hidden, top_k=made.top_k)
    imported = read_stream(io.BytesIO(json.dumps(entries).encode()), "export", "fused-moe", told)
    assert imported.rejected == []
    assert [(one.problem, one.claim.solution) for one in imported.claims] == [
        (one.problem, replace(fast, build=None)) for one in rows
    ]


@pytest.mark.parametrize(("kind", "writer"), STORED, ids=lambda one: getattr(one, "name", one))
def test_8_bit_floats_on_hopper(kind: str, writer: VllmMoe | SglangMoe) -> None:
    """What SGLang runs untuned with scales of rows spills registers in our kernel alone."""
    rows = layer(times=scaled_times(kind), layer=SCALED[kind])
    files, report = written(rows, writer)
    if (kind, writer) == (ROW_SCALES, SGLANG):
        assert files == {}
        assert any(
            "what SGLang runs untuned for its tokens spills registers" in one for one in report.omitted
        )
        claimed = [replace(one, provenance="imported", judgement="", candidates=()) for one in rows]
        best = list(scaled_times(kind))[-1]
        files, report = written([replace(one, solution=best) for one in claimed], writer)
    assert report.omitted == {}
    assert [path.partition("H200")[2] for path in files] == [f"{STORED[kind, writer]}.json"]


def test_amds_floats_are_written_for_amds_devices() -> None:
    made = replace(SCALED[BLOCK_SCALES], dtype="fp8_e4m3_fnuz")
    rows = layer(times=scaled_times(BLOCK_SCALES, MI300X), layer=made, environment=MI300X)
    files, report = written(rows)
    assert report.omitted == {}
    assert list(files) == [
        "E=256,N=256,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
    ]


@pytest.mark.parametrize("kind", SCALED)
def test_each_framework_is_compared_with_what_it_runs_itself(kind: str) -> None:
    """SGLang's own configuration of scales of rows is another than vLLM's."""
    family = TritonFusedMoe()
    slow, fast = (9e-5, 9e-5), (1e-5, 1e-5)
    for writer in (VLLM, SGLANG):
        times = dict.fromkeys(scaled_times(kind, MI355X), slow)
        own = {
            tokens: family.untuned(tokens, SCALED[kind].experts, MI355X, kind, writer.stack)
            for tokens in TOKENS
        }
        times |= {one: fast for of in own.values() for one in of[:1]}
        rows = layer(times=times, layer=SCALED[kind], environment=MI355X)
        files, _ = written(rows, writer, ties="default")
        ((_, entries),) = files.items()
        assert entries == {str(tokens): dict(of[0].parameters) for tokens, of in own.items()}
    without = {one: of for one, of in times.items() if one not in own[1]}
    rows = layer(times=without, layer=SCALED[kind], environment=MI355X)
    reasons = written(rows, SGLANG)[1].omitted
    assert any("what SGLang runs untuned for its tokens was not measured" in reason for reason in reasons)
    assert family.untuned(1, 8, H200, ROW_SCALES, OF_SGLANG) != family.untuned(1, 8, H200, ROW_SCALES)


def test_kinds_of_one_size_are_files_of_their_own() -> None:
    made = ExpertLayer(128, 768, 2048, 8)
    every = {
        HALVES: (made, USUAL),
        **{
            kind: (replace(made, dtype="fp8_e4m3", row_scales=kind == ROW_SCALES), scaled_times(kind))
            for kind in SCALED
        },
    }
    rows = [one for kind in KINDS for one in layer(layer=every[kind][0], times=every[kind][1])]
    files, report = written(sorted(rows, key=lambda one: one.problem.id))
    assert (len(files), report.written) == (3, 9)


def test_a_step_of_two_scales_is_never_written() -> None:
    times = scaled_times(BLOCK_SCALES)
    deep = replace_parameters(list(times)[-1], BLOCK_SIZE_K=256)
    rows = layer(times={**times, deep: (1e-9, 1e-9)}, layer=SCALED[BLOCK_SCALES])
    ((_, entries),) = written(rows)[0].items()
    assert {entry["BLOCK_SIZE_K"] for entry in entries.values()} == {128}
    claimed = [
        replace(one, provenance="imported", judgement="", solution=deep, candidates=()) for one in rows
    ]
    assert "BLOCK_SIZE_K is 256; a step of the kernel has one scale" in only_reason(claimed)


# ---- names and options ---------------------------------------------------------------------------


def test_sglang_looks_up_by_the_release_of_triton() -> None:
    files, _ = written(layer(), SGLANG)
    assert list(files) == [f"configs/triton_3_6_0/{NAME}"]
    files, _ = written(layer(), SGLANG, validators={"TRITON": "3.5.1"})
    assert list(files) == [f"configs/triton_3_5_1/{NAME}"]
    bare = replace(H200, libraries={})
    with pytest.raises(ExportRefused, match=r"give it as a validator \(such as TRITON:3\.6\.0"):
        written(layer(environment=bare), SGLANG)
    with pytest.raises(ExportRefused, match=r"TRITON '\.\./x' is no release"):
        written(layer(), SGLANG, validators={"TRITON": "../x"})


def test_vllm_has_one_name_for_every_h200() -> None:
    nvl = replace(H200, product="NVIDIA H200 NVL")
    assert list(written(layer(environment=nvl))[0]) == [NAME]
    assert NAME.replace(".json", "_NVL.json") in next(iter(written(layer(environment=nvl), SGLANG)[0]))


def refusal(writer: VllmMoe | SglangMoe = VLLM, **options: Any) -> str:
    device = options.pop("device", H200.device_class)
    with pytest.raises(ExportRefused) as caught:
        writer.write(iter([]), ExportOptions(device, **options), ExportReport())
    return str(caught.value)


def test_what_is_refused() -> None:
    assert "vllm-moe takes no target" in refusal(target="vllm-0.30")
    assert "runs on GPUs, and these rows are of cpu:" in refusal(device=CPU.device_class)
    assert "TRITON is no validator of vllm-moe; its validators: DEVICE_NAME" in refusal(
        validators={"TRITON": "3.6.0"}
    )
    assert "no environment of the rows says it" in refusal()
    assert "top_k must be experts of a token, from 1, not 0" in refusal(top_k=0)


def test_options_are_checked_before_a_row_is_asked_for() -> None:
    taken = 0

    def rows() -> Iterator[ExportRow]:
        nonlocal taken
        for one in layer():
            taken += 1
            yield one

    pieces = VLLM.write(rows(), ExportOptions(H200.device_class, environments=(H200,)), ExportReport())
    assert taken == 0
    assert len(list(pieces)) == 2
    assert taken == 6


def test_no_rows_make_an_empty_archive() -> None:
    assert written([], device=H200.device_class, environments=(H200,))[0] == {}


def test_the_examples_are_what_is_written() -> None:
    for writer in (VLLM, SGLANG):
        path, _, text = writer.example.partition("\n")
        environment: Environment = H200
        name = writer.path(128, 768, HALVES, environment.product, "3.6.0")
        assert path == name
        assert list(json.loads(text)) == ["16"]
