"""Problems as AITER's tables and its log describe them: families, types, and the call itself.

A family is an operator with a table of its own. All compute F.linear: activations x[M,K] times the transpose
of w[N,K], row-major and packed. The output is bf16 if no column says otherwise: AITER's tuners measure it,
and its operators default to it.

    bf16             x and w of `dtype`, output `outdtype`; a bias has the output's type, as in AITER's tuner
                     and as hipBLASLt assumes if no type is given
    a8w8             x and w of `q_dtype_w` (int8 before 2026), an fp32 scale per row of x and of w
    a8w8_blockscale  8-bit floats, an fp32 scale per 1 x 128 block of x and per 128 x 128 block of w
    bf16_batched     x[B,M,K] and w[B,N,K] in bf16
    a4w4             both of e2m1, two to a byte with the even k in the low half, an e8m0 scale per 32
                     elements of k of each row (MXFP4); no bias, which the tuner measures and neither tables
                     nor the log say

Weights that are shuffled in memory beforehand (bpreshuffle) are the same products: a8w8_bpreshuffle is that
of a8w8, a8w8_blockscale_bpreshuffle that of a8w8_blockscale, and a row of bf16 says it in a column. The
layout belongs to the kernel, whose parameters have it. a4w4 has no table of its own for them: its operator
and its tuner take weights and scales that are shuffled in memory, but for a kernel whose name says otherwise.
NVFP4, which the same operator multiplies on gfx1250, is looked up in no table.

Not expressible here, and so rejected row by row: batched a8w8 (it has scales per row of each batch) and its
mxscale form, the older table asm_a8w8, and scaleAB (scales per tensor or per row, of x or w or both: the
column does not say which).

Source: ROCm/aiter, aiter/tuned_gemm.py, aiter/ops/gemm_op_a8w8.py, aiter/ops/gemm_op_a4w4.py,
aiter/ops/batched_gemm_op_*.py, csrc/ck_gemm_a8w8*/, csrc/ck_gemm_a4w4_blockscale/,
aiter/utility/fp4_utils.py, gradlib/gradlib/GemmTuner.py, gradlib/csrc/hipbsolgemm.cu,
aiter/utility/dtypes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from backends.dtypes import FP4, dtype
from backends.problem import GemmProblem, from_bmm, from_linear
from backends.quantisation import MX_SCALE
from service.formats.tunableop.signature import BadLineError, quote

BF16, A8W8, BLOCKSCALE, BATCHED = "bf16", "a8w8", "a8w8_blockscale", "bf16_batched"
#: Families of weights that are shuffled in memory -> the family of the same products.
SHUFFLED: Mapping[str, str] = {f"{family}_bpreshuffle": family for family in (A8W8, BLOCKSCALE)}
A4W4, A8W8_BATCHED, MXSCALE, ASM = "a4w4", "a8w8_batched", "mxscale", "asm_a8w8"
_NO_PROBLEM: Mapping[str, str] = {
    ASM: "asm_a8w8: whether a bias is added, and of which type, is not said",
    A8W8_BATCHED: "a8w8 in batches: it scales every batch apart, which no problem here does",
    MXSCALE: "mxscale: its scales and its layout are none that a problem here has",
}
#: Words of a table's name -> family; the first entry whose words all occur decides. None: not a GEMM.
_NAMED: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("moe",), None),
    (("a4w4",), A4W4),
    (("mxscale",), MXSCALE),
    (("asm_a8w8",), ASM),
    (("batched", "a8w8"), A8W8_BATCHED),
    (("batched", "bf16"), BATCHED),
    (("a8w8", "blockscale", "preshuf"), f"{BLOCKSCALE}_bpreshuffle"),
    (("a8w8", "preshuf"), f"{A8W8}_bpreshuffle"),
    (("a8w8", "blockscale"), BLOCKSCALE),
    (("a8w8",), A8W8),
    (("bf16",), BF16),
)
#: Prefixes of a kernel's name -> family. CK Tile's kernels for block scales have the same name for both
#: layouts of the weight, so their name does not decide (None).
_KERNELS: tuple[tuple[str, str | None], ...] = (
    ("a8w8_rowwise_", A8W8),
    ("a8w8_blockscale_cktile_", None),
    ("a8w8_blockscale_", BLOCKSCALE),
    ("a8w8_batched_", A8W8_BATCHED),
    ("bf16_batched_", BATCHED),
    ("a4w4_", A4W4),
)

_FNUZ, _OCP = "fp8_e4m3_fnuz", "fp8_e4m3"
#: Arch -> its 8-bit float, which is AITER's dtypes.fp8.
_FP8: Mapping[str, str] = {
    "gfx942": _FNUZ,
    **dict.fromkeys(
        ("gfx950", "gfx1100", "gfx1101", "gfx1102", "gfx1151", "gfx1200", "gfx1201", "gfx1250"), _OCP
    ),
}
#: Compute units -> the arch that AITER assumes for a table without `gfx`.
_ARCH: Mapping[int, str] = {80: "gfx942", 304: "gfx942", 256: "gfx950"}
#: Types as torch and AITER spell them; dtypes.fp8 depends on the arch.
_TYPES: Mapping[str, str] = {
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.float32": "fp32",
    "torch.float": "fp32",
    "torch.int8": "int8",
    "torch.float8_e4m3fn": _OCP,
    "torch.float8_e4m3fnuz": _FNUZ,
    "torch.float8_e5m2": "fp8_e5m2",
    "torch.float8_e5m2fnuz": "fp8_e5m2_fnuz",
    "dtypes.bf16": "bf16",
    "dtypes.fp16": "fp16",
    "dtypes.fp32": "fp32",
    "dtypes.i8": "int8",
}
_FLAGS: Mapping[str, bool] = {
    text: value for value in (False, True) for text in (str(value), str(value).upper(), str(value).lower())
}


def named_family(name: str) -> str | None:
    """The family of the table at a path, from its file name; None if the name does not say it."""
    text = name.replace("\\", "/").rpartition("/")[2].lower()
    return next((family for words, family in _NAMED if all(word in text for word in words)), None)


def family_of(kernel: str, named: str | None) -> str:
    """The family of a row whose columns several families share, from its kernel's name and its file's. Raises
    BadLineError if neither says it or they contradict each other."""
    lower = kernel.lower()
    said = next((family for start, family in _KERNELS if lower.startswith(start)), None)
    said = A4W4 if "f4gemm" in lower else said
    plain = SHUFFLED.get(named or "", named)
    if said is None and named is None:
        raise BadLineError(
            "the row does not say of which operator it is, and the file's name does not either; name it as "
            "AITER does, such as a8w8_blockscale_tuned_gemm.csv (plain fp32 shapes are read as csv)"
        )
    if said is not None and plain is not None and said != plain:
        raise BadLineError(f"its kernel is one of {said}, but the file's name says {named}")
    family = said or plain or ""
    if family == A4W4:
        return A4W4
    if "preshuf" not in lower and named not in SHUFFLED:
        return family
    check_expressible(family)
    if f"{family}_bpreshuffle" not in SHUFFLED:
        raise BadLineError(f"its kernel takes shuffled weights, which {family} has not")
    return f"{family}_bpreshuffle"


def check_expressible(family: str) -> None:
    """Raises BadLineError for a family whose calls no problem here can express."""
    if family in _NO_PROBLEM:
        raise BadLineError(_NO_PROBLEM[family])


def takes_shuffled(family: str, kernel: str) -> bool:
    """Whether a kernel of the family takes weights that were shuffled in memory. a4w4's do unless their name
    has noBpreShuffle."""
    return family in SHUFFLED or (family == A4W4 and "nobpreshuffle" not in kernel.lower())


def library_of(family: str, kernel: str) -> str:
    """The libtype of a row whose table has no such column: CK's, but for the mangled names of a4w4, by which
    the operator tells assembler's kernels."""
    return "asm" if family == A4W4 and "_ZN" in kernel else "ck"


def flag(text: str, name: str) -> bool:
    """True or False, as pandas reads it. Raises BadLineError."""
    found = _FLAGS.get(text)
    if found is None:
        raise BadLineError(f"{name} {quote(text)} is not True or False")
    return found


@dataclass(frozen=True)
class Told:
    """What is known about the device of a row: its arch ("": not given), its compute units (0: not given);
    and of the read options the 8-bit float (None: not given) and the arch of the import's device."""

    gfx: str = ""
    units: int = 0
    dtype: str | None = None
    arch: str = ""

    @property
    def fp8(self) -> str:
        """The device's 8-bit float. Raises BadLineError if nothing says which of the two it is."""
        found = _FP8.get(self.gfx or _ARCH.get(self.units, ""))
        if found is None and self.dtype is not None:
            name = dtype(self.dtype).name
            found = name if name in (_OCP, _FNUZ) else None
        if found is None:
            found = _FP8.get(self.arch)
        if found is None:
            raise BadLineError(
                "nothing says which 8-bit float this is: give the results' device, or the dtype, "
                f"{_FNUZ} on gfx942 and {_OCP} on gfx950 and later"
            )
        return found

    def type(self, text: str, name: str) -> str:
        """The storage type of a torch type. Raises BadLineError."""
        if text == "dtypes.fp8":
            return self.fp8
        found = _TYPES.get(text)
        if found is None:
            raise BadLineError(f"{name} {quote(text)} is not supported; supported: {', '.join(_TYPES)}")
        return found


def call_of(family: str, kind: str) -> Callable[[int, int, int], GemmProblem]:
    """M, N, K -> the call of a family of 8-bit operands."""
    problem = rowwise if SHUFFLED.get(family, family) == A8W8 else blockwise
    return lambda m, n, k: problem(m, n, k, kind)


# ---- calls: they raise BadLineError or InvalidProblem ----------------------------------------------


@lru_cache(maxsize=4096)
def plain(m: int, n: int, k: int, kind: str, out: str, bias: bool, scaled: bool) -> GemmProblem:
    """The bf16 family's call."""
    if scaled:
        raise BadLineError(
            "scaleAB: which operands are scaled, and whether by a scale a tensor or a row, is not said"
        )
    return from_linear(m, n, k, kind, dtype_d=out, bias=out if bias else None)


@lru_cache(maxsize=4096)
def rowwise(m: int, n: int, k: int, kind: str) -> GemmProblem:
    """The a8w8 family's call."""
    if kind != "int8" and not kind.startswith("fp8_e4m3"):
        raise BadLineError(f"q_dtype_w is {kind}: a8w8 multiplies int8 or 8-bit floats")
    return from_linear(m, n, k, kind, dtype_d="bf16", scale_a="outer", scale_b="outer")


@lru_cache(maxsize=4096)
def blockwise(m: int, n: int, k: int, kind: str) -> GemmProblem:
    """The a8w8_blockscale family's call."""
    if not kind.startswith("fp8_e4m3"):
        raise BadLineError(f"q_dtype_w is {kind}: a8w8_blockscale multiplies 8-bit floats")
    return from_linear(m, n, k, kind, dtype_d="bf16", scale_a="block_1x128", scale_b="block_128x128")


@lru_cache(maxsize=4096)
def mxfp4(m: int, n: int, k: int) -> GemmProblem:
    """The a4w4 family's call."""
    return from_linear(m, n, k, FP4, dtype_d="bf16", scale_a=MX_SCALE, scale_b=MX_SCALE)


@lru_cache(maxsize=4096)
def batched(batch: int, m: int, n: int, k: int) -> GemmProblem:
    """The bf16_batched family's call."""
    return from_bmm(batch, m, n, k, "bf16", trans_b="T")
