"""How many warps (wavefronts) of a kernel a multiprocessor holds at a time, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from backends.archs import GpuArch


@dataclass(frozen=True)
class Occupancy:
    """Resident warps (wavefronts) per SIMD, the mean of a unit's SIMDs, and the resource that limits them:
    registers, shared memory, threads or blocks."""

    waves: float
    limit: str


def waves_by_registers(arch: GpuArch, registers: int) -> int:
    """Warps that one SIMD has registers for. `registers` is what a thread takes, accumulation registers
    included."""
    most = arch.unit_threads // arch.simds // arch.warp
    granule = arch.register_granule
    taken = max(1, -(-registers // granule)) * granule * arch.warp
    return min(most, arch.unit_registers // arch.simds // taken)


def occupancy(arch: GpuArch, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of blocks of `threads` threads, each with `registers` registers, and `shared_bytes` of
    shared memory per block. Only whole blocks are resident. 0 waves: not even one block fits."""
    waves = -(-threads // arch.warp)
    granule = arch.shared_granule
    shared = -(-(shared_bytes + arch.reserved_shared_bytes) // granule) * granule
    # The first of several equal limits is named.
    room = {
        "threads": arch.unit_threads // arch.warp // waves,
        "registers": arch.simds * waves_by_registers(arch, registers) // waves,
    }
    if shared:
        room["shared memory"] = arch.unit_shared_bytes // shared
    # A workgroup of one wavefront takes no barrier, of which an AMD unit has as many as blocks.
    if waves > 1 or arch.vendor != "hip":
        room["blocks"] = arch.unit_blocks
    limit = min(room, key=lambda name: room[name])
    return Occupancy(room[limit] * waves / arch.simds, limit)
