"""Library errors in our words, and what library families share."""

from __future__ import annotations

import pytest

from backends.errors import ContextLost, DeviceLost, IllegalSolution, LaunchError
from backends.gpu.library import WORDS, LibraryCall, LibraryError, LibraryStatuses, Waits
from backends.gpu.library import call as library_call

STATUSES = LibraryStatuses(
    "BLAS_",
    {1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 15: "NOT_SUPPORTED"},
    refusals=frozenset({7, 8, 15}), executions=frozenset({11, 13, 14}), module="bindings",
)  # fmt: skip


class BindingsError(Exception):
    """What a package's bindings raise: its own exception, with the status."""

    __module__ = "bindings.blas"

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"status {status}")


def call(device: Waits, what: str) -> LibraryCall:
    return library_call(device, what, STATUSES)


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
        pytest.raises(LaunchError, match=rf"^cuBLAS gemm_ex: BLAS_{name}$"),
        call(device, "cuBLAS gemm_ex"),
    ):
        raise BindingsError(status)
    assert device.waits == 0


@pytest.mark.parametrize(
    ("status", "name"), [(7, "INVALID_VALUE"), (8, "ARCH_MISMATCH"), (15, "NOT_SUPPORTED")]
)
def test_a_refusal_is_no_fault(status: int, name: str) -> None:
    device = Device(ContextLost("nobody asks"))
    with (
        pytest.raises(IllegalSolution, match=rf"^cuBLAS gemm_ex refuses it: BLAS_{name}$"),
        call(device, "cuBLAS gemm_ex"),
    ):
        raise BindingsError(status)
    assert device.waits == 0


@pytest.mark.parametrize("raised", [BindingsError(13), LibraryError(13)])
def test_errors_of_bindings_and_of_our_own_calls_are_alike(raised: Exception) -> None:
    with pytest.raises(LaunchError, match=r"^x: BLAS_13$"), call(Device(), "x"):
        raise raised
    with pytest.raises(BindingsError), library_call(Device(), "x", WORDS):
        raise BindingsError(13)


@pytest.mark.parametrize("status", [11, 13, 14])
def test_a_failed_execution_asks_whether_the_context_is_lost(status: int) -> None:
    with pytest.raises(ContextLost, match="gone"), call(Device(ContextLost("gone")), "x"):
        raise BindingsError(status)
    with pytest.raises(DeviceLost), call(Device(DeviceLost("off the bus")), "x"):
        raise BindingsError(status)
    capturing = Device(LaunchError("waiting for the device: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"))
    with pytest.raises(LaunchError, match=r"^x: BLAS_"), call(capturing, "x"):
        raise BindingsError(status)


def test_a_frameworks_error_is_its_first_line() -> None:
    device = Device()
    with (
        pytest.raises(LaunchError, match=r"^torch: RuntimeError: CUDA error: invalid$") as caught,
        library_call(device, "torch", WORDS),
    ):
        raise RuntimeError("CUDA error: invalid\nCompile with TORCH_USE_CUDA_DSA")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert device.waits == 1
    with pytest.raises(LaunchError, match=r"^torch: RuntimeError$"), library_call(device, "torch", WORDS):
        raise RuntimeError


def test_other_errors_pass() -> None:
    with pytest.raises(TypeError), call(Device(), "x"):
        raise TypeError("a mistake of ours")
    with pytest.raises(IllegalSolution), call(Device(), "x"):
        raise IllegalSolution("a rule")
    with call(Device(), "x"):
        pass
