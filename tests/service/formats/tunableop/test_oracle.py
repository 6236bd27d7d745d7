"""TunableOp untuned files against `oracle`, which reads the grammar a second time as one strict
regular expression: real files, every expressible problem, and mutated lines.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas
from service.formats import FORMATS, Entry, Rejected, read_file

DATA = Path(__file__).parents[3] / "data" / "tunableop"
READER = FORMATS["tunableop-untuned"]

TYPES = {
    "float": ("fp32", None), "tf32": ("fp32", "tf32"), "bfx9": ("fp32", "bf16x9"),
    "double": ("fp64", None), "Half": ("fp16", None), "BFloat16": ("bf16", None),
    "c10::complex<float>": ("complex64", None), "c10::complex<double>": ("complex128", None),
    "Float8_e4m3fn": ("fp8_e4m3", None), "Float8_e5m2": ("fp8_e5m2", None),
    "Float8_e4m3fnuz": ("fp8_e4m3_fnuz", None), "Float8_e5m2fnuz": ("fp8_e5m2_fnuz", None),
}  # fmt: skip
FP8 = [name for name in TYPES if name.startswith("Float8")]
OUTPUTS = ["float", "Half", "BFloat16", *FP8]
SCALARS = {"Float": "fp32", "float": "fp32", "Half": "fp16", "BFloat16": "bf16"}
SCALAR_TYPES = SCALARS | {name: TYPES[name][0] for name in FP8}
SCALE_TYPES = {
    "Float": "fp32", "float": "fp32", "Float8_e8m0fnu": "fp8_e8m0", "Float8_e4m3fn": "fp8_e4m3",
}  # fmt: skip


# ---- the grammar, read a second time -------------------------------------------------------------


def _any(names: object) -> str:
    assert isinstance(names, dict | list)
    return "|".join(re.escape(name) for name in names)


_N = "([1-9][0-9]{0,18})"
_LD = f"_ld_(?P<lda>{_N})_(?P<ldb>{_N})_(?P<ldc>{_N})"
_SIZES = f"(?P<ta>[ntc])(?P<tb>[ntc])_(?P<m>{_N})_(?P<n>{_N})_(?P<k>{_N})"
_BIAS = f"_bias_(?P<bias{{}}>None|{_any(SCALARS)})"
STRICT = re.compile(
    f"(?:(?P<op>Gemm|GemmAndBias|GemmStridedBatched)TunableOp_(?P<T>{_any(TYPES)})"
    f"|ScaledGemmTunableOp_(?P<A>{_any(FP8)})_(?P<B>{_any(FP8)})_(?P<C>{_any(OUTPUTS)}))"
    f"_(?P<LA>[NTC])(?P<LB>[NTC]),{_SIZES}(?:_B_(?P<batch>{_N}))?(?:{_LD})?"
    f"(?:_rw_(?P<rw>[01])(?:{_BIAS.format(1)})?"
    f"|(?P<long>_a_(?P<a>{_any(FP8)})_b_(?P<b>{_any(FP8)})_c_(?P<c>{_any(SCALAR_TYPES)})"
    f"_as_(?P<as>{_any(SCALE_TYPES)})_bs_(?P<bs>{_any(SCALE_TYPES)})_ast_(?P<ast>[01])_bst_(?P<bst>[01])"
    f"_dscale_(?P<dscale>[01])_fast_(?P<fast>[01]){_BIAS.format(2)}))?(?P<nine>_compute_bf16x9_r)?"
    "(?:,BLAS_PARAMS:.*)?"
)


def oracle(line: str) -> GemmProblem | None:
    """The problem of a line, or None where it has none."""
    line = line.strip(" \t")
    found = STRICT.fullmatch(line)
    if found is None or not line.isprintable():
        return None
    g = found.groupdict()
    if any(g["L" + s] not in {"n": "N", "t": "T", "c": "CT"}[g["t" + s.lower()]] for s in "AB"):
        return None
    scaled = g["op"] is None
    if bool(g["batch"]) != (g["op"] == "GemmStridedBatched") or (g["nine"] and g["T"] != "bfx9"):
        return None
    if (not scaled and (g["rw"] or g["long"])) or (g["long"] and not g["lda"]):
        return None
    m, n, k = int(g["m"]), int(g["n"]), int(g["k"])
    ta, tb = g["ta"].upper(), g["tb"].upper()
    shape = {
        "lda": (m, k) if ta == "N" else (k, m),
        "ldb": (k, n) if tb == "N" else (n, k),
        "ldc": (m, n),
    }
    ld = {name: int(g[name]) if g["lda"] else rows for name, (rows, _) in shape.items()}
    if any(value >= 2**63 for value in (m, n, k, int(g["batch"] or 1), *ld.values())):
        return None
    for name, (rows, columns) in shape.items():
        if columns == 1 and ld[name] < rows:
            ld[name] = rows
    batch = int(g["batch"] or 1)
    call: dict[str, object] = {
        "trans_a": ta, "trans_b": tb, **ld, "ldd": ld["ldc"], "batch": batch,
        "stride_a": ld["lda"] * shape["lda"][1], "stride_b": ld["ldb"] * shape["ldb"][1],
        "stride_c": ld["ldc"] * n, "stride_d": ld["ldc"] * n,
    }  # fmt: skip
    if scaled:
        a, b, c = (TYPES[g[side]][0] for side in "ABC")
        call |= {"dtype_b": b, "dtype_d": c, "scale_dtype": "fp32"}
        call |= dict.fromkeys(("scale_a", "scale_b"), "outer" if g["rw"] == "1" else "tensor")
        bias = g["bias1"] or g["bias2"]
        call["bias"] = None if bias in (None, "None") else SCALARS[bias]
        if g["long"]:
            if (SCALAR_TYPES[g["a"]], SCALAR_TYPES[g["b"]], SCALAR_TYPES[g["c"]]) != (a, b, c):
                return None
            if SCALE_TYPES[g["as"]] != SCALE_TYPES[g["bs"]]:
                return None
            call |= {f"scale_{s}": ["tensor", "outer"][int(g[f"{s}st"])] for s in "ab"}
            call |= {"scale_dtype": SCALE_TYPES[g["as"]], "fast_accumulation": g["fast"] == "1"}
            call |= {"scale_d": ["none", "tensor"][int(g["dscale"])]}
    else:
        a, compute = TYPES[g["T"]]
        call |= {"dtype_b": a, "dtype_d": a, "compute": compute}
        call["bias"] = a if g["op"] == "GemmAndBias" else None
    try:
        return from_blas(m, n, k, a, **call)  # type: ignore[arg-type]
    except InvalidProblem:
        return None


# ---- real files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "lines"), [("gpt2", 35), ("llama3-8b", 27)])
def test_real_files_to_the_last_line(name: str, lines: int) -> None:
    path = DATA / f"{name}-untuned.csv"
    text = path.read_text().splitlines()
    imported = read_file(path)
    assert (imported.format, imported.lines, imported.rejected) == ("tunableop-untuned", lines, [])
    assert [p.keys for p in imported.problems] == [(line,) for line in text]
    assert {p.count for p in imported.problems} == {1}
    assert [p.problem for p in imported.problems] == [oracle(line) for line in text]


def test_the_example_is_the_real_file() -> None:
    example_file = DATA.parents[2] / "docs" / "examples" / "gpt2-untuned.csv"
    assert example_file.read_bytes() == (DATA / "gpt2-untuned.csv").read_bytes()


# ---- properties ----------------------------------------------------------------------------------

sizes = st.integers(1, 2**31 - 1)
pads = st.tuples(*[st.integers(0, 100)] * 3)


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, GemmProblem]:
    """A line as PyTorch prints it, and the problem that it stands for."""
    op = draw(st.sampled_from(["Gemm", "GemmAndBias", "GemmStridedBatched", "ScaledGemm"]))
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    ta, tb = draw(st.sampled_from("NT")), draw(st.sampled_from("NT"))
    batch = draw(st.integers(1, 1000)) if op == "GemmStridedBatched" else 1
    if batch > 1:
        m, n, k = m % 10**5 + 1, n % 10**5 + 1, k % 10**5 + 1
    call: dict[str, object] = {"trans_a": ta, "trans_b": tb, "batch": batch}
    text = f"{ta}{tb}_{m}_{n}_{k}".lower() + (f"_B_{batch}" if op == "GemmStridedBatched" else "")
    has_ld = draw(st.booleans())
    if has_ld:
        pad = draw(pads)
        ld = {"lda": m if ta == "N" else k, "ldb": k if tb == "N" else n, "ldc": m}
        ld = {name: least + more for (name, least), more in zip(ld.items(), pad, strict=True)}
        call |= ld
        text += "_ld_" + "_".join(str(value) for value in ld.values())
    if op != "ScaledGemm":
        names = [t for t in TYPES if op != "GemmAndBias" or "complex" not in t]
        name = draw(st.sampled_from(names))
        kind, compute = TYPES[name]
        call |= {"dtype_d": kind, "compute": compute, "bias": kind if op == "GemmAndBias" else None}
        signature = name
    else:
        a, b, c = (
            draw(st.sampled_from(FP8)),
            draw(st.sampled_from(FP8)),
            draw(st.sampled_from(OUTPUTS)),
        )
        kind, signature = TYPES[a][0], f"{a}_{b}_{c}"
        call |= {
            "dtype_b": TYPES[b][0],
            "dtype_d": TYPES[c][0],
            "scale_a": "tensor",
            "scale_b": "tensor",
        }
        bias = draw(st.sampled_from(["None", "Float", "Half", "BFloat16"]))
        form = draw(st.sampled_from(["old", "rw", "long"])) if has_ld else "old"
        if form != "old":
            call["bias"] = SCALARS.get(bias)
        if form == "rw":
            rowwise = draw(st.booleans())
            call |= dict.fromkeys(("scale_a", "scale_b"), "outer" if rowwise else "tensor")
            text += f"_rw_{rowwise:d}_bias_{bias}"
        elif form == "long":
            scale, modes = draw(st.sampled_from(["Float", "Float8_e8m0fnu"])), draw(pads)
            ast, bst, fast = (more % 2 for more in modes)
            call |= {"scale_a": ["tensor", "outer"][ast], "scale_b": ["tensor", "outer"][bst]}
            call |= {"scale_dtype": SCALE_TYPES[scale], "fast_accumulation": bool(fast)}
            c_name = "Float" if c == "float" else c
            text += f"_a_{a}_b_{b}_c_{c_name}_as_{scale}_bs_{scale}_ast_{ast}_bst_{bst}"
            text += f"_dscale_0_fast_{fast}_bias_{bias}"
    return f"{op}TunableOp_{signature}_{ta}{tb},{text}", from_blas(m, n, k, kind, **call)  # type: ignore[arg-type]


@given(lines(), st.booleans())
def test_every_expressible_problem_is_read_back(made: tuple[str, GemmProblem], params: bool) -> None:
    line, expected = made
    line += ",BLAS_PARAMS: - { function: matmul, M: 1 }" if params else ""
    (outcome,) = READER.read([line.encode()])
    assert outcome == Entry(1, expected, line)
    assert oracle(line) == expected


_ALPHABET = "0123456789_,:<>-. \tNTCntcBldrwabsfGemFloat8xé\x00\x1b\u202e"
_SCALED = "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_32_16_ld_16_16_64"
_SEEDS = [
    _SCALED + "_a_Float8_e4m3fn_b_Float8_e4m3fn_c_BFloat16_as_Float_bs_Float_ast_1_bst_1"
    "_dscale_0_fast_0_bias_None",
    _SCALED + "_rw_1_bias_Half",
    "GemmTunableOp_c10::complex<float>_TN,cn_4_5_6_ld_6_6_4",
    "GemmStridedBatchedTunableOp_float_TN,tn_128_96_64_B_96_ld_64_64_128",
    "GemmAndBiasTunableOp_Half_NN,nn_768_1_3072_ld_768_3072_768",
    "GemmTunableOp_BFloat16_TN,tn_8192_2_3584",
]


@st.composite
def mutants(draw: st.DrawFn) -> str:
    text = draw(st.one_of(st.sampled_from(_SEEDS), lines().map(lambda made: made[0])))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 3)))
        new = draw(st.one_of(st.text(_ALPHABET, max_size=3), st.sampled_from(["_ld_", "_B_2", "0" * 30])))
        text = text[:start] + new + text[end:]
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 4)) == 0 else text


@settings(max_examples=600, deadline=None)
@given(mutants())
@example("GemmTunableOp_Half_TN,tn_1_1_1,BLAS_PARAMS:")
@example("\tGemmTunableOp_Half_TN,tn_1_1_1 ")
@example("GemmStridedBatchedTunableOp_Half_TN,tn_9_9_9_B_2_ld_562949953421312_9_9")
def test_a_mutated_line_is_exactly_what_it_says_or_rejected(line: str) -> None:
    outcomes = list(READER.read([line.encode()]))
    if not line.strip(" \t"):
        assert outcomes == []
        return
    (outcome,) = outcomes
    expected = oracle(line)
    if isinstance(outcome, Entry):
        assert outcome.problem == expected
        assert outcome.key == line.strip(" \t")
    else:
        assert isinstance(outcome, Rejected)
        assert expected is None
        assert outcome.reason
        assert outcome.text.isprintable()


@given(st.lists(st.binary(max_size=300)))
def test_no_bytes_raise(raw: list[bytes]) -> None:
    for outcome in READER.read(raw):
        assert isinstance(outcome, Entry | Rejected)
