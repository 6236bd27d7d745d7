"""Library errors in our words, and what library families share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.environment import Environment
from backends.errors import ContextLost, DeviceLost, IllegalSolution, LaunchError
from backends.gpu.library import call, capability
from tests.backends.cuda.fakes import ENVIRONMENT, LibraryError


class Device:
    """A device that answers a wait with `fault`."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault, self.waits = fault, 0

    def synchronize(self) -> None:
        self.waits += 1
        if self.fault is not None:
            raise self.fault


@pytest.mark.parametrize(("status", "name"), [(1, "NOT_INITIALIZED"), (3, "ALLOC_FAILED"), (99, "99")])
def test_a_status_is_named_with_what_was_called(status: int, name: str) -> None:
    device = Device()
    with (
        pytest.raises(LaunchError, match=rf"^cuBLAS gemm_ex: CUBLAS_STATUS_{name}$"),
        call(device, "cuBLAS gemm_ex"),
    ):
        raise LibraryError(status)
    assert device.waits == 0


@pytest.mark.parametrize(
    ("status", "name"), [(7, "INVALID_VALUE"), (8, "ARCH_MISMATCH"), (15, "NOT_SUPPORTED")]
)
def test_a_refusal_is_no_fault(status: int, name: str) -> None:
    device = Device(ContextLost("nobody asks"))
    with (
        pytest.raises(IllegalSolution, match=rf"^cuBLAS gemm_ex refuses it: CUBLAS_STATUS_{name}$"),
        call(device, "cuBLAS gemm_ex"),
    ):
        raise LibraryError(status)
    assert device.waits == 0


@pytest.mark.parametrize("status", [11, 13, 14])
def test_a_failed_execution_asks_whether_the_context_is_lost(status: int) -> None:
    with pytest.raises(ContextLost, match="gone"), call(Device(ContextLost("gone")), "x"):
        raise LibraryError(status)
    with pytest.raises(DeviceLost), call(Device(DeviceLost("off the bus")), "x"):
        raise LibraryError(status)
    capturing = Device(LaunchError("waiting for the device: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"))
    with pytest.raises(LaunchError, match=r"^x: CUBLAS_STATUS_"), call(capturing, "x"):
        raise LibraryError(status)


def test_a_frameworks_error_is_its_first_line() -> None:
    device = Device()
    with (
        pytest.raises(LaunchError, match=r"^torch: RuntimeError: CUDA error: invalid$") as caught,
        call(device, "torch"),
    ):
        raise RuntimeError("CUDA error: invalid\nCompile with TORCH_USE_CUDA_DSA")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert device.waits == 1
    with pytest.raises(LaunchError, match=r"^torch: RuntimeError$"), call(device, "torch"):
        raise RuntimeError


def test_other_errors_pass() -> None:
    with pytest.raises(TypeError), call(Device(), "x"):
        raise TypeError("a mistake of ours")
    with pytest.raises(IllegalSolution), call(Device(), "x"):
        raise IllegalSolution("a rule")
    with call(Device(), "x"):
        pass


@pytest.mark.parametrize(
    ("arch", "expected"), [("sm_75", 75), ("sm_90a", 90), ("sm_120", 120), ("gfx942", 0)]
)
def test_capability(arch: str, expected: int) -> None:
    environment: Environment = replace(ENVIRONMENT, arch=arch)
    assert capability(environment) == expected
