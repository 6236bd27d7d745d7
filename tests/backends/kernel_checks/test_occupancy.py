"""Occupancy against what the vendors' own rules give, worked out by hand, and against clang's own figure."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from backends.archs import GPU_ARCHS, gpu_arch
from backends.kernel_checks.check import plan
from backends.kernel_checks.occupancy import Occupancy, occupancy, waves_by_registers
from backends.kernels.headers import ROOT as HEADERS
from backends.toolchains.clang_compilers import FLAGS, compiler_for


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_bytes", "waves", "limit"),
    [
        # gfx90a and gfx942: 512 registers a lane and SIMD in granules of 8, 8 waves, 64 KiB of LDS a CU.
        ("gfx942", 256, 64, 0, 8, "threads"),
        ("gfx942", 256, 65, 0, 7, "registers"),
        ("gfx942", 256, 128, 0, 4, "registers"),
        ("gfx942", 256, 129, 0, 3, "registers"),
        ("gfx942", 256, 512, 0, 1, "registers"),
        ("gfx942", 1024, 77, 0, 4, "registers"),  # room for 24 waves, and a block has 16
        ("gfx942", 256, 64, 32768, 2, "shared memory"),
        ("gfx942", 256, 64, 32769, 1, "shared memory"),
        ("gfx942", 128, 32, 0, 8, "threads"),
        ("gfx942", 64, 32, 0, 8, "threads"),  # a single wave needs no barrier: 32 blocks
        ("gfx942", 100, 32, 512, 8, "threads"),  # two waves, one of them not whole
        # gfx950: 160 KiB, in granules of 1280 bytes.
        ("gfx950", 256, 64, 81920, 2, "shared memory"),
        ("gfx950", 256, 64, 80641, 2, "shared memory"),
        ("gfx950", 256, 64, 81921, 1, "shared memory"),
        # RDNA: 1536 registers in granules of 24, 16 waves, 128 KiB a WGP.
        ("gfx1100", 256, 96, 0, 16, "threads"),
        ("gfx1100", 256, 97, 0, 12, "registers"),
        ("gfx1201", 256, 256, 0, 4, "registers"),  # room for 20 waves, and a block has 8
        ("gfx1201", 256, 96, 65536, 4, "shared memory"),
        ("gfx1100", 64, 24, 0, 16, "threads"),
        # NVIDIA: 65,536 registers in granules of 8, 64 warps, 1 KiB of every block.
        ("sm_90", 256, 32, 0, 16, "threads"),
        ("sm_90", 256, 40, 0, 12, "registers"),
        ("sm_90", 128, 168, 0, 3, "registers"),
        ("sm_90", 128, 32, 115 * 1024, 1, "shared memory"),
        ("sm_90", 128, 32, 113 * 1024, 2, "shared memory"),
        ("sm_90", 32, 32, 0, 8, "blocks"),
        ("sm_86", 1024, 64, 0, 8, "threads"),
        # More than there is.
        ("gfx942", 256, 64, 65537, 0, "shared memory"),
        ("gfx942", 1024, 256, 0, 0, "registers"),
    ],
)
def test_occupancy_by_hand(
    arch: str, threads: int, registers: int, shared_bytes: int, waves: float, limit: str
) -> None:
    assert occupancy(GPU_ARCHS[arch], threads, registers, shared_bytes) == Occupancy(waves, limit)


@pytest.mark.clang
@pytest.mark.parametrize("arch", ["gfx90a", "gfx950", "gfx1100"])
def test_registers_limit_waves_as_clang_says(arch: str, tmp_path: Path) -> None:
    """Its remark knows registers, and not the launch's shared memory."""
    compiler, row = compiler_for(arch), gpu_arch("hip", arch)
    families = ["naive", "skinny", "vectorized", "small-batch"]
    found = set()
    for one in plan(arch, families, 4).candidates:
        flags = [f"--offload-arch={arch}", f"-DGEMMTUNE_WARP={row.warp}", f"-I{HEADERS}"]
        command = [*compiler.clang, *FLAGS, *flags, "-Rpass-analysis=kernel-resource-usage", "-"]
        done = subprocess.run(
            [*command, "-o", str(tmp_path / "unit.o")],
            input=one.text,
            text=True,
            capture_output=True,
            check=True,
        )
        (remarks,) = re.findall(r"Function Name: gemm \[.*?(?=Function Name|\Z)", done.stderr, re.DOTALL)
        said = {
            name: int(value)
            for name, value in re.findall(r"remark: +(VGPRs|AGPRs|Occupancy)(?: \[\S+\])?: (\d+)", remarks)
        }
        # gfx90a and later: AGPRs begin at a multiple of four.
        taken = said["VGPRs"]
        if said.get("AGPRs"):
            taken = -(-taken // 4) * 4 + said["AGPRs"]
        assert waves_by_registers(row, taken) == said["Occupancy"], (one.solution.id, said)
        found.add(said["Occupancy"])
    assert len(found) > 1
