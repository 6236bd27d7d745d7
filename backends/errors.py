"""The exception tree. A message says what is wrong, with which value, and what to do.

A failing *candidate* is a recorded outcome (see outcome.py); these exceptions end a request.
"""

from __future__ import annotations

from collections.abc import Sequence


class GemmtuneError(Exception):
    """Base of every error gemmtune raises on purpose."""


class InvalidProblem(GemmtuneError, ValueError):
    """The problem does not describe a GEMM that can be run. `field` names the field at fault."""

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
    """The selector matches several device classes (or several device UUIDs). `classes` lists them."""

    def __init__(self, selector: str, classes: Sequence[str], what: str = "device classes") -> None:
        super().__init__(
            f"device {selector!r} matches {len(classes)} {what}: {', '.join(classes)}; name one of them"
        )
        self.selector = selector
        self.classes = tuple(classes)


class UnsupportedProblem(GemmtuneError, ValueError):
    """The backend has no way to run this problem (its types, epilogue or scaling)."""


class DeviceMemoryExceeded(GemmtuneError, MemoryError):
    """The operands need more than the policy's share of the device's memory."""


class DeviceError(GemmtuneError):
    """A device or driver operation failed, and no candidate is to blame."""


class DeviceLost(DeviceError):
    """The device is gone, held exclusively by another process, or in a state that only its administrator can
    repair. Nothing more can be measured here; problems that were waiting stay unmeasured."""


class ResourcesExhausted(DeviceLost):
    """This process can start no more processes or threads, or gets no memory. No problem and no candidate is
    at fault."""


class CompilerMissing(GemmtuneError):
    """No usable compiler was found."""


class CompileError(GemmtuneError):
    """The compiler rejected a candidate. `log` holds the compiler's output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class NotCompiled(GemmtuneError, LookupError):
    """The cache holds no binary of the candidate yet, and the caller asked that none be compiled."""


class LaunchError(GemmtuneError):
    """A kernel or a library call returned an error status."""


class ContextLost(LaunchError):
    """A device fault made this process's context unusable; only a new process can continue."""


class NoBinary(GemmtuneError, LookupError):
    """The solution has no kernel binary that other programs could launch."""


class IllegalSolution(GemmtuneError):
    """A library refuses this configuration, or it is illegal for this problem; the message is the rule."""


class StorageError(GemmtuneError, OSError):
    """A file could not be written or read (full disk, missing permission)."""


class ReadError(GemmtuneError, ValueError):
    """An input file cannot be read at all (single malformed lines are reported, not raised)."""


class MissingExtra(GemmtuneError):
    """An optional package is not installed; the message says how to install it."""
