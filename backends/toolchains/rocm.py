"""Where ROCm's shared libraries are, in the order in which hip-python looks for them.

hip-python opens the unversioned name (libamdhip64.so), which ROCm's development packages bring. Nothing here
opens a library: a search answers in well under a millisecond, and a machine without ROCm gets a reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

#: Where Linux distributions put libraries that the loader finds by name.
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib", "/lib64", "/lib")
_CACHE = Path("/etc/ld.so.cache")


def rocm_path() -> Path:
    """ROCM_PATH, ROCM_HOME or /opt/rocm, whether it exists or not."""
    return Path(os.environ.get("ROCM_PATH") or os.environ.get("ROCM_HOME") or "/opt/rocm")


def folders() -> list[Path]:
    """The folders that are searched, in order; those of the loader last."""
    return [*_own_folders(), *_loader_folders()]


def _own_folders() -> Iterator[Path]:
    try:
        spec = find_spec("_rocm_sdk_core")  # ROCm's wheels
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place, "lib")
    yield rocm_path() / "lib"


def _loader_folders() -> Iterator[Path]:
    yield from (Path(one) for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one)
    yield from (Path(one) for one in _SYSTEM)


def find_library(name: str) -> Path | None:
    """The file that hip-python opens as `name` (amdhip64, hiprtc, hipblaslt, rocblas); the bare file name
    where only the loader's cache has it; None where it is not installed."""
    file = f"lib{name}.so"
    for folder in folders():
        if (folder / file).exists():
            return folder / file
    return Path(file) if f"{file}\0".encode() in _loader_cache() else None


@lru_cache(maxsize=1)
def _loader_cache() -> bytes:
    try:
        return _CACHE.read_bytes()
    except OSError:
        return b""


def why_missing(name: str) -> str:
    """Why a library is not found: a versioned file without its unversioned name, or where it was sought."""
    file = f"lib{name}.so"
    for folder in folders():
        versioned = sorted(folder.glob(f"{file}.*")) if folder.is_dir() else []
        if versioned:
            return (
                f"{versioned[0]} is there, but not {file}, the name that hip-python opens: install ROCm's "
                f"development package, or link {folder / file} to it"
            )
    return f"{file} not found; searched {', '.join(map(str, folders()))} (ROCM_PATH names another ROCm)"


def rocm_version() -> str | None:
    """ROCm's release as its own file says it ("7.0.2-56"), None where there is no such file."""
    for name in (".info/version", ".info/version-dev"):
        try:
            return (rocm_path() / name).read_text().strip() or None
        except OSError:
            continue
    return None
