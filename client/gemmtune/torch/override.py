"""torch's products overridden at the backend's dispatch key: below autograd, so that backward's pass too.

The override is installed once a device type, for enable() and record() together, and removed with the last of
them. A product without a row goes to the kernel that was registered before, called as it was called.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from gemmtune.torch import extension
from gemmtune.torch.errors import ServingError
from gemmtune.torch.grouped.operators import run_grouped
from gemmtune.torch.grouped.products import of_call
from gemmtune.torch.grouped.scaled import of_call as of_scaled_call
from gemmtune.torch.grouped.scaled_operators import run_scaled_grouped
from gemmtune.torch.layouts import FP8, NAMES, Product
from gemmtune.torch.native_rows import NativeOverride
from gemmtune.torch.nesting import inside, is_inside
from gemmtune.torch.precision import fp32_compute
from gemmtune.torch.products import layout_of, run_product, run_scaled, scalings
from gemmtune.torch.served import Candidates, Served
from gemmtune.torch.watch import WATCHERS, tell

#: Device type -> torch's dispatch key.
_KEYS = {"cpu": "CPU", "cuda": "CUDA"}


class Override:
    """The overrides of one device type. `served` is the table that is enabled, None while products are only
    recorded."""

    def __init__(self, device_type: str) -> None:
        self.type = device_type
        self.served: Served | None = None
        self.users = 0
        self._rows: dict[Any, Candidates] = {}
        self._kernels: dict[str, Any] = {}
        self._library: Any = None
        self._native: NativeOverride | None = None

    def serve(self, served: Served | None) -> None:
        """Serves a table's rows from now on, or none."""
        if self.served is not None:
            self.served.on_refresh.remove(self._serve_natively)
        self.served = served
        self._rows = {} if served is None else served.products
        if served is not None:
            # First: the handles race new rows against torch's own products.
            served.on_refresh.insert(0, self._serve_natively)
        self._serve_natively()

    def _serve_natively(self) -> None:
        if self._native is not None:
            self._native.serve([] if self.served is None else self.served.native_products())

    def install(self) -> None:
        """Puts the overrides before torch's kernels."""
        if not hasattr(torch.library, "get_kernel"):
            raise ServingError(
                f"enable() and record() need torch.library.get_kernel; torch {torch.__version__} has none: "
                "use apply(), or a newer torch"
            )
        key, module = _KEYS[self.type], extension.loaded()
        if module is not None:
            self._native = NativeOverride(module, key)
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # torch says of every operator that it is overridden, which is what was asked for.
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            warnings.filterwarnings("ignore", ".*Overriding a previously registered kernel", UserWarning)
            for name, override in self._overrides().items():
                self._kernels[name] = _kernel(name, key)
                self._library.impl(name, override, key, with_keyset=True, allow_override=True)
        if self._native is not None:
            self._native.install()

    def remove(self) -> None:
        """Torch's kernels are called directly again."""
        if self._native is not None:
            self._native.remove()
            self._native = None
        self._library._destroy()
        self._library = None

    def _overrides(self) -> dict[str, Callable[..., Any]]:
        return {
            "mm": self._mm(), "mm.out": self._mm_out(),
            "addmm": self._addmm(), "addmm.out": self._addmm_out(),
            "bmm": self._bmm(), "bmm.out": self._bmm_out(),
            "_scaled_mm": self._scaled(), "_scaled_mm.out": self._scaled_out(),
            "_grouped_mm": self._grouped(), "_scaled_grouped_mm": self._scaled_grouped(),
        }  # fmt: skip

    # One closure for each operator: what a product without a row pays for is one look-up.

    def _mm(self) -> Callable[..., Any]:
        def mm(keyset: Any, a: Any, b: Any) -> Any:
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None:
                found = run_product(rows, a, b)
                if found is not None:
                    return found
            if WATCHERS:
                self._tell(a, b)
            return kernels["mm"].call_boxed(keyset, a, b)

        kernels = self._kernels
        return mm

    def _mm_out(self) -> Callable[..., Any]:
        def mm_out(keyset: Any, a: Any, b: Any, *, out: Any) -> Any:
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None:
                found = run_product(rows, a, b, out=out)
                if found is not None:
                    return found
            if WATCHERS:
                self._tell(a, b)
            return kernels["mm.out"].call_boxed(keyset, a, b, out=out)

        kernels = self._kernels
        return mm_out

    def _addmm(self) -> Callable[..., Any]:
        def addmm(keyset: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None and alpha == 1 and beta == 1:
                extra = "bias" if c.dim() == 1 else "c"
                found = run_product(rows, a, b, c, extra)
                if found is not None:
                    return found
            if WATCHERS:
                self._tell(a, b, c, beta, alpha)
            return kernels["addmm"].call_boxed(keyset, c, a, b, beta=beta, alpha=alpha)

        kernels = self._kernels
        return addmm

    def _addmm_out(self) -> Callable[..., Any]:
        def addmm_out(keyset: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None and alpha == 1 and beta == 1:
                extra = "bias" if c.dim() == 1 else "c"
                found = run_product(rows, a, b, c, extra, out)
                if found is not None:
                    return found
            if WATCHERS:
                self._tell(a, b, c, beta, alpha)
            return kernels["addmm.out"].call_boxed(keyset, c, a, b, beta=beta, alpha=alpha, out=out)

        kernels = self._kernels
        return addmm_out

    def _bmm(self) -> Callable[..., Any]:
        def bmm(keyset: Any, a: Any, b: Any) -> Any:
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None:
                found = run_product(rows, a, b)
                if found is not None:
                    return found
            if WATCHERS:
                self._tell(a, b)
            return kernels["bmm"].call_boxed(keyset, a, b)

        kernels = self._kernels
        return bmm

    def _bmm_out(self) -> Callable[..., Any]:
        def bmm_out(keyset: Any, a: Any, b: Any, *, out: Any) -> Any:
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None:
                found = run_product(rows, a, b, out=out)
                if found is not None:
                    return found
            if WATCHERS:
                self._tell(a, b)
            return kernels["bmm.out"].call_boxed(keyset, a, b, out=out)

        kernels = self._kernels
        return bmm_out

    def _scaled(self) -> Callable[..., Any]:
        def scaled_mm(
            keyset: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None,
            scale_result: Any = None, out_dtype: Any = None, use_fast_accum: bool = False,
        ) -> Any:  # fmt: skip
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None and scale_result is None:
                found = run_scaled(rows, a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum)
                if found is not None:
                    return found
            kernel = kernels["_scaled_mm"].call_boxed
            rest = scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum
            if not WATCHERS:
                return kernel(keyset, a, b, *rest)
            self._tell_scaled(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum)
            with inside():  # a CPU converts the operands, and multiplies these
                return kernel(keyset, a, b, *rest)

        kernels = self._kernels
        return scaled_mm

    def _scaled_out(self) -> Callable[..., Any]:
        def scaled_mm_out(
            keyset: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None,
            scale_result: Any = None, out_dtype: Any = None, use_fast_accum: bool = False, *, out: Any,
        ) -> Any:  # fmt: skip
            rows = self._rows.get((a.shape, b.shape))
            if rows is not None and scale_result is None:
                found = run_scaled(rows, a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, out)
                if found is not None:
                    return found
            kernel = kernels["_scaled_mm.out"].call_boxed
            rest = scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum
            if not WATCHERS:
                return kernel(keyset, a, b, *rest, out=out)
            self._tell_scaled(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum)
            with inside():  # a CPU converts the operands, and multiplies these
                return kernel(keyset, a, b, *rest, out=out)

        kernels = self._kernels
        return scaled_mm_out

    def _grouped(self) -> Callable[..., Any]:
        def grouped_mm(
            keyset: Any, x: Any, w: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
        ) -> Any:
            rest = x, w, offs, bias, out_dtype
            # Inside, it is what an operator of ours or a race computes with: torch's.
            product = None if is_inside() else of_call(*rest)
            if product is None:
                return kernels["_grouped_mm"].call_boxed(keyset, *rest)
            served = self.served
            if served is not None and product.key in served.grouped:
                found = run_grouped(served, product, x, w.transpose(-2, -1), offs)
                if found is not None:
                    return found
            if WATCHERS:
                tell(product, None, self.type)
            with inside():  # where torch has no kernel it multiplies group by group
                return kernels["_grouped_mm"].call_boxed(keyset, *rest)

        kernels = self._kernels
        return grouped_mm

    def _scaled_grouped(self) -> Callable[..., Any]:
        def scaled_grouped_mm(
            keyset: Any, x: Any, w: Any, scale_x: Any, scale_w: Any, offs: Any = None, bias: Any = None,
            scale_result: Any = None, out_dtype: Any = None, use_fast_accum: bool = False,
        ) -> Any:  # fmt: skip
            rest = x, w, scale_x, scale_w, offs, bias, scale_result, out_dtype
            product = None if is_inside() else of_scaled_call(*rest)
            served = self.served
            if product is not None and served is not None and product.key in served.scaled_grouped:
                scaled = x, w.transpose(-2, -1), scale_x, scale_w, offs
                found = run_scaled_grouped(served, product, *scaled)
                if found is not None:
                    return found
            if product is not None and WATCHERS:
                tell(product, None, self.type)
            return kernels["_scaled_grouped_mm"].call_boxed(keyset, *rest, use_fast_accum)

        kernels = self._kernels
        return scaled_grouped_mm

    # ---- what watchers are told of products without a row -----------------------------------------

    def _tell(self, a: Any, b: Any, c: Any = None, beta: Any = 1, alpha: Any = 1) -> None:
        laid_a, laid_b = layout_of(a), layout_of(b)
        if laid_a is None or laid_b is None or a.dtype not in NAMES or not a.numel() or not b.numel():
            return
        m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
        batch = a.shape[0] if a.dim() == 3 else 1
        stride_a, stride_b = (a.stride(0), b.stride(0)) if batch > 1 else (0, 0)
        extra, ldc = "", 0
        if c is not None:
            if alpha != 1 or beta not in (0, 1):
                return  # a recording has no scalars but these
            if beta == 1 and c.dim() == 1:
                extra = "bias"
            elif beta == 1:
                if c.shape != (m, n) or c.stride(1) != 1:
                    return
                extra, ldc = "c", n if m == 1 else max(c.stride(0), n)
        compute = fp32_compute(self.type) if a.dtype == torch.float32 else ""
        tell(
            Product(m, n, k, laid_a, laid_b, a.dtype, a.dtype, extra, ldc, batch, stride_a, stride_b,
                    compute="tf32" if compute == "tf32" else ""),
            None, self.type,
        )  # fmt: skip

    def _tell_scaled(
        self, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out_dtype: Any, fast: bool
    ) -> None:
        laid_a, laid_b = layout_of(a), layout_of(b)
        m, n = a.shape[0], b.shape[1]
        if laid_a is None or laid_b is None or a.dtype not in FP8 or b.dtype not in FP8 or not a.numel():
            return
        known = scalings(scale_a, m, scale_b, n)
        if known is not None:
            tell(
                Product(m, n, a.shape[1], laid_a, laid_b, a.dtype, out_dtype or a.dtype,
                        "" if bias is None else "bias", dtype_b=b.dtype, scale_a=known[0], scale_b=known[1],
                        fast=fast),
                None, self.type,
            )  # fmt: skip


class _NoKernel:
    """Stands for torch's kernel where it has none."""

    def __init__(self, name: str, key: str) -> None:
        self._what = f"aten::{name} for {key}"

    def call_boxed(self, *given: Any, **named: Any) -> Any:
        """Raises what torch raises."""
        raise NotImplementedError(f"torch {torch.__version__} has no kernel of {self._what}")


def _kernel(name: str, key: str) -> Any:
    """torch's kernel of an operator."""
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", key):
        return torch.library.get_kernel(f"aten::{name}", key)
    return _NoKernel(name, key)


_OVERRIDES: dict[str, Override] = {}
_LOCK = threading.Lock()


def _after_fork() -> None:
    global _LOCK  # another thread may have held it
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def installed(device_type: str) -> Override | None:
    """The overrides of a device type, if they are installed."""
    return _OVERRIDES.get(device_type)


def install(device_type: str) -> Override:
    """The overrides of a device type, for one more user."""
    with _LOCK:
        override = _OVERRIDES.get(device_type)
        if override is None:
            override = Override(device_type)
            override.install()
            _OVERRIDES[device_type] = override
        override.users += 1
        return override


def remove(override: Override) -> None:
    """One user less; the last one's overrides are removed."""
    with _LOCK:
        override.users -= 1
        if not override.users:
            override.remove()
            del _OVERRIDES[override.type]
