"""Whether a product is right: each element within the rounding of its type and of fp32 sums."""

from __future__ import annotations

from typing import Any

import torch


def close(out: Any, a: Any, b: Any, added: Any = None) -> bool:
    """Whether out = A B + added, computed once in fp32 and rounded once to its type (with room for one more
    rounding, as torch adds a bias to a rounded product)."""
    with torch.no_grad():
        left, right = a.double(), b.double()
        product, sizes = left @ right, left.abs() @ right.abs()
        exact, rounded = product, product.abs()
        if added is not None:
            exact, sizes = product + added.double(), sizes + added.double().abs()
            rounded = rounded + exact.abs()  # the sum may be small where both of its terms are not
        rounding = 2 * torch.finfo(out.dtype).eps * (rounded + sizes * (out.dtype != torch.float32) / 64)
        sums = a.shape[-1] * torch.finfo(torch.float32).eps * sizes
        return bool(out.shape == exact.shape and ((out.double() - exact).abs() <= rounding + sums).all())
