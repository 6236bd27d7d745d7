"""Finds the system's C++ compiler and runs it.

A compile runs in its own process group with a time limit, so that a hanging compiler is killed together with
its children. Flags name the ISA level rather than -march=native, since machines may share the cache.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from backends.archs import CPU_EXTENSIONS
from backends.cache import BinaryCache
from backends.cpu.driver import isa_of
from backends.errors import CompileError, CompilerMissing, StorageError
from backends.exhaustion import exhausted, says_exhausted

KERNELS = Path(__file__).parent / "kernels"
COMPILE_SECONDS = 120.0
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fno-math-errno",
    "-ffp-contract=fast",
)
_CANDIDATES = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command (CXX may hold a launcher or flags) and the first line of --version."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler | None:
    """$CXX if set, else c++, g++ or clang++ on PATH; None if --version works for none of them."""
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


def missing() -> str:
    """Why there is no compiler, and what to do about it."""
    chosen = os.environ.get("CXX")
    if chosen:
        return f"no C++ compiler: CXX={chosen!r} is none; only library candidates can run"
    return "no C++ compiler: only library candidates can run; install g++ or clang, or set CXX to one"


@lru_cache
def _find_compiler(chosen: str, path: str) -> Compiler | None:
    for name in [chosen] if chosen else _CANDIDATES:
        first, *rest = shlex.split(name)
        found = shutil.which(first, path=path)
        if found is None:
            continue
        command = (found, *rest)
        try:
            answer = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return Compiler(command, answer.stdout.split("\n", 1)[0].strip())
    return None


def target_flags(partition: str) -> tuple[str, ...]:
    """Compiler flags for an ISA level with extensions, including the kernels' vector width in bytes."""
    isa, extensions = isa_of(partition)
    if isa is None:
        return ("-DGEMMTUNE_VECTOR_BYTES=16",)
    extra = [CPU_EXTENSIONS[name] for name in extensions]
    return (*isa.flags, *extra, f"-DGEMMTUNE_VECTOR_BYTES={isa.vector_bytes}")


def kernel_sources() -> Mapping[str, str]:
    """The text of every file in kernels/, by name."""
    return {path.name: path.read_text() for path in sorted(KERNELS.glob("*.[hc]*"))}


@lru_cache(maxsize=1)
def _headers(_stamp: float) -> Mapping[str, str]:
    return kernel_sources()


def _stamp() -> float:
    return max(path.stat().st_mtime for path in KERNELS.glob("*.[hc]*"))


def compile_unit(unit: str, partition: str, cache: BinaryCache, extra: Sequence[str] = ()) -> Path:
    """The shared library of the translation unit with text `unit`, from the cache or compiled now.

    Raises CompilerMissing, CompileError (with the compiler's log), or StorageError for a full disk.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CompilerMissing(missing())
    flags = (*FLAGS, *target_flags(partition), *extra)
    key = cache.key(
        {**_headers(_stamp()), "unit.cpp": unit},
        partition,
        f"{compiler.version} {compiler.command[1:]}",
        flags,
    )
    return cache.get(key, ".so") or cache.put(key, ".so", lambda path: _compile(compiler, flags, unit, path))


def _compile(compiler: Compiler, flags: Sequence[str], unit: str, output: Path) -> None:
    command = [*compiler.command, *flags, f"-I{KERNELS}", "-x", "c++", "-", "-o", str(output)]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "TMPDIR": str(output.parent), "LC_ALL": "C"},
            )  # fmt: skip
        except BlockingIOError as error:  # the compiler was found: only a limit keeps it from starting
            raise exhausted(error) from error
        try:
            process.communicate(unit.encode(), timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise CompileError(f"{compiler.command[0]} took over {COMPILE_SECONDS:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        text = log.read().decode(errors="replace")
    if process.returncode:
        if "No space left on device" in text:
            raise StorageError(
                f"the disk of {output.parent} is full; free some space or set GEMMTUNE_CACHE_DIR"
            )
        if says_exhausted(text):
            raise exhausted(f"{compiler.command[0]}: {first_error(text)}")
        raise CompileError(
            f"{compiler.command[0]} exited with {process.returncode}: {first_error(text)}", text
        )


def first_error(log: str) -> str:
    """The first line of a compiler's log that contains "error", else its last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
