"""What a compiler of NVIDIA's hands to the assembler, and what every kernel's text must keep to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from backends.kernels.headers import ROOT, included
from backends.toolchains.nvrtc import nvrtc

WAIT, EARLY = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
#: What reads or writes memory that another launch may write or read: no parameter, and no shared memory.
TOUCHES = re.compile(r"\b(ld|st|red|atom|cp\.async)\.(?!param|shared|commit|wait)\S*")


def entries(text: str) -> dict[str, str]:
    """The text of each entry point of a module in PTX."""
    _, *found = text.split(".visible .entry ")
    return {entry.split("(")[0].strip(): entry for entry in found}


def compiled(
    unit: str, arch: str, roots: Sequence[Path] = (ROOT,), flags: Sequence[str] = ()
) -> dict[str, str]:
    """NVRTC's text of each entry point of a unit of CUDA."""
    texts = included(unit, "cuda", roots)
    api = nvrtc()
    _, program = api.nvrtcCreateProgram(
        unit.encode(), b"unit.cu", len(texts), [text.encode() for text in texts.values()],
        [name.encode() for name in texts],
    )  # fmt: skip
    options = [f"--gpu-architecture={arch.replace('sm', 'compute')}", "--std=c++17", *flags]
    done = api.nvrtcCompileProgram(program, len(options), [one.encode() for one in options])
    assert done[0].name == "NVRTC_SUCCESS"
    text = bytes(api.nvrtcGetPTXSize(program)[1])
    api.nvrtcGetPTX(program, text)
    api.nvrtcDestroyProgram(program)
    return entries(text.decode())


def waits_first(entry: str) -> None:
    """Asserts that every thread waits once for the launch before: none has ended till then, none has read or
    written what another launch may write or read, and nothing is read later by the path of what no launch
    changes."""
    assert entry.count(WAIT) == 1
    before, after = entry.split(WAIT)
    assert not TOUCHES.search(before), TOUCHES.search(before)
    assert not re.search(r"\b(ret|exit|trap)\b", before)
    assert TOUCHES.search(after)
    assert re.search(r"\bret;", after)
    assert "ld.global.nc" not in entry
