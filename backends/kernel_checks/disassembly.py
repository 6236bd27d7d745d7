"""Counts the matrix instructions in a compiled kernel with its vendor's disassembler: llvm-objdump for AMD
(Debian's, ROCm's, or any other), nvdisasm for NVIDIA (the CUDA toolkit's, or the one in Triton's wheel).

Each llvm-objdump is asked which processors it knows: LLVM 19 does not know gfx950, and aborts on its code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from backends.archs import GPU_TARGETS
from backends.errors import CompilerMissing

#: Debian's versioned names, in the order of preference.
_VERSIONS = range(19, 26)
_SECONDS = 60.0
#: MFMA and its sparse form on CDNA, WMMA and its sparse form on RDNA.
_AMD = re.compile(r"^\s+(v_s?(?:mfmac?|wmmac?)_\w+)", re.MULTILINE)
#: NVIDIA's tensor cores: of a warp (HMMA, IMMA, ...), of a warp group (HGMMA, ...), of Blackwell (UTC*MMA).
_NVIDIA = re.compile(r"\s((?:[HIDBQO]MMA|[HIBQ]GMMA|UTC\w*MMA)(?:\.[\w.]+)?)\s")
_NO_OBJDUMP = "llvm-objdump is not installed: apt-get install llvm-19, or set ROCM_PATH"
_NO_NVDISASM = "nvdisasm is not installed: it comes with the CUDA toolkit and with Triton"


def missing(arch: str) -> str | None:
    """Why code for an architecture cannot be disassembled here, and what to install; None if it can."""
    try:
        _command(GPU_TARGETS[arch].name)
    except CompilerMissing as error:
        return str(error)
    return None


def matrix_instructions(binary: bytes, entry: str, arch: str) -> Mapping[str, int]:
    """Matrix instruction -> how often the kernel `entry` of a code object or cubin has it, sorted by name;
    empty if it has none. Raises CompilerMissing if there is no disassembler for the architecture, ValueError
    if it does not read the binary."""
    name = GPU_TARGETS[arch].name
    command = _command(name)
    with tempfile.NamedTemporaryFile(prefix="gemmtune-", suffix=".o") as file:
        file.write(binary)
        file.flush()
        if GPU_TARGETS[arch].vendor == "cuda":
            text = _section(_run([command, "-c", file.name], arch), entry)
            found = _NVIDIA.findall(text)
        else:
            text = _run(
                [command, "-d", f"--disassemble-symbols={entry}", "--no-show-raw-insn", file.name], arch
            )
            if f"<{entry}>:" not in text:
                raise ValueError(f"{command} finds no kernel {entry} in the code object")
            found = _AMD.findall(text)
    return dict(sorted(Counter(found).items()))


def _section(text: str, entry: str) -> str:
    """The code of one kernel in nvdisasm's listing."""
    start = re.search(rf"^\.text\.{re.escape(entry)}:", text, re.MULTILINE)
    if start is None:
        raise ValueError(f"nvdisasm finds no kernel {entry} in the cubin")
    end = re.search(r"^\.text\.", text[start.end() :], re.MULTILINE)
    return text[start.end() :] if end is None else text[start.end() : start.end() + end.start()]


def _run(command: list[str], arch: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{command[0]} does not disassemble code for {arch}: {error}") from error
    if done.returncode:
        first = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise ValueError(f"{command[0]} does not disassemble code for {arch}: {first or done.returncode}")
    return done.stdout


@lru_cache(maxsize=64)
def _command(name: str) -> str:
    """The disassembler for an architecture. Raises CompilerMissing."""
    if name.startswith("sm_"):
        found = next((one for one in _nvdisasms() if one), None)
        if found is None:
            raise CompilerMissing(_NO_NVDISASM)
        return found
    tried = [one for one in _objdumps() if one]
    if not tried:
        raise CompilerMissing(_NO_OBJDUMP)
    for one in tried:
        if name in _processors(one):
            return one
    names = ", ".join(dict.fromkeys(Path(one).name for one in tried))
    raise CompilerMissing(f"{names} does not know {name}: install a later LLVM")


def _objdumps() -> Iterator[str | None]:
    for number in _VERSIONS:
        yield shutil.which(f"llvm-objdump-{number}")
    for root in (os.environ.get("ROCM_PATH"), os.environ.get("ROCM_HOME"), "/opt/rocm"):
        for folder in ("llvm/bin", "lib/llvm/bin"):
            yield shutil.which(str(Path(root, folder, "llvm-objdump"))) if root else None
    yield shutil.which("llvm-objdump")


def _nvdisasms() -> Iterator[str | None]:
    yield shutil.which("nvdisasm")
    yield shutil.which(str(Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda", "bin", "nvdisasm")))
    try:
        spec = find_spec("triton")  # the package is not imported
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield shutil.which(str(Path(place, "backends/nvidia/bin/nvdisasm")))


@lru_cache(maxsize=16)
def _processors(objdump: str) -> frozenset[str]:
    """The AMD processors that an llvm-objdump lists; empty if it lists none."""
    # It lists them while it opens a file of AMD's, however short.
    with tempfile.NamedTemporaryFile(prefix="gemmtune-", suffix=".o") as file:
        file.write(_EMPTY)
        file.flush()
        command = [objdump, "-d", "--mcpu=help", "--triple=amdgcn-amd-amdhsa", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return frozenset()
    return frozenset(re.findall(r"^\s+(gfx\w+)\s+- Select", done.stdout + done.stderr, re.MULTILINE))


#: An ELF file of AMD's without sections.
_EMPTY = (
    b"\x7fELF\x02\x01\x01\x40\x04".ljust(16, b"\0")
    + (3).to_bytes(2, "little") + (224).to_bytes(2, "little") + (1).to_bytes(4, "little")
    + bytes(24) + bytes(4) + (64).to_bytes(2, "little") + bytes(10)
)  # fmt: skip
