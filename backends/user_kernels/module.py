"""Runs a user's Python file, in the process that owns the device, and gives the function that it defines."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.errors import LaunchError
from backends.user_kernels.integrity import References
from backends.user_kernels.source import ENTRY, UserKernel

#: Path of a source -> its module, run once a process.
_loaded: dict[Path, LoadedModule] = {}


@dataclass(frozen=True)
class LoadedModule:
    """The function, and the references as they were before the module was run."""

    function: Callable[..., Any]
    references: References


def load_module(kernel: UserKernel, path: Path, interpret_triton: bool) -> LoadedModule:
    """Runs the file at `path`, which holds the kernel's text. `interpret_triton`: Triton kernels run in
    Triton's interpreter, on the host. Raises LaunchError where the file cannot be imported or defines no
    function."""
    if path not in _loaded:
        if interpret_triton:
            os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported
        references = References()
        name = f"gemmtune_{kernel.name.replace('.', '_').replace('-', '_')}_{kernel.digest[:12]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise LaunchError(f"{kernel.file} cannot be imported from {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # Triton looks its kernels' sources up there
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # SystemExit too: whatever it raises, it is no kernel
            del sys.modules[name]
            raise LaunchError(f"{kernel.file} cannot be imported: {type(error).__name__}: {error}") from error
        function = getattr(module, ENTRY, None)
        if not callable(function):
            raise LaunchError(f"{kernel.file} defines no function {ENTRY} once it is imported")
        _loaded[path] = LoadedModule(function, references)
    return _loaded[path]


def references_of(path: Path) -> References | None:
    """The references from before the file at `path` was run; None if it was not, or is no Python."""
    found = _loaded.get(path)
    return None if found is None else found.references
