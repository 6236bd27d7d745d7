"""The HIP runtime through hip-python, on libraries of our own: statuses, memory, graphs, launches."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from backends.errors import ContextLost, DeviceLost, DeviceMemoryExceeded, LaunchError
from backends.gpu.driver import Arguments, FunctionAttributes, Module
from backends.hip import driver as module
from backends.hip.driver import HipDriver, RuntimeMissing, device_count, raise_for
from backends.kernels.launch import KernelLaunch
from backends.kernels.tensor_map import TensorMap
from tests.backends.hip.on_host.build import compiled

#: A kernel in the emulator's form: it adds 1 to so many ints.
KERNEL = """
struct Args { int* at; int count; };
extern "C" const unsigned long long argument_bytes_plus_one = sizeof(Args);
extern "C" const char* launch_plus_one(const void* args, const unsigned*, int, unsigned long long, int) {
    const Args& given = *static_cast<const Args*>(args);
    if (given.count < 0) return "less than nothing";
    for (int i = 0; i < given.count; ++i) ++given.at[i];
    return nullptr;
}
"""


class Args(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("count", ctypes.c_int))


@pytest.fixture
def driver(on_host: Path) -> HipDriver:
    found = HipDriver(0)
    found.stream = found.open()  # type: ignore[attr-defined]
    return found


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "kernel.cpp").write_text(KERNEL)
    return (compiled(folder, folder, {"kernel": ()}) / "lib" / "libkernel.so").read_bytes()


def stream_of(driver: HipDriver) -> int:
    found: int = driver.stream  # type: ignore[attr-defined]
    return found


# ---- statuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("hipErrorOutOfMemory", DeviceMemoryExceeded),
        ("hipErrorLaunchFailure", ContextLost),
        ("hipErrorIllegalAddress", ContextLost),
        ("hipErrorNoDevice", DeviceLost),
        ("hipErrorInvalidValue", LaunchError),
    ],
)
def test_a_status_is_named_with_the_call(status: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^allocating 5 bytes: {status}") as caught:
        raise_for(status, "allocating 5 bytes")
    assert type(caught.value) is error


def test_a_status_of_the_runtime_comes_through(driver: HipDriver, on_host: Path) -> None:
    on_host.write_text("hipMalloc 2\n")
    with pytest.raises(DeviceMemoryExceeded, match="allocating 64 bytes: hipErrorOutOfMemory"):
        driver.allocate(64)
    on_host.write_text("hipStreamSynchronize 719\n")
    with pytest.raises(ContextLost, match="hipErrorLaunchFailure"):
        driver.synchronize(stream_of(driver))
    on_host.write_text("hipSetDevice 101\n")
    with pytest.raises(DeviceLost, match=r"hipErrorInvalidDevice \(the GPU is gone\)"):
        HipDriver(0).open()


# ---- devices -----------------------------------------------------------------------------------


def test_devices_are_counted(on_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_count() == 1
    monkeypatch.setenv("GEMMTUNE_SHIM_DEVICES", "4")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,0")
    assert device_count() == 2


@pytest.mark.parametrize("visible", ["", "7", "-1"])
def test_without_a_device_it_is_said_why(
    on_host: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", visible)
    with pytest.raises(RuntimeMissing, match=r"sees no GPU: hipErrorNoDevice \(.*HIP_VISIBLE_DEVICES"):
        device_count()


def test_a_runtime_that_does_not_start_is_an_answer(on_host: Path) -> None:
    on_host.write_text("hipGetDeviceCount 3\n")
    with pytest.raises(RuntimeMissing, match="hipErrorNotInitialized"):
        device_count()


def test_what_the_device_says_of_itself(driver: HipDriver) -> None:
    assert (driver.ordinal(), driver.units(), driver.cache_bytes()) == (0, 4, 256 << 10)
    free = driver.free_bytes()
    address = driver.allocate(1000)
    assert free - driver.free_bytes() == 1000
    driver.free(address)
    assert driver.free_bytes() == free


# ---- memory and graphs -------------------------------------------------------------------------


def test_memory_is_filled_and_copied_in_order(driver: HipDriver) -> None:
    stream = stream_of(driver)
    first, second, out = driver.allocate(64), driver.allocate(64), np.zeros(64, np.uint8)
    data = np.arange(64, dtype=np.uint8)
    driver.copy_in(first, data.ctypes.data, 64, stream)
    driver.fill(first, 7, 8, stream)
    driver.copy(second, first, 64, stream)
    driver.copy_out(out.ctypes.data, second, 64, stream)
    driver.synchronize(stream)
    assert out.tolist() == [7] * 8 + list(range(8, 64))
    driver.free(first)
    driver.free(second)
    with pytest.raises(LaunchError, match="hipFree: hipErrorInvalidValue"):
        driver.free(first)


def test_a_graph_replays_what_was_captured(driver: HipDriver, image: bytes) -> None:
    stream = stream_of(driver)
    handle = driver.load_module(image, "kernel")
    numbers = driver.allocate(16)
    driver.fill(numbers, 0, 16, stream)
    launch = driver.make_launch(
        driver.get_function(handle, "plus_one"), KernelLaunch("plus_one", (1, 1, 1), (64, 1, 1)),
        Arguments([Args(numbers, 4)]), stream, dependent=True,
    )  # fmt: skip
    launch()
    driver.begin_capture(stream)
    launch()
    launch()
    graph = driver.end_capture(stream)
    del launch  # a graph has its own copy of the arguments
    executable = driver.instantiate(graph, stream)
    begin, end = driver.create_event(), driver.create_event()
    driver.record(begin, stream)
    for _ in range(3):
        driver.launch_graph(executable, stream)
    driver.record(end, stream)
    assert 0 < driver.elapsed_seconds(begin, end) < 1
    out = np.zeros(4, np.int32)
    driver.copy_out(out.ctypes.data, numbers, 16, stream)
    assert out.tolist() == [7] * 4
    driver.destroy_graph(graph, executable)
    for event in (begin, end):
        driver.destroy_event(event)
    driver.free(numbers)


def test_a_capture_that_is_abandoned_leaves_the_stream_usable(driver: HipDriver) -> None:
    stream = stream_of(driver)
    driver.begin_capture(stream)
    driver.abandon_capture(stream)
    driver.synchronize(stream)
    with pytest.raises(LaunchError, match="capturing the launches: hipErrorStreamCaptureUnmatched"):
        driver.end_capture(stream)


def test_an_executable_that_cannot_be_uploaded_is_given_back(driver: HipDriver, on_host: Path) -> None:
    stream = stream_of(driver)
    driver.begin_capture(stream)
    graph = driver.end_capture(stream)
    on_host.write_text("hipGraphUpload 2\n")
    with pytest.raises(DeviceMemoryExceeded, match="hipGraphUpload"):
        driver.instantiate(graph, stream)
    driver.destroy_graph(graph, None)


# ---- modules and launches ----------------------------------------------------------------------


def test_modules_and_kernels_are_refused_by_name(driver: HipDriver, image: bytes, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"^loading x\.hsaco: hipErrorInvalidImage$"):
        driver.load_module(b"\x7fELF" + bytes(100), "x.hsaco")
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(image)
    with pytest.raises(LaunchError, match=r"^kernel gemm: hipErrorNotFound$"):
        Module(driver, path).function("gemm")


def test_what_a_kernel_takes(driver: HipDriver, image: bytes) -> None:
    function = driver.get_function(driver.load_module(image, "kernel"), "plus_one")
    assert driver.attributes(function, "plus_one") == FunctionAttributes(64, 0, 0)
    assert driver.blocks_per_unit(function, 256, 32 << 10, "plus_one") == 2
    driver.allow_shared(function, 64 << 10, "plus_one")


def test_a_launch_that_is_refused_says_its_size(driver: HipDriver, image: bytes) -> None:
    function = driver.get_function(driver.load_module(image, "kernel"), "plus_one")
    shape = KernelLaunch("plus_one", (2**23, 1, 1), (1024, 1, 1))
    launch = driver.make_launch(function, shape, Arguments([Args(0, 0)]), stream_of(driver), dependent=False)
    with pytest.raises(LaunchError, match=r"plus_one on \(8388608, 1, 1\) blocks .*: hipErrorInvalidValue"):
        launch()


def test_a_kernel_that_fails_is_told_by_a_wait(driver: HipDriver, image: bytes) -> None:
    stream = stream_of(driver)
    function = driver.get_function(driver.load_module(image, "kernel"), "plus_one")
    shape = KernelLaunch("plus_one", (1, 1, 1), (64, 1, 1))
    driver.make_launch(function, shape, Arguments([Args(0, -1)]), stream, dependent=False)()
    with pytest.raises(ContextLost, match="waiting for the device: hipErrorLaunchFailure"):
        driver.synchronize(stream)


def test_there_are_no_tensor_maps(driver: HipDriver) -> None:
    with pytest.raises(LaunchError, match="a wants a tensor map, which AMD's GPUs do not have"):
        driver.encode_tensor_map(TensorMap("a", "fp16", (8, 8, 1), (16, 128), (8, 8, 1)), 0)


# ---- a ROCm that is half there -----------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, rocm: Path) -> None:
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    module.api.cache_clear()


def test_no_runtime_names_where_it_was_sought(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without(monkeypatch, tmp_path)
    with pytest.raises(RuntimeMissing, match=rf"libamdhip64\.so not found; searched {tmp_path}/lib, "):
        device_count()


def test_a_versioned_name_alone_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so.6").write_bytes(b"")
    without(monkeypatch, tmp_path)
    with pytest.raises(RuntimeMissing, match=r"libamdhip64\.so\.6 is there, but not libamdhip64\.so, .*link"):
        device_count()
