"""torch's own calls for low-bit products, each timed by itself in a CUDA graph over different, cold weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from backends.gpu.torch_dequantise import dequantising
from backends.problem import GemmProblem, from_linear
from benchmarks.cuda_tuned import say
from benchmarks.graph_time import graph_us
from benchmarks.lowbit_layers import PREPACKED

#: Bytes of weights that a graph of torch's calls walks, so that each call finds its own cold; calls at most.
_WALKED, _MOST_CALLS = 2**28, 32
#: The fewest rows that torch._int_mm takes.
_LEAST_ROWS = 17
#: Elements of a block of scales.
_BLOCK = 128


class Product(Protocol):
    """y[m,n] = x[m,k] w[n,k]^T of a kind."""

    @property
    def kind(self) -> str: ...
    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...


#: Makes the operands of one call, and the call.
Make = Callable[[], Callable[[], Any]]
#: (torch, device, product) -> bytes of its weights, and what makes a call on weights of its own.
Call = Callable[[Any, Any, Product], tuple[int, Make]]


def torch_times(index: int, wanted: Iterable[Product]) -> dict[tuple[str, int, int, int], dict[str, Any]]:
    """(kind, m, n, k) -> microseconds of torch's calls on the device of this index. A call that torch refuses is
    its message."""
    import torch  # noqa: PLC0415  (optional)

    device, times = torch.device("cuda", index), {}
    for case in wanted:
        size = (case.m, case.n, case.k)
        own: dict[str, Any] = {}
        for name, call in {"bf16_us": _bf16, **_CALLS[case.kind.removesuffix(PREPACKED)]}.items():
            try:
                own[name] = _graph_us(torch, call(torch, device, case))
            except Exception as error:  # whatever torch raises: the other rows go on
                own[name], own[f"{name}_error"] = None, f"{type(error).__name__}: {error}"[:300]
            torch.cuda.empty_cache()
        times[(case.kind, *size)] = own
        say(f"torch {case.kind} {size}: {own}")
    return times


def _tokens(torch: Any, device: Any, case: Product) -> Any:
    return torch.randn(case.m, case.k, device=device, dtype=torch.bfloat16)


def _bf16(torch: Any, device: Any, case: Product) -> tuple[int, Make]:
    x = _tokens(torch, device, case)

    def make() -> Callable[[], Any]:
        w = torch.randn(case.n, case.k, device=device, dtype=torch.bfloat16)
        out = torch.empty(case.m, case.n, device=device, dtype=torch.bfloat16)
        return lambda: torch.mm(x, w.t(), out=out)

    return case.n * case.k * 2, make


def _int4pack(torch: Any, device: Any, case: Product) -> tuple[int, Make]:
    x = _tokens(torch, device, case)

    def make() -> Callable[[], Any]:
        stored = torch.randint(0, 256, (case.n, case.k // 2), device=device, dtype=torch.uint8)
        packed = torch._convert_weight_to_int4pack(stored, 8)
        scales = torch.rand(case.k // 128, case.n, 2, device=device, dtype=torch.bfloat16)
        return lambda: torch._weight_int4pack_mm(x, packed, 128, scales)

    return case.n * case.k // 2, make


def _mxfp4(torch: Any, device: Any, case: Product) -> tuple[int, Make]:
    problem = from_linear(case.m, case.n, case.k, "bf16", dtype_b="fp4_e2m1", scale_b="block_1x32")

    def weights() -> tuple[Any, Any]:
        stored = torch.randint(0, 256, (case.n, case.k // 2), device=device, dtype=torch.uint8)
        return stored, torch.randint(118, 123, (case.n, case.k // 32), device=device, dtype=torch.uint8)

    return case.n * case.k // 2, _dequantised(torch, device, case, problem, weights)


def _fp8(scale: str, dtype: str) -> Call:
    """Weights of fp8 with scales of rows or of blocks."""

    def call(torch: Any, device: Any, case: Product) -> tuple[int, Make]:
        how = {"dtype_b": "fp8_e4m3", "scale_b": scale, "scale_dtype": dtype}
        problem = from_linear(case.m, case.n, case.k, "bf16", **how)
        shape = (case.n, 1) if scale == "outer" else (-(-case.n // _BLOCK), case.k // _BLOCK)
        kind = torch.bfloat16 if dtype == "bf16" else torch.float32

        def weights() -> tuple[Any, Any]:
            stored = torch.randn(case.n, case.k, device=device).to(torch.float8_e4m3fn)
            return stored, torch.rand(shape, device=device, dtype=kind)

        return case.n * case.k, _dequantised(torch, device, case, problem, weights)

    return call


def _dequantised(
    torch: Any, device: Any, case: Product, problem: GemmProblem, weights: Callable[[], tuple[Any, Any]]
) -> Make:
    """Dequantising into a buffer, then the product. `weights` makes stored weights and their scales."""
    x = _tokens(torch, device, case)

    def make() -> Callable[[], Any]:
        stored, scales = weights()
        buffer, steps = dequantising(torch, problem, {"a": stored, "b": x, "scale_a": scales})
        out = torch.empty(case.m, case.n, device=device, dtype=torch.bfloat16)

        def run() -> None:
            for step in steps:
                step()
            torch.mm(x, buffer.t(), out=out)

        return run

    return make


def _int8pack(torch: Any, device: Any, case: Product) -> tuple[int, Make]:
    x = _tokens(torch, device, case)

    def make() -> Callable[[], Any]:
        w = torch.randint(-128, 128, (case.n, case.k), device=device, dtype=torch.int8)
        scales = torch.rand(case.n, device=device, dtype=torch.bfloat16)
        return lambda: torch._weight_int8pack_mm(x, w, scales)

    return case.n * case.k, make


def _int_mm(torch: Any, device: Any, case: Product) -> tuple[int, Make]:
    """The product alone, on as many rows as it takes at least."""
    rows = max(case.m, _LEAST_ROWS)
    x = torch.randint(-128, 128, (rows, case.k), device=device, dtype=torch.int8)

    def make() -> Callable[[], Any]:
        w = torch.randint(-128, 128, (case.n, case.k), device=device, dtype=torch.int8)
        out = torch.empty(rows, case.n, device=device, dtype=torch.int32)
        return lambda: torch._int_mm(x, w.t(), out=out)

    return case.n * case.k, make


def _scaled_mm(scales: str, fast: bool) -> Call:
    """torch._scaled_mm with `scales` of rows, tensors or blocks."""

    def call(torch: Any, device: Any, case: Product) -> tuple[int, Make]:
        m, n, k = case.m, case.n, case.k
        sizes = {
            "rows": ((m, 1), (1, n)),
            "tensor": ((1, 1), (1, 1)),
            "blocks": ((-(-k // _BLOCK), m), (-(-n // _BLOCK), -(-k // _BLOCK))),
        }[scales]
        x = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
        of_x, of_w = (torch.rand(size, device=device) + 0.5 for size in sizes)
        if scales == "blocks":  # 1 x 128: M-major; 128 x 128: as w^T has them
            of_x, of_w = of_x.t(), of_w.t()

        def make() -> Callable[[], Any]:
            w = torch.randn(n, k, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
            kind = torch.bfloat16
            return lambda: torch._scaled_mm(x, w.t(), of_x, of_w, out_dtype=kind, use_fast_accum=fast)

        return n * k, make

    return call


def _both(scales: str) -> dict[str, Call]:
    return {"torch_us": _scaled_mm(scales, False), "torch_fast_us": _scaled_mm(scales, True)}


#: Kind -> name of a time -> what is timed, beside the product in bf16.
_CALLS: Mapping[str, Mapping[str, Call]] = {
    "w4a16": {"torch_us": _int4pack},
    "w4a16_mxfp4": {"torch_us": _mxfp4},
    "w8a16": {"torch_us": _int8pack},
    "w8a16_fp8": {"torch_us": _fp8("outer", "bf16")},
    "w8a16_fp8_blocks": {"torch_us": _fp8("block_128x128", "fp32")},
    "w8a8_int8_rows": {"torch_us": _int_mm},
    "w8a8_fp8_rows": _both("rows"),
    "w8a8_fp8_tensor": _both("tensor"),
    "w8a8_fp8_blocks": {"torch_us": _scaled_mm("blocks", False)},
}


def _graph_us(torch: Any, of: tuple[int, Make]) -> float:
    size, make = of
    return graph_us(torch, [make() for _ in range(max(2, min(_MOST_CALLS, -(-_WALKED // size))))])
