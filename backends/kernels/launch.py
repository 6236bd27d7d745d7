"""One launch of a candidate's kernel, as the device layer prepares it and a package describes it."""

from __future__ import annotations

from dataclasses import dataclass

from backends.archs import GpuArch

#: Blocks along x, y and z, or threads of a block along them.
Extent = tuple[int, int, int]


@dataclass(frozen=True)
class KernelLaunch:
    """The kernel's name, its grid and block, bytes of dynamic shared memory per block, and the cluster size
    that the kernel is compiled for (None: no clusters). `waits`: the kernel itself waits for the previous
    launch, so that it may be a programmatic dependent launch if the device supports it."""

    entry: str
    grid: Extent
    block: Extent
    shared_bytes: int = 0
    waits: bool = False
    cluster: Extent | None = None

    def needs_shared_attribute(self, arch: GpuArch) -> bool:
        """Whether the kernel's limit of dynamic shared memory must be raised before it is launched."""
        return self.shared_bytes > arch.default_shared_bytes

    def dependent(self, arch: GpuArch) -> bool:
        """Whether this is a programmatic dependent launch on the architecture."""
        return self.waits and arch.dependent_launches
