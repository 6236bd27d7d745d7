"""Streams, capture and workspaces of a GPU, as far as they can be seen without one."""

from __future__ import annotations

from typing import Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import runtime
from gemmtune.torch.runtime import CpuRuntime, GpuRuntime, runtime_of


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> GpuRuntime:
    """A GPU's runtime whose memory is the host's."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7 + index, raising=False)
    monkeypatch.setattr(runtime, "_bytes", lambda index, size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(runtime, "_capture_info", lambda: lambda stream: 100 + stream)
    return GpuRuntime()


def test_streams_have_workspaces_of_their_own(gpu: GpuRuntime) -> None:
    first, _ = gpu.workspace(0, 1, 1000, 256)
    assert first % 256 == 0
    assert gpu.workspace(0, 1, 500, 256)[0] == first
    assert gpu.workspace(0, 2, 1000, 256)[0] != first
    assert gpu.workspace(1, 1, 1000, 256)[0] != first
    _, larger = gpu.workspace(0, 1, 5000, 256)
    assert larger.numel() >= 5000
    assert gpu.workspace(0, 1, 1000, 256)[1] is larger


def test_a_capture_takes_a_workspace_of_its_graph(gpu: GpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    _, eager = gpu.workspace(0, 1, 1000, 256)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    _, captured = gpu.workspace(0, 1, 1000, 256)
    _, again = gpu.workspace(0, 1, 1000, 256)
    assert len({one.data_ptr() for one in (eager, captured, again)}) == 3


def test_captures_are_told_apart(gpu: GpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.stream(0) == 7
    assert gpu.capture(7) == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert gpu.capture(7) == 107
    monkeypatch.setattr(gpu, "_capture_info", None)
    assert gpu.capture(7) is None


def test_threads_of_a_cpu_have_workspaces_of_their_own() -> None:
    from concurrent.futures import ThreadPoolExecutor

    cpu = CpuRuntime()
    here, held = cpu.workspace(0, 0, 100, 64)
    assert here % 64 == 0
    assert cpu.workspace(0, 0, 100, 64)[1] is held
    with ThreadPoolExecutor(1) as pool:
        other: Any = pool.submit(cpu.workspace, 0, 0, 100, 64).result()
    assert other[0] != here


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_a_torch_without_the_vendor_is_refused_by_name() -> None:
    with pytest.raises(gemmtune.torch.ServingError, match=r"for cuda, and this torch .* is built without it"):
        runtime_of("cuda")
