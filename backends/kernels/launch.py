"""One launch of a candidate's kernel: what the device layer makes ready, and what a package describes."""

from __future__ import annotations

from dataclasses import dataclass

from backends.archs import GpuArch

#: Blocks along x, y and z, or threads of a block along them.
Extent = tuple[int, int, int]


@dataclass(frozen=True)
class KernelLaunch:
    """The kernel's name, its blocks and their threads, bytes of dynamic shared memory of a block, and the
    blocks of a cluster that the kernel is compiled for (None: no clusters). `waits`: the kernel itself waits
    for the launch before it, so that it may be a programmatic dependent launch where the device has those."""

    entry: str
    grid: Extent
    block: Extent
    shared_bytes: int = 0
    waits: bool = False
    cluster: Extent | None = None

    def needs_shared_attribute(self, arch: GpuArch) -> bool:
        """Whether the kernel must be allowed that much shared memory before it is launched."""
        return self.shared_bytes > arch.default_shared_bytes

    def dependent(self, arch: GpuArch) -> bool:
        """Whether it is a programmatic dependent launch on this architecture."""
        return self.waits and arch.dependent_launches
