"""The driver's start, what each of its statuses means, and launches' arguments."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from backends.archs import gpu_arch
from backends.cuda import driver as module
from backends.cuda.driver import (
    CONTEXT_LOST,
    DEVICE_LOST,
    CudaDriver,
    DriverMissing,
    api,
    check,
    raise_for,
)
from backends.errors import ContextLost, DeviceLost, DeviceMemoryExceeded, GemmtuneError, LaunchError
from backends.gpu.driver import Arguments, Function, Module
from backends.kernels.launch import KernelLaunch

SUCCESS = SimpleNamespace(name="CUDA_SUCCESS")


def status(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name)


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    """No test sees the driver that another one started."""
    api.cache_clear()
    yield
    api.cache_clear()


# ---- starting ----------------------------------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, start: Any, version: int = 13000) -> ModuleType:
    """cuda.bindings.driver with these answers, as `import` finds it."""
    bindings, found = ModuleType("cuda.bindings"), ModuleType("cuda.bindings.driver")
    found.cuInit = start if callable(start) else lambda flags: (status(start),)  # type: ignore[attr-defined]
    found.cuDriverGetVersion = lambda: (SUCCESS, version)  # type: ignore[attr-defined]
    bindings.driver = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", found)
    return found


def test_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DriverMissing, match=r"^cuda-bindings is not installed .*gemmtune\[cuda\]"):
        api()


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(flags: int) -> Any:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    installed(monkeypatch, start)
    with pytest.raises(DriverMissing, match=r"^no NVIDIA driver on this machine \(libcuda.so is not found\)"):
        api()


def test_the_bindings_themselves_say_that_there_is_no_driver() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(DriverMissing, match=r"libcuda\.so is not found"):
            api()
    else:
        pytest.skip("there is a driver")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("CUDA_ERROR_NO_DEVICE", r"no GPU that this process may see \(CUDA_VISIBLE_DEVICES\?\)"),
        ("CUDA_ERROR_SYSTEM_NOT_READY", r"does not start: CUDA_ERROR_SYSTEM_NOT_READY \(.*fabricmanager"),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", r"driver and kernel module differ; reboot"),
        ("CUDA_ERROR_OPERATING_SYSTEM", r"does not start: CUDA_ERROR_OPERATING_SYSTEM$"),
    ],
)
def test_a_driver_that_does_not_start(answer: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, answer)
    with pytest.raises(DriverMissing, match=words):
        api()


@pytest.mark.parametrize("version", [11080, 12090])
def test_a_driver_that_is_too_old(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "CUDA_SUCCESS", version)
    known = f"{version // 1000}.{version % 1000 // 10}"
    with pytest.raises(DriverMissing, match=rf"too old: it knows CUDA {known}, 13\.0 is needed; update it"):
        api()


def test_a_driver_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    def start(flags: int) -> Any:
        starts.append(flags)
        return (SUCCESS,)

    found = installed(monkeypatch, start, 13000)
    assert api() is found
    assert api() is found
    assert starts == [0]


def test_a_driver_that_was_missing_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "CUDA_ERROR_NO_DEVICE")
    with pytest.raises(DriverMissing):
        api()
    found = installed(monkeypatch, "CUDA_SUCCESS")
    assert api() is found


# ---- statuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "expected"), [((SUCCESS,), None), ((SUCCESS, 7), 7), ((SUCCESS, 7, 8), (7, 8))]
)
def test_the_values_of_a_call(result: tuple[Any, ...], expected: object) -> None:
    assert check(result, "asking") == expected


def kind_of(name: str) -> type[GemmtuneError]:
    if name == "CUDA_ERROR_OUT_OF_MEMORY":
        return DeviceMemoryExceeded
    if name in CONTEXT_LOST:
        return ContextLost
    return DeviceLost if name in DEVICE_LOST else LaunchError


@pytest.mark.parametrize(
    "name",
    [
        *sorted(CONTEXT_LOST | set(DEVICE_LOST)),
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "CUDA_ERROR_NOT_SUPPORTED",
    ],
)
def test_what_a_status_means(name: str) -> None:
    with pytest.raises(GemmtuneError, match=rf"^asking: {name}") as caught:
        check((status(name), None), "asking")
    assert type(caught.value) is kind_of(name)
    assert DEVICE_LOST.get(name, "") in str(caught.value)
    with pytest.raises(kind_of(name)):
        raise_for(name, "asking")


def test_the_statuses_that_matter_most_are_where_they_belong() -> None:
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in CONTEXT_LOST
    assert "CUDA_ERROR_LAUNCH_FAILED" in CONTEXT_LOST
    assert "CUDA_ERROR_OUT_OF_MEMORY" not in CONTEXT_LOST | set(DEVICE_LOST)
    assert "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" not in CONTEXT_LOST | set(DEVICE_LOST)
    # Memory errors end the process, whose next one is told that the device cannot be had.
    assert "CUDA_ERROR_ECC_UNCORRECTABLE" in CONTEXT_LOST & set(DEVICE_LOST)


def test_the_bindings_know_every_status_by_that_name() -> None:
    from cuda.bindings import driver

    known = set(driver.CUresult.__members__)
    # Newer drivers have more than the oldest bindings that we allow.
    newer = {"CUDA_ERROR_TENSOR_MEMORY_LEAK", "CUDA_ERROR_CONTAINED", "CUDA_ERROR_EXTERNAL_DEVICE"}
    assert (CONTEXT_LOST | set(DEVICE_LOST)) - newer <= known


# ---- launches ----------------------------------------------------------------------------------


def test_arguments_point_at_their_values_and_keep_them_alive() -> None:
    packed = Function(CudaDriver(0), None, "kernel").pack(
        ctypes.c_void_p(0xDEADBEEF), ctypes.c_uint64(2**40 + 1), ctypes.c_float(2.5), ctypes.c_uint8(200)
    )
    gc.collect()
    _ = [ctypes.c_uint64(0) for _ in range(1000)]  # would take the places of values that are gone
    pointers = (ctypes.c_void_p * 4).from_address(packed.address)
    kinds: list[Any] = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_uint8]
    values = [kind.from_address(at).value for kind, at in zip(kinds, pointers, strict=True)]
    assert values == [0xDEADBEEF, 2**40 + 1, 2.5, 200]


def test_no_arguments() -> None:
    assert Arguments(()).address > 0


class FakeDriver:
    """Modules, functions and launches, written down."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.launched: Any = 0

    def cuModuleLoadData(self, data: bytes) -> tuple[Any, ...]:  # noqa: N802
        self.log.append(("module", data))
        return SUCCESS, "module 1"

    def cuModuleUnload(self, handle: str) -> tuple[Any, ...]:  # noqa: N802
        self.log.append(("unload", handle))
        return (status("CUDA_ERROR_CONTEXT_IS_DESTROYED"),)

    def cuModuleGetFunction(self, handle: str, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        self.log.append(("function", handle, name))
        if name == b"nobody":
            return status("CUDA_ERROR_NOT_FOUND"), None
        return SUCCESS, f"{name.decode()} of {handle}"

    def cuFuncSetAttribute(self, handle: str, attribute: str, value: int) -> tuple[Any, ...]:  # noqa: N802
        self.log.append(("attribute", handle, attribute, value))
        return (SUCCESS,)

    # The bindings' own: they need no driver.
    CUlaunchAttribute, CUlaunchAttributeID = bindings.CUlaunchAttribute, bindings.CUlaunchAttributeID
    CUlaunchConfig = bindings.CUlaunchConfig

    def cuLaunchKernelEx(self, *arguments: Any) -> tuple[Any, ...]:  # noqa: N802
        self.log.append(("launch after", *arguments))
        return (self.launched,)

    def cuLaunchKernel(self, *arguments: Any) -> tuple[Any, ...]:  # noqa: N802
        self.log.append(("launch", *arguments))
        return (self.launched,)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver()
    monkeypatch.setattr(module, "api", lambda: found)
    return found


def test_a_module_is_loaded_until_it_and_its_kernels_are_gone(fake: FakeDriver, tmp_path: Path) -> None:
    path = tmp_path / "some.cubin"
    path.write_bytes(b"\x7fELF")
    loaded = Module(CudaDriver(0), path)
    kernel = loaded.function("fill")
    assert kernel.name == "fill"
    assert fake.log == [("module", b"\x7fELF"), ("function", "module 1", b"fill")]
    with pytest.raises(LaunchError, match=r"^kernel nobody: CUDA_ERROR_NOT_FOUND$"):
        loaded.function("nobody")
    del loaded
    assert ("unload", "module 1") not in fake.log
    del kernel
    assert fake.log[-1] == ("unload", "module 1")


def test_a_module_that_lies_within_a_file(fake: FakeDriver, tmp_path: Path) -> None:
    within = Module(CudaDriver(0), tmp_path / "never-read.zip", b"\x7fELF within")
    assert fake.log == [("module", b"\x7fELF within")]
    del within
    assert fake.log[-1] == ("unload", "module 1")


def test_a_launch_in_the_drivers_order(fake: FakeDriver) -> None:
    function = Function(CudaDriver(0), "handle", "fill")
    arguments = function.pack(ctypes.c_int(1))
    function.launch((1, 2, 3), (4, 5, 6), arguments, 77, shared=8)
    assert fake.log == [("launch", "handle", 1, 2, 3, 4, 5, 6, 8, 77, arguments.address, 0)]
    function.allow_shared(100_000)
    assert fake.log[-1] == ("attribute", "handle", "shared", 100_000)


def test_a_dependent_launch_is_made_ready_once(fake: FakeDriver) -> None:
    function = Function(CudaDriver(0), "handle", "fill")
    arguments = function.pack(ctypes.c_int(1))
    shape = KernelLaunch("fill", (1, 2, 3), (4, 5, 6), 8, waits=True)
    launch = function.bind(shape, arguments, 77, dependent=True)
    assert fake.log == []
    launch()
    launch()
    first, second = fake.log
    assert first == second
    name, config, *rest = first
    assert (name, rest) == ("launch after", ["handle", arguments.address, 0])
    gc.collect()
    _ = [bytes(64) for _ in range(1000)]  # would take the place of an attribute that is gone
    # CUlaunchConfig, as the driver reads it.
    words = (ctypes.c_uint32 * 14).from_address(config.getPtr())
    assert list(words[:7]) == [1, 2, 3, 4, 5, 6, 8]
    stream, attributes = (ctypes.c_uint64 * 2).from_address(config.getPtr() + 32)
    assert (stream, words[12]) == (77, 1)
    known = fake.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    identity, _, allowed = (ctypes.c_uint32 * 3).from_address(attributes)
    assert (identity, allowed) == (int(known), 1)


def test_a_refused_dependent_launch_is_named(fake: FakeDriver) -> None:
    fake.launched = Code(1)
    function = Function(CudaDriver(0), "handle", "fill")
    launch = function.bind(KernelLaunch("fill", (9, 1, 1), (32, 1, 1)), function.pack(), 0, dependent=True)
    words = r"^dependent launch of fill on \(9, 1, 1\) blocks of \(32, 1, 1\): CUDA_ERROR_INVALID_VALUE$"
    with pytest.raises(LaunchError, match=words):
        launch()


@pytest.mark.parametrize(("arch", "dependent"), [("sm_89", False), ("sm_90a", True), ("sm_120", True)])
def test_a_launch_is_dependent_where_the_architecture_knows_how(arch: str, dependent: bool) -> None:
    shape = KernelLaunch("fill", (1, 2, 3), (4, 5, 6), 8, waits=True)
    assert shape.dependent(gpu_arch("cuda", arch)) == dependent
    assert not replace(shape, waits=False).dependent(gpu_arch("cuda", arch))


class Code(int):
    """A status as the bindings' enum is one: a number with a name."""

    name = "CUDA_ERROR_INVALID_VALUE"


def test_a_refused_launch_is_named(fake: FakeDriver) -> None:
    fake.launched = Code(1)
    function = Function(CudaDriver(0), "handle", "fill")
    words = r"^launch of fill on \(9, 1, 1\) blocks of \(32, 1, 1\): CUDA_ERROR_INVALID_VALUE$"
    with pytest.raises(LaunchError, match=words):
        function.launch((9, 1, 1), (32, 1, 1), function.pack(), 0)
