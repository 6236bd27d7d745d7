"""Notices that a user's module replaced functions by which it is timed or verified.

What is compared are references: every function of the modules below, and the methods of their classes, as
they were before the user's module was imported. The parent's own clock and references (tuners/judge/) are
what a kernel that hides its changes does not pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

#: Modules that are watched whole, by name and by prefix.
_MODULES = ("time", "gc", "pickle", "numpy", "numpy.linalg", "numpy.random", "ctypes")
_PREFIXES = ("tuners.", "backends.")
#: Of torch only what calls and checks a GEMM: it replaces many of its own functions when parts are imported.
_TORCH = (
    ("torch", ("matmul", "mm", "bmm", "addmm", "baddbmm", "equal", "allclose", "from_numpy", "as_tensor")),
    ("torch.cuda", ("Event", "Stream", "ExternalStream", "synchronize", "current_stream", "set_stream")),
)
_KINDS: dict[str, str] = {"time": "the clock", "torch.cuda": "the clock"}


class References:
    """The functions as they are now."""

    def __init__(self) -> None:
        self._found = list(_functions())

    def replaced(self) -> list[str]:
        """What was replaced since, in words: "time.perf_counter_ns (the clock)"."""
        out = []
        for owner, module, name, value in self._found:
            if _read(owner, name) is not value:
                part = f"{owner.__name__}." if isinstance(owner, type) else ""
                ours = module.startswith(_PREFIXES)
                kind = _KINDS.get(module, "the verifier" if ours else "what results are compared with")
                out.append(f"{module}.{part}{name} ({kind})")
        return out


def _functions() -> Iterator[tuple[Any, str, str, Any]]:
    """(owner, module, name, function) of everything that is watched."""
    for module_name, module in list(sys.modules.items()):
        ours = module_name.startswith(_PREFIXES)
        if module is None or not (ours or module_name in _MODULES):
            continue
        for name, value in list(vars(module).items()):
            if not callable(value) or name.startswith("__"):
                continue
            yield module, module_name, name, value
            if ours and isinstance(value, type) and value.__module__ == module_name:
                for method, function in list(vars(value).items()):
                    if callable(function):
                        yield value, module_name, method, function
    for module_name, names in _TORCH:
        if (part := sys.modules.get(module_name)) is not None:
            for name in names:
                if (value := vars(part).get(name)) is not None:
                    yield part, module_name, name, value


def _read(owner: Any, name: str) -> Any:
    return vars(owner).get(name)
