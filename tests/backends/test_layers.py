"""Every layer is imported alone, in a process of its own: what it needs lies below it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Layer -> packages that importing it must not bring in.
LAYERS = {
    "backends.problem": ("backends.kernels", "backends.gpu", "backends.cuda", "backends.cpu"),
    "backends.archs": ("backends.kernels", "backends.gpu", "backends.cuda", "backends.cpu"),
    "backends.kernels.families": ("backends.toolchains", "backends.gpu", "backends.cuda", "backends.cpu"),
    "backends.kernels.triton.families": ("backends.toolchains", "backends.gpu", "backends.cuda", "torch"),
    "backends.toolchains.registry": ("backends.gpu", "backends.cuda", "backends.cpu", "torch", "triton"),
    "backends.gpu.device": ("backends.cuda", "backends.cpu", "backends.packages", "torch"),
    "backends.gpu.triton_family": ("backends.cuda", "backends.cpu", "backends.packages", "triton"),
    "backends.gpu.padded_family": ("backends.cuda", "backends.cpu", "backends.packages"),
    "backends.gpu.null_backend": ("backends.cuda", "backends.cpu", "backends.packages"),
    "backends.cuda.backend": (
        "backends.cpu",
        "backends.hip",
        "backends.packages",
        "backends.kernel_checks",
        "torch",
    ),
    "backends.hip.backend": (
        "backends.cuda",
        "backends.cpu",
        "backends.packages",
        "backends.kernel_checks",
        "hip",
        "torch",
    ),
    "backends.cpu.backend": ("backends.cuda", "backends.hip", "backends.gpu", "backends.kernels", "torch"),
    # backends.gpu describes the copies of padded operands; it needs no driver.
    "backends.packages.package": ("backends.cuda", "backends.cpu", "torch"),
    "backends.kernel_checks.check": ("backends.cuda", "backends.cpu", "backends.gpu", "torch"),
    "tuners.session": ("backends.cuda", "backends.cpu", "backends.gpu", "fastapi", "sqlmodel", "torch"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_imported_alone(layer: str) -> None:
    program = (
        f"import sys, {layer}\n"
        f"for one in {LAYERS[layer]!r}:\n"
        "    found = [name for name in sys.modules if name == one or name.startswith(one + '.')]\n"
        "    assert not found, f'{one} came with it: {sorted(found)[:5]}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
