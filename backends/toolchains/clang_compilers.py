"""Finds the clang compilers of this machine that compile HIP, and asks each which architectures it knows.

Versions are not compared: Debian's names, ROCm's own compiler, a plain clang and the one in the ziglang wheel
all compile the same kernels, but clang 19 does not know gfx950 and a distribution's backport may. A probe
compiles and links an empty kernel; its answer is kept for the life of the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from backends.errors import CompileError, CompilerMissing
from backends.exhaustion import exhausted, says_exhausted

#: Debian's versioned names, in the order of preference.
_VERSIONS = range(19, 26)
_ROCM_FOLDERS = ("llvm/bin", "lib/llvm/bin")
#: Flags of every compilation.
FLAGS = (
    "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-O2", "-std=c++17",
    # Else the code object exports a symbol named by a hash of paths, and differs from run to run.
    "-fuse-cuid=none",
    # The last action wins: an object instead of assembly. -c would link it with the linker of clang's choice.
    "-S", "-Xclang", "-emit-obj",
)  # fmt: skip
_LINK = ("-shared", "--no-undefined")
_PROBE = 'extern "C" __attribute__((global)) void probe(float* x) { *x = 1.0f; }\n'
PROBE_SECONDS = 30.0
#: What to install where there is no compiler, and where none knows an architecture.
_INSTALL = "apt-get install clang-19 lld-19, set ROCM_PATH, or pip install ziglang"
_INSTALL_LATER = "install a later clang with its lld, set ROCM_PATH, or pip install ziglang"


class _Unanswered(CompileError):
    """The compiler gave no answer this time: it does not start, or takes too long."""


@dataclass(frozen=True)
class ClangCompiler:
    """A clang and a linker for AMDGPU code objects: display name, and both commands."""

    name: str
    clang: tuple[str, ...]
    linker: tuple[str, ...]

    @property
    def version(self) -> str:
        """The first line of --version. Raises CompilerMissing if the compiler does not run."""
        return _version(self.clang)

    @property
    def build(self) -> str:
        """The versions of compiler and linker, for cache keys."""
        return f"{self.version}, {_version(self.linker)}"

    def compile(self, text: str, arch: str, flags: Sequence[str], path: Path, seconds: float) -> None:
        """Writes the code object of a unit to `path`. Raises CompileError with the log."""
        with tempfile.TemporaryDirectory(prefix="gemmtune-clang-") as folder:
            target = str(Path(folder, "unit.o"))
            command = [*self.clang, *FLAGS, f"--offload-arch={arch}", *flags, "-", "-o", target]
            _run(self.name, command, text, seconds)
            _run(Path(self.linker[-1]).name, [*self.linker, *_LINK, target, "-o", str(path)], "", seconds)


def _run(name: str, command: Sequence[str], text: str, seconds: float) -> None:
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Unanswered(f"{name} took over {seconds:.0f} s") from None
    except BlockingIOError as error:  # a limit of this machine, which says nothing about the unit
        raise exhausted(error) from error
    except OSError as error:
        raise _Unanswered(f"{name} does not run: {error}") from error
    if done.returncode and says_exhausted(done.stderr):
        raise exhausted(f"{name}: {done.stderr.strip()[-200:]}")
    if done.returncode:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), f"exit code {done.returncode}")
        raise CompileError(f"{name} refuses the unit: {first}", done.stderr)


@lru_cache(maxsize=64)
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"{' '.join(command)} does not answer to --version: {error}") from error
    return done.stdout.partition("\n")[0].strip()


# ---- what is installed -------------------------------------------------------------------------------


def installed() -> list[ClangCompiler]:
    """The compilers of this machine that have a linker, preferred ones first. None of them is run."""
    return [one for one in _compilers() if one.linker]


def _compilers() -> Iterator[ClangCompiler]:
    """Every clang, with the linker of its own version or else any."""
    for name, clang, own in _candidates():
        linker = next((found for found in (own, *_linkers()) if found), ())
        yield ClangCompiler(name, clang, linker)


def _candidates() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """(display name, command, the linker that comes with it)."""
    for number in _VERSIONS:
        if clang := _which(f"clang-{number}"):
            yield f"clang-{number}", clang, _which(f"ld.lld-{number}")
    for folder in _rocm_folders():
        if clang := _which(str(folder / "clang")):
            yield clang[0], clang, _which(str(folder / "ld.lld"))
    if clang := _which("clang"):
        yield "clang", clang, _which("ld.lld")
    if zig := _zig():
        yield "ziglang's clang", (zig, "clang"), (zig, "ld.lld")


def _linkers() -> Iterator[tuple[str, ...]]:
    for number in _VERSIONS:
        yield _which(f"ld.lld-{number}")
    for folder in _rocm_folders():
        yield _which(str(folder / "ld.lld"))
    yield _which("ld.lld")
    if zig := _zig():
        yield zig, "ld.lld"


def _which(name: str) -> tuple[str, ...]:
    """The command of a program, empty if it is not installed."""
    found = shutil.which(name)
    return (found,) if found else ()


def _rocm_folders() -> list[Path]:
    roots = [os.environ.get("ROCM_PATH"), os.environ.get("ROCM_HOME"), "/opt/rocm"]
    return [Path(root, folder) for root in dict.fromkeys(roots) if root for folder in _ROCM_FOLDERS]


def _zig() -> str | None:
    """The program inside the ziglang wheel. The package is not imported."""
    try:
        spec = find_spec("ziglang")
    except (ImportError, ValueError):
        return None
    places = (spec.submodule_search_locations or []) if spec else []
    return next((found for place in places if (found := shutil.which(str(Path(place, "zig"))))), None)


# ---- which one compiles for an architecture ----------------------------------------------------------


def compiler_for(arch: str) -> ClangCompiler:
    """The first compiler that knows the architecture. Raises CompilerMissing, which says what to install."""
    if (why := missing()) is not None:
        raise CompilerMissing(why)
    reasons = []
    for one in installed():
        try:
            refusal = _refusal(one, arch)
        except _Unanswered as error:
            refusal = str(error)
        if not refusal:
            return one
        reasons.append(refusal)
    raise CompilerMissing(f"no compiler here knows {arch} ({'; '.join(reasons)}): {_INSTALL_LATER}")


def missing() -> str | None:
    """Why there is no compiler at all, and what to install; None if there is one."""
    if installed():
        return None
    alone = next((one.name for one in _compilers()), None)
    if alone is None:
        return f"kernels for AMD's GPUs need clang with lld, and neither is installed: {_INSTALL}"
    return f"{alone} is installed, but no lld, which links code objects for AMD's GPUs: {_INSTALL}"


@lru_cache(maxsize=256)
def _refusal(compiler: ClangCompiler, arch: str) -> str:
    """Why a compiler does not make code objects for an architecture; "" if it does. Raises _Unanswered, which
    is not kept."""
    with tempfile.TemporaryDirectory(prefix="gemmtune-clang-") as folder:
        try:
            compiler.compile(_PROBE, arch, (), Path(folder, "probe.hsaco"), PROBE_SECONDS)
        except _Unanswered:
            raise
        except CompileError as error:
            # "...: error: invalid target ID 'gfx950'; format is a processor name followed by ..."
            return str(error).partition(";")[0]
    return ""
