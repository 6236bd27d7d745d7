"""torch on GPUs: which problems, and exactly which calls on which memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.errors import IllegalSolution, LaunchError
from backends.gpu import torch_gemm as module
from backends.gpu.torch_gemm import TorchMatmul, torch_build
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from tests.backends.gpu.null_device import ENVIRONMENT, NullDevice

TORCH, ROCM = TorchMatmul("CUDA"), TorchMatmul("ROCm")
FP8 = {"dtype_d": "bf16", "scale_a": "tensor", "scale_b": "tensor"}
BLOCKS = {"scale_a": "block_1x128", "scale_b": "block_128x128"}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (from_linear(8, 16, 32, "bf16", bias="bf16", activation="gelu"), True),
        (from_linear(8, 16, 32, "bf16", bias="fp32"), False),
        (from_linear(8, 16, 32, "bf16", dtype_d="fp32"), False),
        (from_linear(8, 16, 32, "fp32"), True),
        (from_linear(8, 16, 32, "tf32", activation="silu"), True),
        (from_linear(8, 16, 32, "fp32", compute="bf16x9"), False),
        (from_linear(8, 16, 32, "fp16", compute="fp16"), True),
        (from_mm(8, 16, 32, "fp64", beta=1.0), True),
        (from_linear(8, 16, 32, "bf16", dtype_c="fp32", dtype_d="bf16", beta=1.0), False),
        (from_bmm(3, 8, 16, 32, "fp16", bias="fp16", bias_axis="m"), True),
        (from_linear(17, 16, 32, "int8"), True),
        (from_linear(16, 16, 32, "int8"), False),
        (from_linear(17, 16, 30, "int8"), False),
        (from_linear(17, 12, 32, "int8"), False),
        (from_linear(17, 16, 32, "int8", ldd=24), False),
        (from_linear(8, 16, 32, "fp8_e4m3", **FP8), True),
        (from_linear(8, 16, 32, "fp8_e4m3", dtype_b="fp8_e5m2", dtype_d="fp32"), True),
        (from_linear(8, 16, 32, "fp8_e5m2", **FP8), False),
        (from_mm(8, 16, 32, "fp8_e4m3", **FP8), False),
        (from_linear(8, 16, 24, "fp8_e4m3", **FP8), False),
        (from_linear(8, 8, 32, "fp8_e4m3", **FP8), False),
        (from_linear(8, 16, 32, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer"), True),
        (from_linear(8, 16, 32, "fp8_e4m3", dtype_d="fp16", scale_a="outer", scale_b="outer"), False),
        (from_linear(8, 16, 32, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="tensor"), False),
        (from_linear(8, 16, 32, "fp8_e4m3", bias="bf16", **FP8), True),
        (from_linear(8, 16, 32, "fp8_e4m3", dtype_d="fp32", bias="fp32"), False),
        (from_linear(8, 16, 32, "fp8_e4m3", beta=0.5, bias="bf16", activation="silu", **FP8), True),
        (from_linear(8, 16, 32, "fp8_e4m3", beta=1.0, dtype_c="fp16", **FP8), False),
        (from_linear(8, 16, 32, "fp8_e4m3", alpha=2.0, **FP8), False),
        (from_linear(8, 16, 32, "fp8_e4m3_fnuz", **FP8), False),
        (from_linear(8, 16, 640, "fp8_e4m3", dtype_d="bf16", **BLOCKS), False),
        (from_linear(8, 16, 512, "fp8_e4m3", dtype_d="fp16", **BLOCKS), False),
        (from_linear(8, 16, 512, "fp8_e4m3", dtype_d="bf16", fast_accumulation=True, **BLOCKS), False),
    ],
)
def test_problems(problem: GemmProblem, expected: bool) -> None:
    assert TORCH.supports(problem) == expected
    found = list(TORCH.solutions(problem, ENVIRONMENT))
    assert len(found) == expected
    for solution in found:
        assert (solution.build, dict(solution.parameters)) == ("2.9.1+cu128", {})
        assert (solution.workspace_bytes, solution.deterministic) == (0, None)


def test_rules() -> None:
    problem = from_linear(8, 16, 32, "fp16", compute="fp16")
    old = replace(ENVIRONMENT, libraries={"torch": "2.6.0+cu124"})
    assert list(TORCH.solutions(problem, old)) == []
    (solution,) = TORCH.solutions(problem, ENVIRONMENT)
    assert "2.9.1+cu128 means nothing to 2.6.0+cu124" in (TORCH.illegal(problem, solution, old) or "")
    its_own = replace(solution, build="2.6.0+cu124")
    assert "cannot accumulate in fp16" in (TORCH.illegal(problem, its_own, old) or "")
    assert "no parameters" in (TORCH.illegal(problem, replace(its_own, parameters={"x": 1}), old) or "")
    assert TORCH.unavailable(replace(ENVIRONMENT, libraries={})) == "torch with CUDA is not installed"
    assert TORCH.unavailable(ENVIRONMENT) is None


def test_scales_of_blocks_are_hoppers_and_of_a_known_torch() -> None:
    problem = from_linear(8, 256, 512, "fp8_e4m3", dtype_d="bf16", **BLOCKS)
    known = replace(ENVIRONMENT, libraries={"torch": "2.11.0+cu130"})
    (solution,) = TORCH.solutions(problem, known)
    assert "not known to have scales of blocks" in (
        TORCH.illegal(problem, replace(solution, build="2.9.1+cu128"), ENVIRONMENT) or ""
    )
    ada = replace(known, arch="sm_89")
    assert TORCH.illegal(problem, solution, ada) == "torch has scales of blocks on sm_90 alone, not on sm_89"
    assert list(TORCH.solutions(problem, ada)) == []


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        ("2.9.1", "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n", "2.9.1+cu128"),
        ("2.6.0+cu124", "cuda: Optional[str] = '12.4'\n", "2.6.0+cu124"),
        ("2.9.1+cpu", "cuda: Optional[str] = None\n", None),
        ("2.9.1+rocm6.4", "cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", "2.9.1+rocm6.4"),
        ("2.9.1", "cuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831'\n", "2.9.1+rocm7.0"),
        ("2.9.1+cu128", None, "2.9.1+cu128"),
        ("2.9.1+rocm7.0", None, "2.9.1+rocm7.0"),
        ("2.9.1", None, None),
    ],
)
def test_the_build_is_read_without_an_import(
    version: str, text: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another suite's
    if text is not None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(text)
    found = SimpleNamespace(version=version, locate_file=lambda path: tmp_path / path)
    monkeypatch.setattr(module, "distribution", lambda name: found)
    platform = "hip" if "rocm" in (expected or "") else "cuda"
    assert torch_build(platform) == expected
    assert torch_build("cuda" if platform == "hip" else "hip") is None, "of the other platform"
    assert "torch" not in sys.modules


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", missing)
    assert torch_build("cuda") is None


class Tensor:
    """numpy in torch's words, on memory that stands for the device's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def mT(self) -> Tensor:  # noqa: N802  (torch's name)
        return Tensor(self.array.swapaxes(-1, -2))

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self.array[index])

    def expand(self, batch: int, *_: int) -> Tensor:
        shape = (batch, *self.array.shape[1:])
        return self if self.array.shape == shape else Tensor(np.broadcast_to(self.array, shape))

    def reshape(self, *shape: Any) -> Tensor:
        return Tensor(self.array.reshape(shape[0] if isinstance(shape[0], tuple) else shape))

    def unsqueeze(self, axis: int) -> Tensor:
        return Tensor(np.expand_dims(self.array, axis))

    def view(self, kind: Any) -> Tensor:
        return Tensor(self.array.view(kind))

    def mul_(self, value: float) -> None:
        self.array *= value

    def add_(self, other: Tensor, *, alpha: float = 1.0) -> None:
        self.array += (alpha * other.array).astype(self.array.dtype)


class FakeTorch:
    """The calls that the family makes, computed by numpy and written down."""

    float32, bfloat16, float8_e4m3fn = np.float32, np.dtype("int16"), np.dtype("uint8")

    def __init__(self) -> None:
        self.log: list[Any] = []
        self._stream: Any = None
        outer = self
        self.cuda = SimpleNamespace(
            ExternalStream=lambda stream, device: ("stream", stream, device),
            current_stream=lambda device: self._stream,
            set_stream=self._set_stream,
        )
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False, allow_fp16_accumulation=False))
        )
        self._C = SimpleNamespace(_nn=SimpleNamespace(gelu_=self._note("gelu_"), silu_=self._note("silu_")))
        self.set_grad_enabled = lambda on: outer.log.append(("gradients", on))

    def _set_stream(self, stream: Any) -> None:
        self.log.append(("set_stream", stream))
        self._stream = stream

    def _note(self, name: str) -> Any:
        return lambda tensor, **options: self.log.append((name, options))

    def device(self, kind: str, ordinal: int) -> tuple[str, int]:
        return kind, ordinal

    def as_tensor(self, memory: Any, device: Any) -> Tensor:
        found = memory.__cuda_array_interface__
        address, _ = found["data"]
        size = sum((n - 1) * s for n, s in zip(found["shape"], found["strides"], strict=True))
        dtype = np.dtype(found["typestr"])
        raw = MEMORY[address : address + size + dtype.itemsize]
        return Tensor(np.ndarray(found["shape"], dtype, raw.data, 0, found["strides"]))

    def _product(self, name: str, left: Tensor, right: Tensor, out: Tensor, **options: Any) -> None:
        self.log.append((name, options))
        out.array[...] = left.array @ right.array

    def mm(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        self._product("mm", left, right, out)

    def bmm(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        self._product("bmm", left, right, out)

    def addmm(
        self, added: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float, out: Tensor
    ) -> None:
        self.log.append(("addmm", added.array.ndim))
        out.array[...] = alpha * (left.array @ right.array) + beta * added.array

    def baddbmm(self, *arguments: Tensor, beta: float, alpha: float, out: Tensor) -> None:
        self.addmm(*arguments, beta=beta, alpha=alpha, out=out)

    def _addmm_activation(
        self, added: Tensor, *pair: Tensor, alpha: float, use_gelu: bool, out: Tensor
    ) -> None:
        self.addmm(added, *pair, beta=1.0, alpha=alpha, out=out)
        self.log.append(("fused", use_gelu))

    def _scaled_mm(self, left: Tensor, right: Tensor, *scales: Any, **options: Any) -> None:
        options["out"] = options["out"].array.shape
        self.log.append(("scaled", [one if one is None else one.array.shape for one in scales], options))

    def ones(self, shape: tuple[int, ...], **options: Any) -> Tensor:
        return Tensor(np.ones(shape, np.float32))

    def relu_(self, tensor: Tensor) -> None:
        self.log.append(("relu_",))
        np.maximum(tensor.array, 0, out=tensor.array)


MEMORY = np.zeros(2**16, np.uint8)
PLACES = {"a": 0, "b": 2**14, "c": 2**15, "d": 3 * 2**14, "bias": 2**15 + 2**13}


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    MEMORY.view(np.float32)[:] = np.random.default_rng(3).integers(-4, 5, MEMORY.size // 4)
    yield fake
    MEMORY[:] = 0


def _run(problem: GemmProblem) -> tuple[Any, Any]:
    """D by the family, and by numpy."""
    from backends.operands import as_product

    found = layouts(problem)
    alpha, beta = problem.scalars
    operands = Operands.at(PLACES, (alpha, beta))
    views = {name: found[name].view(MEMORY[PLACES[name] :].view(np.float32)) for name in found}
    left, right = as_product(problem, views["a"], views["b"])
    expected = alpha * (left @ right)
    if "c" in views:
        expected = expected + beta * views["c"]
    if "bias" in views:
        flat = views["bias"].reshape(-1)
        expected = expected + (flat if problem.bias_axis == "m" else flat[:, None])
    (solution,) = TORCH.solutions(problem, ENVIRONMENT)
    kernel = TORCH.load(problem, solution, None, NullDevice())
    assert kernel.workspace_bytes == 0
    kernel.bind(operands, 0)()
    return views["d"], expected


@pytest.mark.parametrize(
    ("problem", "calls"),
    [
        (from_linear(5, 7, 9), [("mm", {})]),
        (from_mm(5, 7, 9, alpha=2.0, lda=11, ldd=8), [("mm", {})]),
        (from_mm(5, 7, 9, trans_a="T", beta=1.0, ldc=9), [("addmm", 2)]),
        (from_linear(5, 7, 9, bias="fp32", alpha=2.0), [("addmm", 1)]),
        (from_linear(5, 7, 9, bias="fp32", bias_axis="m"), [("addmm", 2)]),
        (from_linear(5, 7, 9, bias="fp32", beta=2.0), [("addmm", 2)]),
        (from_bmm(3, 5, 7, 9, stride_b=0), [("bmm", {})]),
        (from_bmm(3, 5, 7, 9, beta=1.0, bias="fp32"), [("addmm", 3)]),
        (from_linear(5, 7, 9, bias="fp32", activation="gelu"), [("addmm", 1), ("fused", True)]),
        (from_linear(5, 7, 9, bias="fp32", activation="relu"), [("addmm", 1), ("fused", False)]),
        (from_linear(5, 7, 9, activation="gelu"), [("mm", {}), ("gelu_", {"approximate": "tanh"})]),
        (from_bmm(3, 5, 7, 9, bias="fp32", activation="silu"), [("addmm", 1), ("silu_", {})]),
    ],
    ids=lambda value: value.id if isinstance(value, GemmProblem) else "",
)
def test_calls(torch: FakeTorch, problem: GemmProblem, calls: list[Any]) -> None:
    got, expected = _run(problem)
    assert np.array_equal(got, expected)
    assert torch.log == [("gradients", False), ("set_stream", ("stream", 77, ("cuda", 0))), *calls]


def test_modes_follow_the_compute_type(torch: FakeTorch) -> None:
    device, matmul = NullDevice(), torch.backends.cuda.matmul

    def prepare(problem: GemmProblem) -> None:
        (solution,) = TORCH.solutions(problem, ENVIRONMENT)
        TORCH.load(problem, solution, None, device).prepare()

    prepare(from_linear(5, 7, 9, "tf32"))
    assert matmul.allow_tf32 is True
    prepare(from_linear(5, 7, 9, "fp32"))
    assert matmul.allow_tf32 is False
    prepare(from_linear(5, 7, 9, "fp16", compute="fp16"))
    assert matmul.allow_fp16_accumulation is True
    prepare(from_linear(5, 7, 9, "fp16"))
    assert matmul.allow_fp16_accumulation is False
    matmul.fp32_precision = "none"
    prepare(from_linear(5, 7, 9, "tf32"))
    assert (matmul.fp32_precision, matmul.allow_tf32) == ("tf32", False)
    assert [one for one in torch.log if one[0] == "set_stream"] == [
        ("set_stream", ("stream", 77, ("cuda", 0)))
    ]


def test_bf16_travels_as_integers(torch: FakeTorch) -> None:
    problem = from_linear(5, 7, 9, "bf16")
    (solution,) = TORCH.solutions(problem, ENVIRONMENT)
    TORCH.load(problem, solution, None, NullDevice()).bind(Operands.at(PLACES, (1.0, 0.0)), 0)()
    assert torch.log[-1] == ("mm", {})


@pytest.mark.parametrize(
    ("scales", "shapes"),
    [
        ({}, [(), (), (16,)]),
        ({"scale_a": "tensor", "scale_b": "tensor"}, [(), (), (16,)]),
        ({"scale_a": "outer", "scale_b": "outer"}, [(8, 1), (1, 16), (16,)]),
    ],
)
def test_scaled_products(torch: FakeTorch, scales: dict[str, str], shapes: list[Any]) -> None:
    problem = from_linear(
        8, 16, 32, "fp8_e4m3", dtype_d="bf16", bias="bf16", fast_accumulation=True, **scales
    )
    places = {**PLACES, "scale_a": 2**15, "scale_b": 2**15 + 64}
    (solution,) = TORCH.solutions(problem, ENVIRONMENT)
    TORCH.load(problem, solution, None, NullDevice()).bind(Operands.at(places, (1.0, 0.0)), 0)()
    options = {"out_dtype": np.dtype("int16"), "use_fast_accum": True, "out": (8, 16)}
    assert torch.log[-1] == ("scaled", shapes, options)


def test_what_follows_a_scaled_product(torch: FakeTorch) -> None:
    """The call has the bias; C and the activation are steps after it."""
    problem = from_linear(8, 16, 32, "fp8_e4m3", dtype_d="bf16", beta=0.5, bias="bf16", activation="silu")
    (solution,) = TORCH.solutions(problem, ENVIRONMENT)
    views = {name: layouts(problem)[name].view(MEMORY[PLACES[name] :].view(np.int16)) for name in ("c", "d")}
    expected = views["d"] + views["c"] * np.int16(3)
    TORCH.load(problem, solution, None, NullDevice()).bind(Operands.at(PLACES, (1.0, 3.0)), 0)()
    assert [one[0] for one in torch.log[-2:]] == ["scaled", "silu_"]
    assert np.array_equal(views["d"], expected)


def test_a_refusal_is_a_launch_error(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("self.size(0) needs to be greater than 16")

    monkeypatch.setattr(torch, "mm", refuse)
    problem = from_linear(5, 7, 9)
    (solution,) = TORCH.solutions(problem, ENVIRONMENT)
    launch = TORCH.load(problem, solution, None, NullDevice()).bind(Operands.at(PLACES, (1.0, 0.0)), 0)
    with pytest.raises(LaunchError, match=r"torch: RuntimeError: self\.size"):
        launch()


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["torch", "cublas"])
@pytest.mark.parametrize(
    "problem",
    [
        from_linear(64, 96, 128, "bf16"),
        from_linear(5, 70, 90, "bf16", bias="bf16", activation="gelu"),
        from_linear(33, 70, 90, "fp16", bias="fp16", activation="relu"),
        from_linear(33, 70, 90, "fp16", compute="fp16"),
        from_linear(33, 70, 90, "tf32"),
        from_mm(20, 30, 40, "fp64", trans_a="T", alpha=2.0, bias="fp64", activation="silu"),
        from_mm(20, 30, 40, "fp32", trans_a="T", alpha=2.0, beta=0.5, ldc=33, ldd=35),
        from_bmm(3, 20, 30, 40, "bf16", stride_b=0, beta=1.0),
        from_linear(17, 64, 128, "int8"),
        from_linear(32, 64, 128, "fp8_e4m3", dtype_d="bf16", scale_a="tensor", scale_b="tensor"),
        from_linear(32, 64, 128, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer"),
    ],
    ids=lambda p: p.id if isinstance(p, GemmProblem) else p,
)
def test_products_on_a_gpu(name: str, problem: GemmProblem, cache: BinaryCache) -> None:
    from backends.cuda.backend import CudaBackend
    from tuners.inputs import cases
    from tuners.verify_device import DeviceVerifier

    backend = CudaBackend()
    environment = backend.probe().devices[0]
    family = backend.families()[name]
    if family.unavailable(environment) or not family.supports(problem):
        pytest.skip(f"{name} does not run {problem.slug} here")
    device = backend.open(0, cache)
    verifier = DeviceVerifier(device)
    for solution in family.solutions(problem, environment):
        ran = set()
        for case in cases(problem, 2, 5):
            if not family.supports(case.problem):
                continue
            try:
                finding = verifier.check(device.load(case.problem, solution, None), case)
            except IllegalSolution:  # a library may refuse a ragged twin
                continue
            assert finding.wrong == "", (solution.id, case)
            ran.add(case.name)
        assert "exact" in ran
