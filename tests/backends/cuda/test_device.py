"""An opened device: memory in and out, what is queued where, and what is made once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.cuda import device as module
from backends.cuda.device import CudaDevice
from backends.cuda.series import EagerSeries, GraphSeries
from backends.errors import ContextLost, DeviceLost, DeviceMemoryExceeded, LaunchError
from backends.problem import from_mm
from backends.solution import Solution
from tests.backends.cuda.fakes import ENVIRONMENT, OUT_OF_MEMORY, FakeApi, Status


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    found = FakeApi()
    for name in ("device", "series", "driver"):
        monkeypatch.setattr(f"backends.cuda.{name}.api", lambda: found)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # no telemetry: the machine may have some
    return found


@pytest.fixture
def device(fake: FakeApi, cache: BinaryCache) -> CudaDevice:
    return CudaDevice(0, ENVIRONMENT, {}, cache)


def test_opening_takes_the_primary_context_and_a_stream_of_its_own(fake: FakeApi, device: CudaDevice) -> None:
    assert fake.names() == ["DeviceGet", "DevicePrimaryCtxRetain", "CtxSetCurrent", "StreamCreate"]
    assert fake.log[2] == ("CtxSetCurrent", 1001)
    assert fake.log[3] == ("StreamCreate", 1), "which does not wait for the default stream"
    assert device.stream == 1002


@pytest.mark.parametrize("call", ["DeviceGet", "DevicePrimaryCtxRetain"])
def test_a_device_that_others_use_alone_is_lost(call: str, fake: FakeApi, cache: BinaryCache) -> None:
    fake.faults[call] = Status(46, "CUDA_ERROR_DEVICE_UNAVAILABLE")
    with pytest.raises(DeviceLost, match="another process uses the GPU alone"):
        CudaDevice(0, ENVIRONMENT, {}, cache)


def test_what_it_is(fake: FakeApi, device: CudaDevice) -> None:
    assert (device.units, device.cache_bytes, device.free_bytes) == (132, 60 * 2**20, 2**30)
    fake.free = 5
    assert device.free_bytes == 5, "asked anew each time"
    short, long = device.sample_seconds
    assert 0 < short < long
    assert device.condition() == {}


# ---- memory ------------------------------------------------------------------------------------


def test_bytes_come_back_from_where_they_were_put(device: CudaDevice) -> None:
    buffer = device.allocate(64)
    assert buffer.size == 64
    buffer.upload(np.zeros(64, np.uint8))
    data = np.arange(40, dtype=np.uint8)
    buffer.upload(data[::2], 7)  # not contiguous
    assert buffer.download(7, 20).tolist() == list(range(0, 40, 2))
    assert buffer.download(0, 9).tolist() == [0] * 7 + [0, 2]
    assert buffer.download(26, 3).tolist() == [38, 0, 0]


def test_a_copy_is_over_when_it_returns_and_queued_in_order(fake: FakeApi, device: CudaDevice) -> None:
    buffer = device.allocate(16)
    fake.log.clear()
    buffer.upload(np.ones(4, np.uint8), 8)
    buffer.download(2, 3)
    assert fake.names() == ["MemcpyHtoDAsync", "StreamSynchronize", "MemcpyDtoHAsync", "StreamSynchronize"]
    (_, target, _, size, stream), (_, _, source, count, other) = fake.log[0], fake.log[2]
    assert (target, size, stream) == (buffer.address + 8, 4, device.stream)
    assert (source, count, other) == (buffer.address + 2, 3, device.stream)


def test_nothing_is_copied_for_no_bytes(fake: FakeApi, device: CudaDevice) -> None:
    buffer = device.allocate(0)
    assert (buffer.size, fake.log[-1]) == (0, ("MemAlloc", 1))
    fake.log.clear()
    buffer.upload(np.empty(0, np.uint8))
    assert buffer.download(0, 0).size == 0
    assert fake.log == []


def test_memory_is_freed_when_nothing_uses_it_any_more_and_once(fake: FakeApi, device: CudaDevice) -> None:
    buffer = device.allocate(16)
    address = buffer.address
    fake.log.clear()
    buffer.free()
    buffer.free()
    assert fake.log == [("StreamSynchronize", device.stream), ("MemFree", address)]
    assert (buffer.address, buffer.size, fake.memory) == (0, 0, {})


def test_memory_that_is_not_to_be_had_is_said_with_figures(fake: FakeApi, device: CudaDevice) -> None:
    fake.faults["MemAlloc"] = OUT_OF_MEMORY
    fake.free = 12_345
    with pytest.raises(DeviceMemoryExceeded, match=r"^99999 bytes asked for, 12345 free on NVIDIA H200$"):
        device.allocate(99_999)
    device.telemetry = SimpleNamespace(others=lambda: "; also in use by process 7 (1 MiB)")  # type: ignore[assignment]
    with pytest.raises(
        DeviceMemoryExceeded, match=r"free on NVIDIA H200; also in use by process 7 \(1 MiB\)$"
    ):
        device.allocate(99_999)


def test_another_fault_of_allocating_is_not_about_memory(fake: FakeApi, device: CudaDevice) -> None:
    fake.faults["MemAlloc"] = Status(700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(ContextLost, match="allocating 8 bytes: CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.allocate(8)


def test_a_fault_shows_where_it_is_waited_for(fake: FakeApi, device: CudaDevice) -> None:
    fake.faults["StreamSynchronize"] = Status(719, "CUDA_ERROR_LAUNCH_FAILED")
    with pytest.raises(ContextLost, match="waiting for the device: CUDA_ERROR_LAUNCH_FAILED"):
        device.synchronize()


# ---- what is kept ------------------------------------------------------------------------------


def test_what_a_library_needs_is_made_once(device: CudaDevice) -> None:
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return made

    assert device.keep("handle", make) is device.keep("handle", make)
    assert made == [1]
    device.keep("other", make)
    assert made == [1, 1]


def test_a_module_is_compiled_and_loaded_once_for_its_macros(
    fake: FakeApi, device: CudaDevice, monkeypatch: pytest.MonkeyPatch, cache: BinaryCache
) -> None:
    compiled: list[Any] = []
    cache.root.mkdir(parents=True, exist_ok=True)
    path = cache.root / "some.cubin"
    path.write_bytes(b"cubin")

    def compile_one(source: str, arch: str, cache: BinaryCache, defines: Any) -> Any:
        compiled.append((source, arch, dict(defines or {})))
        return path

    monkeypatch.setattr(module, "compile_cubin", compile_one)
    monkeypatch.setattr(FakeApi, "_cuModuleLoadData", FakeApi._handle, raising=False)
    monkeypatch.setattr(FakeApi, "_cuModuleGetFunction", FakeApi._handle, raising=False)
    one = device.function("judge.cu", "draw", {"T": "1", "S": "2"})
    assert device.function("judge.cu", "draw", {"S": "2", "T": "1"}) is one
    assert device.function("judge.cu", "fill", {"T": "1", "S": "2"}) is not one
    device.function("judge.cu", "draw")
    assert compiled == [("judge.cu", "sm_90", {"T": "1", "S": "2"}), ("judge.cu", "sm_90", {})]
    assert fake.names().count("ModuleLoadData") == 2


def test_the_last_used_binaries_stay_loaded(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOADED", 2)
    read: list[str] = []

    def load(path: Path) -> str:
        read.append(path.name)
        return f"loaded {path.name}"

    for name in ("a", "b", "a", "c", "a", "b"):
        assert device.loaded(Path(name), load) == f"loaded {name}"
    assert read == ["a", "b", "c", "b"]


def test_an_unknown_family(device: CudaDevice) -> None:
    with pytest.raises(LaunchError, match="family 'nobody' is unknown; known: "):
        device.load(from_mm(4, 4, 4), Solution("nobody", 1, {}), None)


def test_a_series_of_the_mode_that_was_asked_for(device: CudaDevice) -> None:
    kernel: Any = SimpleNamespace(prepare=lambda: None)
    assert isinstance(device.series(kernel, [lambda: None], "graph"), GraphSeries)
    assert isinstance(device.series(kernel, [lambda: None], "eager"), EagerSeries)
