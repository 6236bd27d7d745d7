"""The optional C++ extension: native/, compiled once by the user for this torch and this Python.

It is never compiled by itself. build_extension() compiles it into the cache folder, and from then on apply()
and enable() of every process load it from there. GEMMTUNE_CLIENT_EXTENSION=off leaves it out.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gemmtune.cache import default_folder
from gemmtune.torch.errors import ServingError

SETTING = "GEMMTUNE_CLIENT_EXTENSION"
_NAME = "gemmtune_extension"
_FOLDER = Path(__file__).with_name("native")
_COMPILERS = ("c++", "g++", "clang++")
#: The optimizer has little to do: half of the time to compile goes to torch's headers.
_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
_TIMEOUT_SECONDS = 600.0


class _State:
    """What this process found, once: the module, or why there is none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = False
        self.module: Any = None
        self.why = ""


_STATE = _State()


def sources() -> Sequence[Path]:
    """The files of the extension, that of the module first."""
    return [_FOLDER / "extension.cpp", *sorted(_FOLDER.glob("*.h"))]


def place() -> Path:
    """Where the extension of this torch, this Python and these sources is kept."""
    digest = hashlib.sha256()
    for file in sources():
        digest.update(file.read_bytes())
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    python = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    kind = f"torch-{torch.__version__}-cxx11abi{abi}-{python}-{digest.hexdigest()[:16]}"
    return default_folder() / "extensions" / kind / f"{_NAME}.so"


def loaded() -> Any | None:
    """The extension's module, if it was built; decided at the first call of a process."""
    with _STATE.lock:
        if not _STATE.asked:
            _STATE.asked = True
            _STATE.module, _STATE.why = _found()
        return _STATE.module


def ask_again() -> None:
    """Decides anew at the next table, by the setting and the cache folder of then."""
    with _STATE.lock:
        _STATE.asked, _STATE.module, _STATE.why = False, None, ""


def leave_out(why: str) -> None:
    """Has Python launch rows from now on."""
    with _STATE.lock:
        _STATE.module, _STATE.why = None, why


def path_in_use() -> str:
    """How calls are launched in this process, in words."""
    return "the C++ extension" if loaded() is not None else f"Python ({_STATE.why})"


def _found() -> tuple[Any | None, str]:
    setting = os.environ.get(SETTING, "on").lower()
    if setting not in ("on", "off"):
        raise ServingError(f"{SETTING} is {setting!r}; it must be on or off")
    if setting == "off":
        return None, f"{SETTING}=off"
    path = place()
    if not path.is_file():
        return None, "the C++ extension is not built: gemmtune.torch.build_extension()"
    try:
        return _imported(path), ""
    except (ImportError, OSError) as error:
        warnings.warn(
            f"gemmtune: the C++ extension {path} does not load ({error}), so that Python launches the rows; "
            "build it again: gemmtune.torch.build_extension()",
            RuntimeWarning,
            stacklevel=3,
        )
        return None, f"the C++ extension does not load: {error}"


def _imported(path: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def build_extension(compiler: str | None = None) -> Path:
    """Compiles the extension for this torch into the cache folder, which takes about half a minute, and
    returns its file; does nothing if it is there. Tables that are in use keep the path that they have; those
    that come later use the extension.

    compiler: a C++20 compiler, with options if it needs some; by default $CXX, c++, g++ or clang++. Raises
    ServingError."""
    path = place()
    if path.is_file():
        return path
    if not hasattr(torch.library, "get_kernel"):
        raise ServingError(
            f"the C++ extension needs torch.library.get_kernel; torch {torch.__version__} has none"
        )
    chosen = shlex.split(compiler or os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), ""))
    if not chosen:
        raise ServingError("there is no C++ compiler (c++, g++, clang++): install one, or pass compiler=")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fresh = Path(folder) / path.name
            _compile(chosen, fresh)
            fresh.replace(path)
    except OSError as error:
        raise ServingError(
            f"{path.parent} cannot be written ({error.strerror}): set GEMMTUNE_CACHE_DIR"
        ) from error
    with _STATE.lock:
        _STATE.asked = _STATE.module is not None
    return path


def _compile(compiler: Sequence[str], output: Path) -> None:
    from torch.utils import cpp_extension  # noqa: PLC0415  (imports setuptools)

    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    if not (Path(includes[-1]) / "Python.h").is_file():
        raise ServingError(f"{includes[-1]} has no Python.h: install Python's headers (python3-dev)")
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    command = [
        *compiler, *_FLAGS, abi, *(word for one in includes for word in ("-isystem", one)), str(sources()[0]),
        "-o", str(output), *(f"-L{one}" for one in cpp_extension.library_paths()),
        "-lc10", "-ltorch_cpu", "-ltorch_python",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServingError(f"{shlex.join(compiler)} cannot be run: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise ServingError(
            f"{shlex.join(compiler)} does not compile the C++ extension for torch {torch.__version__}:\n"
            + "\n".join(errors[:10] or done.stderr.splitlines()[-10:])
        )
