"""One exception tree. A message says what is wrong, with which value, and what to do.

A *candidate* that fails is not an exception but a recorded outcome (see outcome.py); these are the
faults that end a request.
"""

from __future__ import annotations

from collections.abc import Sequence


class GemmtuneError(Exception):
    """Base of every error gemmtune raises on purpose."""


class InvalidProblem(GemmtuneError, ValueError):
    """The problem describes no GEMM that can be run. `field` names the part at fault."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownDevice(GemmtuneError, LookupError):
    """The selector matches no device here. `available` lists the device classes that exist."""

    def __init__(self, selector: str, available: Sequence[str], notes: Sequence[str] = ()) -> None:
        listed = ", ".join(available) if available else "none"
        why = "".join(f"; {note}" for note in notes)
        super().__init__(f"no device matches {selector!r}; available: {listed}{why}")
        self.selector = selector
        self.available = tuple(available)


class AmbiguousDevice(GemmtuneError, LookupError):
    """The selector matches several device classes (or devices' UUIDs). `classes` lists them."""

    def __init__(self, selector: str, classes: Sequence[str], what: str = "device classes") -> None:
        super().__init__(
            f"device {selector!r} matches {len(classes)} {what}: {', '.join(classes)}; name one of them"
        )
        self.selector = selector
        self.classes = tuple(classes)


class UnsupportedProblem(GemmtuneError, ValueError):
    """The backend has no way to run this problem (its types, epilogue or scaling)."""


class DeviceMemoryExceeded(GemmtuneError, MemoryError):
    """The operands need more than the stated share of the device's memory."""


class DeviceError(GemmtuneError):
    """A device or its driver refused an operation that no candidate is to blame for."""


class DeviceLost(DeviceError):
    """The device is gone, in use by others alone, or in a state that only its administrator can mend:
    nothing more can be measured here, and what was to be measured is as it was."""


class CompilerMissing(GemmtuneError):
    """No usable compiler was found."""


class CompileError(GemmtuneError):
    """The compiler refused a candidate. `log` holds what it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class LaunchError(GemmtuneError):
    """A kernel or a library call answered an error status."""


class ContextLost(LaunchError):
    """A fault on the device ended this process's use of it: only another process can go on."""


class NoBinary(GemmtuneError, LookupError):
    """The solution is none of the kernels that are compiled to a binary for others to launch."""


class IllegalSolution(GemmtuneError):
    """A library refuses this configuration for this problem; the message is the rule."""


class StorageError(GemmtuneError, OSError):
    """A file could not be written or read (a full disk, a folder without permission)."""


class ReadError(GemmtuneError, ValueError):
    """An input file cannot be read at all (single bad lines are reported, not raised)."""
