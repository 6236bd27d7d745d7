"""Options of commands that take a problem of quantised weights, or of 8-bit operands with scales."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backends.dtypes import WEIGHT_TYPES
from backends.errors import InvalidProblem
from backends.quantisation import GROUPS, SQUARE, ZEROS

DtypeB = Annotated[
    str | None,
    typer.Option(help=f"Of B where it differs: weights of {', '.join(WEIGHT_TYPES)} (F.linear's w)."),
]
DtypeD = Annotated[
    str | None, typer.Option(help="Type of the output where it differs from C's, which is added by --beta.")
]
ScaleA = Annotated[
    str | None,
    typer.Option(
        help="Scale of A, of 8-bit operands on both sides: tensor, row, block_1x128; of fp4_e2m1 on both "
        "sides group_32 alone."
    ),
]
ScaleB = Annotated[
    str | None,
    typer.Option(
        help="Scale of B. Of quantised weights: tensor, row, "
        f"{', '.join(f'group_{size}' for size in sorted(GROUPS.values()))} (elements of k); "
        f"of fp8_e4m3 {SQUARE}, too."
    ),
]
ScaleD = Annotated[str | None, typer.Option(help="Scale of the output, as of int8: tensor.")]
ScaleDtype = Annotated[
    str | None,
    typer.Option(help="Type of the scales: fp32 (default), bf16, fp16; of fp4_e2m1 fp8_e8m0 alone."),
]
ZeroB = Annotated[str | None, typer.Option(help=f"Zero point of uint4 weights: {', '.join(ZEROS)}.")]

Prepacked = Annotated[
    bool,
    typer.Option(
        "--prepacked",
        help="The program packs quantised weights once, at load, into the layout that the solution names.",
    ),
]
#: Of commands that take a file or a model.
PrepackedFile = Annotated[
    bool,
    typer.Option(
        "--prepacked",
        help="The program packs quantised weights once, at load, into the layout that the solution names: of "
        "every problem that has such weights.",
    ),
]


def scaling_of(a: str | None, b: str | None, d: str | None, dtype: str | None, zero: str | None) -> Any:
    """The `scaling` of a problem's wire form; None if no option was given. Raises InvalidProblem for a type
    without scales, which would be passed over."""
    if dtype is not None and (a, b, d) == (None, None, None):
        raise InvalidProblem("--scale-dtype is the type of scales: give --scale-a, --scale-b or --scale-d")
    given = {"a": a, "b": b, "d": d, "dtype": dtype, "zero_b": zero}
    return {name: value for name, value in given.items() if value is not None} or None
