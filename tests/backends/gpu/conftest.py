"""Fixtures of the suites of what every GPU shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def mm_to_fp32() -> Iterator[list[str]]:
    """torch for CPUs with the overload of mm that torch for CUDA has; the types that it was called with."""
    torch = pytest.importorskip("torch")
    called: list[str] = []

    def mm(left: Any, right: Any, out_dtype: Any, *, out: Any) -> Any:
        assert out_dtype == out.dtype
        called.append(f"{left.dtype} to {out_dtype}")
        return out.copy_(left.float() @ right.float())

    library = torch.library.Library("aten", "IMPL")
    library.impl("mm.dtype_out", mm, "CPU")
    yield called
    library._destroy()
