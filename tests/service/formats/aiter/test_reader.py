"""AITER's tables, read: every era and family of columns, and what they mean."""

from __future__ import annotations

import io
from typing import Any

import pytest

from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Solution
from service.formats import Claim, Imported, ReadOptions
from service.formats.aiter.problem import family_of, named_family
from service.formats.aiter.reader import Aiter, AiterUntuned
from service.formats.core import base, reading
from service.formats.tunableop.signature import BadLineError
from tests.backends.weight_samples import mx_product

TUNED, UNTUNED = Aiter(), AiterUntuned()
FORMATS: dict[str, base.Format] = {TUNED.name: TUNED, UNTUNED.name: UNTUNED}

BF16 = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,"
    "tflops,bw"
)
ASM = "_ZN5aiter39bf16gemm_fp32bf16_tn_64x64_splitk_cleanE"
ROW = (
    "gfx950,256,64,256,5120,False,torch.bfloat16,torch.float32,False,False,asm,5,13,7.9191,"
    f"{ASM},0.0,21.19,417.92"
)
ROWWISE = "a8w8_rowwise_256x16x64x512_16x16_1x1_32x8x1_32x8x1_1x16x1x16_4x4x1_1x1_intrawave_v3"
BLOCKS = "a8w8_blockscale_1x128x128_256x16x64x256_16x16_16x16_1x1_16x16x1_intrawave_v1"
FP8 = {"dtype_d": "bf16", "scale_a": "block_1x128", "scale_b": "block_128x128"}


def read(text: str | bytes, format_name: str | None = None, **options: Any) -> Imported:
    raw = text.encode() if isinstance(text, str) else text
    return reading.read_stream(io.BytesIO(raw), "upload", FORMATS, format_name, ReadOptions(**options))


def one(header: str, row: str, **options: Any) -> tuple[GemmProblem, Claim]:
    """The claim of the only row."""
    imported = read(f"{header}\n{row}\n", "aiter", **options)
    assert imported.rejected == []
    (claim,) = imported.claims
    return claim.problem, claim.claim


def reason(header: str, row: str, format_name: str = "aiter", **options: Any) -> str:
    """Why the only row is rejected."""
    imported = read(f"{header}\n{row}\n", format_name, **options)
    assert imported.problems == []
    (bad,) = (found for found in imported.rejected if found.line == 2)
    return bad.reason


def changed(**cells: str) -> str:
    """ROW with other cells."""
    values = dict(zip(BF16.split(","), ROW.split(","), strict=True))
    assert cells.keys() <= values.keys()
    return ",".join((values | cells).values())


# ---- the bf16 family -------------------------------------------------------------------------------


def test_a_row_of_the_bf16_table() -> None:
    imported = read(f"{BF16}\n{ROW}\n")
    assert imported.format == "aiter"
    (claim,) = imported.claims
    assert claim.problem == from_linear(64, 256, 5120, "bf16", dtype_d="fp32")
    # x[M,K] w[N,K]^T: column-major, the weight is A
    assert (claim.problem.m, claim.problem.n, claim.problem.trans_a, claim.problem.trans_b) == (
        256,
        64,
        "T",
        "N",
    )
    assert claim.line == 2
    assert claim.key == "gfx950,256,64,256,5120,False,torch.bfloat16,torch.float32,False,False"
    assert claim.claim.solution == Solution("aiter-asm", 1, {"solidx": 5, "splitK": 13, "kernelName": ASM})
    assert claim.claim.seconds == pytest.approx(7.9191e-6, rel=1e-15)
    assert (claim.claim.arch, claim.claim.units) == ("gfx950", 256)


@pytest.mark.parametrize(
    ("cells", "call"),
    [
        ({"dtype": "torch.float16", "outdtype": "torch.float16"}, {"dtype_a": "fp16"}),
        ({"dtype": "torch.float16"}, {"dtype_a": "fp16", "dtype_d": "fp32"}),
        ({"outdtype": "torch.bfloat16"}, {"dtype_a": "bf16"}),
        ({"outdtype": "torch.bfloat16", "bias": "True"}, {"dtype_a": "bf16", "bias": "bf16"}),
        ({"bias": "TRUE"}, {"dtype_a": "bf16", "dtype_d": "fp32", "bias": "fp32"}),
        ({"dtype": "torch.float32"}, {"dtype_a": "fp32"}),
        ({"dtype": "dtypes.bf16", "outdtype": "dtypes.bf16"}, {"dtype_a": "bf16"}),
        ({"dtype": "dtypes.fp8", "outdtype": "torch.bfloat16"}, {"dtype_a": "fp8_e4m3", "dtype_d": "bf16"}),
        (
            {"dtype": "dtypes.fp8", "outdtype": "torch.bfloat16", "gfx": "gfx942"},
            {"dtype_a": "fp8_e4m3_fnuz", "dtype_d": "bf16"},
        ),
        (
            {"K": " 5120\t", "scaleAB": "FALSE", "bpreshuffle": "false"},
            {"dtype_a": "bf16", "dtype_d": "fp32"},
        ),
    ],
)
def test_types_and_bias(cells: dict[str, str], call: dict[str, Any]) -> None:
    assert one(BF16, changed(**cells))[0] == from_linear(64, 256, 5120, **call)


def test_a_bias_is_a_value_a_column_of_the_output() -> None:
    problem, _ = one(BF16, changed(bias="True", outdtype="torch.bfloat16"))
    assert problem == from_blas(256, 64, 5120, "bf16", trans_a="T", bias="bf16", bias_axis="m")


@pytest.mark.parametrize(
    ("cells", "solution"),
    [
        (
            {"libtype": "hipblaslt", "solidx": "204196", "kernelName": "Cijk_Alik_Bljk_BBS_BH"},
            Solution("hipblaslt", 1, {"solution_index": 204196}),
        ),
        ({"libtype": "rocblas", "solidx": "-31"}, Solution("rocblas", 1, {"solution_index": -31})),
        ({"libtype": "torch", "solidx": "0", "kernelName": "native"}, None),
        (
            {"libtype": "triton", "solidx": "0", "splitK": "0", "kernelName": "auto"},
            Solution("aiter-triton", 1, {"solidx": 0, "splitK": 0, "kernelName": "auto"}),
        ),
        (
            {"libtype": "skinny", "solidx": "2", "splitK": "Null", "kernelName": "Null"},
            Solution("aiter-skinny", 1, {"solidx": 2, "splitK": None, "kernelName": ""}),
        ),
    ],
)
def test_whose_kernel_it_is(cells: dict[str, str], solution: Solution | None) -> None:
    found = one(BF16, changed(**cells))[1].solution
    assert found == solution


@pytest.mark.parametrize(
    ("us", "seconds"),
    [
        ("7.9191", 7.9191e-6),
        ("12", 12e-6),
        ("1e3", 1e-3),
        ("0", None),
        ("0.0", None),
        ("", None),
        ("nan", None),
    ],
)
def test_times_are_microseconds(us: str, seconds: float | None) -> None:
    found = one(BF16, changed(us=us))[1].seconds
    assert found == (None if seconds is None else pytest.approx(seconds, rel=1e-15))


ERAS = [
    (
        "cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,"
        "tflops,bw",
        f"256,64,256,5120,False,torch.bfloat16,torch.float32,False,False,asm,5,13,7.9191,{ASM},,1,2",
        ("", 256, 7.9191e-6, 13),
    ),
    (
        "M,N,K,bias,dtype,outdtype,scaleAB,cu_num,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw",
        f"64,256,5120,False,torch.bfloat16,torch.float32,False,80,asm,5,10,8.3,{ASM},0.0,20.21,402.69",
        ("", 80, 8.3e-6, 10),
    ),
    (  # soltimes: milliseconds first, microseconds later
        "M,N,K,bias,dtype,outdtype,scaleAB,cu_num,libtype,solidx,splitK,soltimes,kernelName,err_ratio,tflops,bw",
        f"64,256,5120,False,torch.bfloat16,torch.float32,False,80,asm,5,10,8.3,{ASM},0.0,20.21,402.69",
        ("", 80, None, 10),
    ),
    (
        "M,N,K,bias,dtype,outdtype,scaleAB,cu_num,libtype,solidx,soltimes,kernelName",
        f"64,256,5120,False,torch.bfloat16,torch.float32,False,256,asm,5,231.31,{ASM}",
        ("", 256, None, None),
    ),
    (
        "M,N,K,bias,dtype,outdtype,scaleAB,libtype,solidx,soltimes,kernelName",
        f"64,256,5120,False,torch.bfloat16,torch.float32,False,asm,5,231.31,{ASM}",
        ("", 0, None, None),
    ),
]


@pytest.mark.parametrize(("header", "row", "says"), ERAS)
def test_older_columns_of_the_bf16_table(
    header: str, row: str, says: tuple[str, int, float | None, int | None]
) -> None:
    assert TUNED.detect(f"{header}\n{row}\n".encode())
    problem, claim = one(header, row)
    assert problem == from_linear(64, 256, 5120, "bf16", dtype_d="fp32")
    solution = claim.solution
    assert solution is not None
    assert solution.parameters == {"solidx": 5, "splitK": says[3], "kernelName": ASM}
    assert (claim.arch, claim.units, claim.seconds) == (says[0], says[1], says[2] and pytest.approx(says[2]))


def test_columns_are_told_by_their_names() -> None:
    order = sorted(range(18), key=lambda index: (index * 7) % 18)
    header = "," + ",".join(BF16.split(",")[index] for index in order)
    row = "3," + ",".join(ROW.split(",")[index] for index in order)
    assert one(header, row) == one(BF16, ROW)


# ---- the other families ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "row", "problem"),
    [
        (
            "gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
            f"gfx942,80,1,1280,8192,torch.int8,34,0,20.5611,{ROWWISE},1.02,510.5,0.0",
            from_linear(1, 1280, 8192, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
        ),
        (
            "gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
            f"gfx950,256,1,1280,8192,torch.float8_e4m3fn,34,0,20.5611,{ROWWISE},1.02,510.5,0.0",
            from_linear(1, 1280, 8192, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer"),
        ),
        (
            "M,N,K,kernelId,splitK,us,kernelName",
            f"1,1280,8192,34,0,20.5611,{ROWWISE}",
            from_linear(1, 1280, 8192, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
        ),
        (
            "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
            f"gfx942,304,1,3072,1536,ck,8,0,6.6154,{BLOCKS},1.43,714.43,0.0",
            from_linear(1, 3072, 1536, "fp8_e4m3_fnuz", **FP8),
        ),
        (
            "cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
            f"256,1,3072,1536,ck,8,0,6.6154,{BLOCKS},1.43,714.43,0.0",
            from_linear(1, 3072, 1536, "fp8_e4m3", **FP8),
        ),
        (
            "gfx,cu_num,B,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
            "gfx942,304,16,1,1280,8192,78,0,111.93,bf16_batched_64x16x16x64_16x16_1x1,3.0,3000.45,0.0",
            from_bmm(16, 1, 1280, 8192, "bf16", trans_b="T"),
        ),
    ],
)
def test_tables_of_other_families(header: str, row: str, problem: GemmProblem) -> None:
    found, claim = one(header, row)
    assert found == problem
    solution = claim.solution
    assert solution is not None
    assert solution.family == "aiter-ck"
    assert set(solution.parameters) == {"kernelId", "splitK", "kernelName"}


def test_scales_belong_to_their_operands() -> None:
    problem, _ = one(
        "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName",
        f"gfx942,304,1,3072,1536,ck,8,0,6.6154,{BLOCKS}",
    )
    # column-major, the weight is A
    assert (problem.m, problem.scale_a, problem.scale_b) == (3072, "block_128x128", "block_1x128")


CKTILE = "a8w8_blockscale_cktile_16x128x256_1x4x1_16x16x128_intrawave_0x1x0_3"
PLAIN = "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"


def test_the_files_name_says_what_a_kernels_does_not() -> None:
    row = f"gfx950,256,1,16,4096,cktile,12,0,9.9757,{CKTILE},0.01,6.98,0.0"
    name = "a8w8_blockscale_tuned_gemm_qwen3.5.csv"
    assert one(PLAIN, row, file_name=name)[0] == from_linear(1, 16, 4096, "fp8_e4m3", **FP8)
    assert "does not say of which operator it is" in reason(PLAIN, row)
    assert "does not say of which operator it is" in reason(PLAIN, row, file_name="tuned_fmoe.csv")
    assert "kernel is one of a8w8_blockscale, but the file's name says a8w8" in reason(
        PLAIN, row.replace(CKTILE, BLOCKS), file_name="a8w8_tuned_gemm.csv"
    )
    assert "bf16 is no family of tables with M,N,K" in reason(PLAIN, row, file_name="bf16_tuned_gemm.csv")


@pytest.mark.parametrize(
    ("row", "name", "problem"),
    [
        ("gfx950,256,1,16,4096,flydsl,6,7,6.1,flydsl_bpreshuflle_16x64x512_F8_F8_B16,1,2,0",
         "a8w8_bpreshuffle_tuned_gemm.csv",
         from_linear(1, 16, 4096, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        (f"gfx942,304,1,16,4096,cktile,6,7,6.1,{CKTILE},1,2,0",
         "a8w8_blockscale_bpreshuffle_tuned_gemm_qwen3.5.csv",
         from_linear(1, 16, 4096, "fp8_e4m3_fnuz", **FP8)),
    ],
)  # fmt: skip
def test_shuffled_weights_are_the_same_product_of_another_kernel(
    row: str, name: str, problem: GemmProblem
) -> None:
    found, claim = one(PLAIN, row, file_name=name)
    assert found == problem
    assert claim.solution is not None
    assert claim.solution.parameters["bpreshuffle"] is True


@pytest.mark.parametrize("libtype", ["asm", "hipblaslt"])
def test_a_bf16_row_of_shuffled_weights(libtype: str) -> None:
    """hipBLASLt's index is that of another layout, so it is no solution of ours for the plain one."""
    plain, _ = one(BF16, ROW)
    found, claim = one(BF16, changed(bpreshuffle="True", libtype=libtype))
    assert found == plain
    assert claim.solution is not None
    assert claim.solution.family == f"aiter-{libtype}"
    assert claim.solution.parameters["bpreshuffle"] is True


def test_an_8_bit_float_that_nothing_says_is_told() -> None:
    header, row = PLAIN.removeprefix("gfx,"), f"104,1,16,4096,ck,8,0,9.9,{BLOCKS},0.01,6.98,0.0"
    assert "give the results' device, or the dtype, fp8_e4m3_fnuz on gfx942" in reason(header, row)
    assert "or the dtype" in reason(header, row, dtype="bf16")
    assert "or the dtype" in reason(header, row, arch="gfx90a")
    for arch, kind in (("gfx942", "fp8_e4m3_fnuz"), ("gfx950", "fp8_e4m3")):
        assert one(header, row, arch=arch)[0] == from_linear(1, 16, 4096, kind, **FP8)
    assert "dtype 'q8' is unknown" in reason(header, row, dtype="q8")
    for told in ("fp8_e4m3", "float8_e4m3fn"):
        assert one(header, row, dtype=told)[0] == from_linear(1, 16, 4096, "fp8_e4m3", **FP8)
    # what a row says itself wins
    fnuz = f"gfx942,304,1,16,4096,ck,8,0,9.9,{BLOCKS},0.01,6.98,0.0"
    assert one(PLAIN, fnuz, dtype="fp8_e4m3")[0].dtype_a == "fp8_e4m3_fnuz"


F4GEMM = "_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E"
#: As the tables of a4w4 are.
A4W4 = "gfx,cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
A4W4_TABLE = "dsv3_a4w4_blockscale_tuned_gemm.csv"


@pytest.mark.parametrize(
    ("kernel", "file_name", "family", "shuffled"),
    [
        (F4GEMM, "", "aiter-asm", True), (F4GEMM, A4W4_TABLE, "aiter-asm", True),
        (F4GEMM.replace("41", "44").replace("_Bpre", "_noBpre"), "", "aiter-asm", False),
        ("a4w4_blockscale_256x256x128_intrawave_v3", "", "aiter-ck", True),
        ("a4w4_blockscale_256x256x128_intrawave_v3", A4W4_TABLE, "aiter-ck", True),
        ("", A4W4_TABLE, "aiter-ck", True),
    ],
)  # fmt: skip
def test_a4w4_multiplies_mxfp4_by_mxfp4(kernel: str, file_name: str, family: str, shuffled: bool) -> None:
    """In bf16, without a bias; assembler's kernels have mangled names, and whether their weights are
    shuffled in memory is another kernel of the same product."""
    row = f"gfx950,256,1,7168,4608,21,0,9.8118,{kernel},6.73,1684.88,0.0"
    found, claim = one(A4W4, row, file_name=file_name)
    assert found == mx_product(1, 7168, 4608)
    assert (found.dtype_d, found.bias, found.scale_dtype) == ("bf16", None, "fp8_e8m0")
    assert claim is not None
    assert claim.solution is not None
    assert claim.solution.family == family
    wanted = {"kernelId": 21, "splitK": 0, "kernelName": kernel} | ({"bpreshuffle": True} if shuffled else {})
    assert dict(claim.solution.parameters) == wanted
    assert (claim.arch, claim.units) == ("gfx950", 256)


def test_a4w4_of_other_tables_contradicts_them() -> None:
    row = f"gfx950,256,1,7168,4608,21,0,9.8118,{F4GEMM},6.73,1684.88,0.0"
    assert "is one of a4w4, but the file's name says a8w8" in reason(
        A4W4, row, file_name="a8w8_tuned_gemm.csv"
    )
    rowwise = f"gfx950,256,1,7168,4608,21,0,9.8118,{ROWWISE},6.73,1684.88,0.0"
    assert "is one of a8w8, but the file's name says a4w4" in reason(A4W4, rowwise, file_name=A4W4_TABLE)


def test_untuned_shapes_of_a4w4() -> None:
    text = "M,N,K\n1, 16384, 53248\n"
    imported = read(text, "aiter-untuned", file_name="a4w4_blockscale_untuned_gemm.csv")
    assert [item.problem for item in imported.problems] == [mx_product(1, 16384, 53248)]
    assert not imported.claims
    assert not imported.rejected


@pytest.mark.parametrize(
    ("header", "row", "why"),
    [
        (BF16, changed(bpreshuffle="True", libtype="torch"), "torch multiplies no weights that are shuffled"),
        (BF16, changed(scaleAB="True"), "scaleAB: which operands are scaled"),
        (PLAIN, "gfx950,256,1,16,4096,asm,6,7,6.1,_ZN5aiter42fp8gemm_bf16_BpreShuffle_32x128E,1,2,0",
         "does not say of which operator it is"),
        (PLAIN, f"gfx950,256,1,16,4100,asm,6,7,6.1,{F4GEMM},1,2,0",
         "k 4100 is no multiple of the scale's group"),
        ("cu_num,B,M,N,K,kernelId,splitK,us,kernelName", f"256,16,1,16,4096,6,7,6.1,{F4GEMM}",
         "a4w4 is no family of tables with B,M,N,K"),
        ("M,N,K,q_dtype_w,kernelId,us,kernelName", f"1,16,4096,torch.int8,1,6.1,{F4GEMM}",
         "tables of a4w4 have no such column"),
        ("cu_num,B,M,N,K,kernelId,splitK,us,kernelName", "304,16,1,16,4096,6,7,6.1,a8w8_batched_rowwise_x",
         "it scales every batch apart"),
        ("cu_num,B,M,N,K,kernelId,splitK,us,kernelName", f"304,16,1,16,4096,6,7,6.1,{ROWWISE}",
         "a8w8 is no family of tables with B,M,N,K"),
    ],
)  # fmt: skip
def test_what_no_problem_can_say(header: str, row: str, why: str) -> None:
    assert why in reason(header, row)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("/tmp/aiter_configs/a8w8_blockscale_tuned_gemm.csv", "a8w8_blockscale"),
        ("a8w8_blockscale_bpreshuffle_tuned_gemm.csv", "a8w8_blockscale_bpreshuffle"),
        ("dsv3_a8w8_bpreshuffle_tuned_gemm.csv", "a8w8_bpreshuffle"),
        ("asm_a8w8_gemm.csv", "asm_a8w8"),
        ("A8W8_TUNED_GEMM.CSV", "a8w8"),
        (r"C:\a4w4\bf16_untuned_gemm.csv", "bf16"),
        ("a8w8_blockscale/glm5_untuned_gemm_bf16.csv", "bf16"),
        ("kimik3_a4w4_blockscale_tuned_gemm.csv", "a4w4"),
        ("a8w8_tuned_batched_gemm.csv", "a8w8_batched"),
        ("bf16_untuned_batched_gemm.csv", "bf16_batched"),
        ("dsv4_batched_gemm_a8w8_blockscale_mxscale_tuned.csv", "mxscale"),
        ("a8w8_blockscale_tuned_fmoe_ds_v3.csv", None),
        ("llama70B_untuned_gemm.csv", None),
        ("", None),
    ],
)
def test_families_by_name(name: str, family: str | None) -> None:
    assert named_family(name) == family


def test_a_family_is_told_by_kernel_or_file() -> None:
    assert family_of("", "a8w8") == family_of(ROWWISE, None) == "a8w8"
    assert family_of(CKTILE, "a8w8_bpreshuffle") == "a8w8_bpreshuffle"
    shuffled = BLOCKS.replace("intrawave", "bpreshuffle")
    assert family_of(shuffled, "a8w8_blockscale") == "a8w8_blockscale_bpreshuffle"
    with pytest.raises(BadLineError):
        family_of("triton", None)


# ---- untuned tables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "row", "name", "problem"),
    [
        ("M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle",
         "64,256,5120,False,torch.bfloat16,torch.float32,False,False", "",
         from_linear(64, 256, 5120, "bf16", dtype_d="fp32")),
        ("M,N,K,bias,dtype,outdtype,scaleAB", "64,256,5120,True,torch.float16,torch.float16,False", "",
         from_linear(64, 256, 5120, "fp16", bias="fp16")),
        ("gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle",
         "gfx942,304,64,256,5120,FALSE,dtypes.fp8,torch.bfloat16,FALSE,FALSE", "",
         from_linear(64, 256, 5120, "fp8_e4m3_fnuz", dtype_d="bf16")),
        ("M,N,K,q_dtype_w", "1, 1280, 8192,torch.int8", "a8w8_untuned_gemm.csv",
         from_linear(1, 1280, 8192, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        ("M,N,K", "1, 1280, 8192", "a8w8_untuned_gemm.csv",
         from_linear(1, 1280, 8192, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        ("M,N,K", "16, 1536, 7168", "a8w8_blockscale_untuned_gemm.csv",
         from_linear(16, 1536, 7168, "fp8_e4m3", **FP8)),
        ("B,M,N,K", "16, 1, 1280, 8192", "bf16_untuned_batched_gemm.csv",
         from_bmm(16, 1, 1280, 8192, "bf16", trans_b="T")),
    ],
)  # fmt: skip
def test_untuned_tables(header: str, row: str, name: str, problem: GemmProblem) -> None:
    text = f"{header}\n{row}\n{row}\n"
    assert UNTUNED.detect(text.encode())
    assert not TUNED.detect(text.encode())
    imported = read(text, file_name=name, dtype="fp8_e4m3")
    assert imported.rejected == []
    assert [(item.problem, item.count, item.keys) for item in imported.problems] == [(problem, 2, ())]
    assert imported.claims == []


def test_untuned_rows_that_say_too_little() -> None:
    assert "does not say of which operator" in reason("M,N,K", "1,2,3", "aiter-untuned")
    assert "does not say of which operator" in reason(
        "M,N,K,q_dtype_w", "1,2,3,torch.int8", "aiter-untuned", file_name="llama70B_untuned_gemm.csv"
    )
    assert "or the dtype" in reason(
        "M,N,K", "1,2,3", "aiter-untuned", file_name="a8w8_blockscale_untuned_gemm.csv"
    )
    assert "no multiple of" in reason("M,N,K", "1,2,3", "aiter-untuned", file_name="a4w4_untuned.csv")
    assert "a8w8 multiplies int8 or 8-bit floats" in reason(
        "M,N,K,q_dtype_w", "1,2,3,torch.bfloat16", "aiter-untuned", file_name="a8w8_untuned_gemm.csv"
    )
    assert "a8w8_blockscale multiplies 8-bit floats" in reason(
        "M,N,K,q_dtype_w", "1,2,3,torch.int8", "aiter-untuned", file_name="a8w8_blockscale_untuned_gemm.csv"
    )
