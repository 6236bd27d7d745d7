"""The driver's calls behind an opened device: memory in and out, what is queued where, what is made once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.cuda.driver import CudaDriver
from backends.errors import ContextLost, DeviceLost, DeviceMemoryExceeded, LaunchError
from backends.gpu import context as module
from backends.gpu.device import GpuDevice
from backends.gpu.null import NullTelemetry
from backends.gpu.series import EagerSeries, GraphSeries
from backends.problem import from_mm
from backends.solution import Solution
from tests.backends.cuda.fakes import ENVIRONMENT, OUT_OF_MEMORY, FakeApi, Status
from tests.backends.gpu.null_device import NoCompiler, NullDevice


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    found = FakeApi()
    monkeypatch.setattr("backends.cuda.driver.api", lambda: found)
    return found


@pytest.fixture
def device(fake: FakeApi, cache: BinaryCache) -> GpuDevice:
    return GpuDevice(CudaDriver(0), ENVIRONMENT, NullTelemetry(), NoCompiler(), cache, {})


def test_opening_takes_the_primary_context_and_a_stream_of_its_own(fake: FakeApi, device: GpuDevice) -> None:
    assert fake.names() == ["DeviceGet", "DevicePrimaryCtxRetain", "CtxSetCurrent", "StreamCreate"]
    assert fake.log[2] == ("CtxSetCurrent", 1001)
    assert fake.log[3] == ("StreamCreate", 1), "which does not wait for the default stream"
    assert device.stream == 1002


@pytest.mark.parametrize("call", ["DeviceGet", "DevicePrimaryCtxRetain"])
def test_a_device_that_others_use_alone_is_lost(call: str, fake: FakeApi, cache: BinaryCache) -> None:
    fake.faults[call] = Status(46, "CUDA_ERROR_DEVICE_UNAVAILABLE")
    with pytest.raises(DeviceLost, match="another process uses the GPU alone"):
        GpuDevice(CudaDriver(0), ENVIRONMENT, NullTelemetry(), NoCompiler(), cache, {})


def test_what_it_is(fake: FakeApi, device: GpuDevice) -> None:
    assert (device.units, device.cache_bytes, device.free_bytes) == (132, 60 * 2**20, 2**30)
    fake.free = 5
    assert device.free_bytes == 5, "asked anew each time"
    short, long = device.traits.sample_seconds
    assert 0 < short < long
    assert device.condition() == {}


# ---- memory ------------------------------------------------------------------------------------


def test_bytes_come_back_from_where_they_were_put(device: GpuDevice) -> None:
    buffer = device.allocate(64)
    assert buffer.size == 64
    buffer.upload(np.zeros(64, np.uint8))
    data = np.arange(40, dtype=np.uint8)
    buffer.upload(data[::2], 7)  # not contiguous
    assert buffer.download(7, 20).tolist() == list(range(0, 40, 2))
    assert buffer.download(0, 9).tolist() == [0] * 7 + [0, 2]
    assert buffer.download(26, 3).tolist() == [38, 0, 0]


def test_a_copy_is_over_when_it_returns_and_queued_in_order(fake: FakeApi, device: GpuDevice) -> None:
    buffer = device.allocate(16)
    fake.log.clear()
    buffer.upload(np.ones(4, np.uint8), 8)
    buffer.download(2, 3)
    assert fake.names() == ["MemcpyHtoDAsync", "StreamSynchronize", "MemcpyDtoHAsync", "StreamSynchronize"]
    (_, target, _, size, stream), (_, _, source, count, other) = fake.log[0], fake.log[2]
    assert (target, size, stream) == (buffer.address + 8, 4, device.stream)
    assert (source, count, other) == (buffer.address + 2, 3, device.stream)


def test_nothing_is_copied_for_no_bytes(fake: FakeApi, device: GpuDevice) -> None:
    buffer = device.allocate(0)
    assert (buffer.size, fake.log[-1]) == (0, ("MemAlloc", 1))
    fake.log.clear()
    buffer.upload(np.empty(0, np.uint8))
    assert buffer.download(0, 0).size == 0
    assert fake.log == []


def test_memory_is_freed_when_nothing_uses_it_any_more_and_once(fake: FakeApi, device: GpuDevice) -> None:
    buffer = device.allocate(16)
    address = buffer.address
    fake.log.clear()
    buffer.free()
    buffer.free()
    assert fake.log == [("StreamSynchronize", device.stream), ("MemFree", address)]
    assert (buffer.address, buffer.size, fake.memory) == (0, 0, {})


def test_memory_that_is_not_to_be_had_is_said_with_figures(fake: FakeApi, device: GpuDevice) -> None:
    fake.faults["MemAlloc"] = OUT_OF_MEMORY
    fake.free = 12_345
    with pytest.raises(DeviceMemoryExceeded, match=r"^99999 bytes asked for, 12345 free on NVIDIA H200$"):
        device.allocate(99_999)
    device.telemetry = SimpleNamespace(others=lambda: "; also in use by process 7 (1 MiB)")
    with pytest.raises(
        DeviceMemoryExceeded, match=r"free on NVIDIA H200; also in use by process 7 \(1 MiB\)$"
    ):
        device.allocate(99_999)


def test_another_fault_of_allocating_is_not_about_memory(fake: FakeApi, device: GpuDevice) -> None:
    fake.faults["MemAlloc"] = Status(700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(ContextLost, match="allocating 8 bytes: CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.allocate(8)


def test_a_fault_shows_where_it_is_waited_for(fake: FakeApi, device: GpuDevice) -> None:
    fake.faults["StreamSynchronize"] = Status(719, "CUDA_ERROR_LAUNCH_FAILED")
    with pytest.raises(ContextLost, match="waiting for the device: CUDA_ERROR_LAUNCH_FAILED"):
        device.synchronize()


# ---- what is kept ------------------------------------------------------------------------------


def test_what_a_library_needs_is_made_once(device: GpuDevice) -> None:
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return made

    assert device.keep("handle", make) is device.keep("handle", make)
    assert made == [1]
    device.keep("other", make)
    assert made == [1, 1]


def test_a_module_is_compiled_and_loaded_once_for_its_macros() -> None:
    device = NullDevice()
    one = device.function("reference.h", "draw", {"T": "1", "S": "2"})
    assert device.function("reference.h", "draw", {"S": "2", "T": "1"}) is one
    assert device.function("reference.h", "fill", {"T": "1", "S": "2"}) is not one
    device.function("reference.h", "draw")
    assert [unit.defines for unit in device.toolchain.units] == [(("S", "2"), ("T", "1")), ()]
    assert {unit.arch for unit in device.toolchain.units} == {"sm_90"}
    assert device.driver.names().count("load_module") == 2


def test_the_last_used_binaries_stay_loaded(device: GpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOADED", 2)
    read: list[str] = []

    def load(path: Path) -> str:
        read.append(path.name)
        return f"loaded {path.name}"

    for name in ("a", "b", "a", "c", "a", "b"):
        assert device.loaded(Path(name), load) == f"loaded {name}"
    assert read == ["a", "b", "c", "b"]


def test_an_unknown_family(device: GpuDevice) -> None:
    with pytest.raises(LaunchError, match="family 'nobody' is unknown; known: "):
        device.load(from_mm(4, 4, 4), Solution("nobody", 1, {}), None)


def test_a_series_of_the_mode_that_was_asked_for(device: GpuDevice) -> None:
    kernel: Any = SimpleNamespace(prepare=lambda: None)
    assert isinstance(device.series(kernel, [lambda: None], "graph"), GraphSeries)
    assert isinstance(device.series(kernel, [lambda: None], "eager"), EagerSeries)
