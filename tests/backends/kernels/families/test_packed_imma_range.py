"""packed-imma at the ends of its integers' range: slices of every 16-bit float, and the largest sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES
from backends.operands import layouts
from tests.backends.kernels.emulator.host import build, compiled
from tests.backends.kernels.families.test_packed_imma import CHOSEN, FAMILY, packed
from tests.backends.kernels.matrix_cores import product_of
from tests.backends.kernels.samples import SM_90


def exact_cut(kind: str, exponent: int) -> str:
    """A function of a library that counts the elements of that type whose slices are not theirs: of every
    bit pattern beside a largest element with that exponent of fp32."""
    return f"""
extern "C" long wrong_{kind}_{exponent}() {{
    using namespace gemmtune;
    const float up = as_float((274u - {exponent}u) << 23);
    long wrong = 0;
    for (unsigned first = 0; first < 65536; first += 8) {{
        float x[8];
        for (unsigned i = 0; i < 8; ++i) {{
            const auto bits = static_cast<unsigned short>(first + i);
            x[i] = widen({kind}{{bits}});
            if ((as_unsigned(x[i]) >> 23 & 255u) > {exponent}u) x[i] = 0.0f;
        }}
        unsigned out[3][2];
        Digits::cut(x, up, out);
        for (int i = 0; i < 8; ++i) {{
            long found = 0;
            for (int s = 0; s < 3; ++s)
                found = found * 256 + static_cast<signed char>(out[s][i / 2 % 2] >> (i % 2 * 2 + i / 4) * 8);
            wrong += found != lrint(static_cast<double>(x[i]) * up) || labs(found) >= 1 << 21;
        }}
    }}
    return wrong;
}}
"""


def test_slices_are_the_number_whatever_its_bits(tmp_path: Path) -> None:
    """Every bf16 and fp16 beside a largest of some exponents, of the least unit and of the largest number."""
    kinds = [("Bf16", exponent) for exponent in (32, 33, 127, 254)] + [("Half", e) for e in (113, 127, 142)]
    text = f'#include <stdlib.h>\n#include "{FAMILY.header}"\n'
    library = compiled(text + "".join(exact_cut(*one) for one in kinds), tmp_path / "cut.so")
    for kind, exponent in kinds:
        assert getattr(library, f"wrong_{kind}_{exponent}")() == 0, (kind, exponent)


def test_sums_at_the_ends_of_their_range(tmp_path: Path) -> None:
    """All integers 15 or 0 and a zero point 0 or 8, times slices that are all -128: sums are exact up to
    15 * 128 * 128 * 16, with records of one group and of two."""
    x = np.zeros((2, 256))
    x[:, ::128] = 2.0 - 2.0**-7  # every bit of the mantissa
    x[0, 1:128], x[1, 1:128] = 2.0**-13, -(2.0**-13)
    x[0, 129:], x[1, 129:] = 2.0**-5, -(2.0**-5) - 2.0**-13  # the middle slice, and both
    x = x.astype(np.float32).astype(DTYPES["bf16"].storage)
    exact = x.astype(np.float64).sum(axis=1)
    problems = [
        packed(2, 48, 256, zero_b=zero, scale_b=scale, dtype_d="fp32")
        for zero in ("uint4", "eight")
        for scale in ("block_1x128", "block_1x64")
    ]
    found = [FAMILY.config(one, CHOSEN, SM_90) for one in problems]
    for one, problem in zip(build(found, tmp_path, 32), problems, strict=True):
        for stored in (0x00, 0xFF):
            inputs: dict[str, npt.NDArray[Any]] = {"a": np.full((48, 128), stored, np.uint8), "b": x}
            for name in {"scale_a", "zero_a"} & set(layouts(problem)):
                layout = layouts(problem)[name]
                shape = layout.view(np.zeros(layout.bytes, np.uint8).view(layout.dtype.storage))[0].shape
                inputs[name] = np.full(shape, name == "scale_a", layout.dtype.storage)
            weight = stored % 16 - 8.0 * (problem.zero_a == "eight")
            sums = product_of(one, problem, (1.0, 0.0), inputs)
            np.testing.assert_array_equal(sums, np.repeat(weight * exact[:, None], 48, axis=1))
