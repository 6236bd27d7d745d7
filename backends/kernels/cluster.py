"""Thread block clusters: their launch, the threads that registers are allocated for, and how many clusters
fit."""

from __future__ import annotations

from dataclasses import dataclass

from backends.kernels.family import KernelConfig

#: The largest cluster size that every device supports.
MOST_BLOCKS_OF_CLUSTER = 8


#: Warps are distributed over four schedulers, each with a quarter of the registers.
_SCHEDULED = 128


#: Multiprocessors of the part of the device (GPC) that a cluster must lie within, and how many of them larger
#: clusters can use.
_PART, _PART_FOR_CLUSTERS = 18, 16


@dataclass(frozen=True)
class ClusterConfig(KernelConfig):
    """A configuration whose blocks form clusters, `tiles` along x by `slices` along y."""

    tiles: int = 1
    slices: int = 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks along x, slices of k times groups of the batch along y, GEMMs of a group along z."""
        p = self.product
        return self.blocks, self.slices * p.batch_groups, p.batch_blocks

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """Blocks of a cluster along x, y and z; None where a cluster would be one block."""
        return None if self.tiles * self.slices == 1 else (self.tiles, self.slices, 1)

    @property
    def qualifiers(self) -> str:
        """The cluster's size for the entry point (portable.h: GEMMTUNE_CLUSTER); empty without clusters."""
        if self.cluster is None:
            return ""
        return f", GEMMTUNE_CLUSTER({self.tiles}, {self.slices})"


def scheduled_threads(threads: int) -> int:
    """Threads that a block's registers are allocated for: rounded up to an equal number for each
    scheduler."""
    return -(-threads // _SCHEDULED) * _SCHEDULED


def units_of_clusters(units: int, cluster: int) -> int:
    """Of a device's `units` multiprocessors those that clusters of `cluster` blocks can run on: each cluster
    lies within one part of the device, and large ones leave some of the part's multiprocessors out."""
    units, of_part = max(1, units), _PART_FOR_CLUSTERS // cluster * cluster
    return units if cluster <= 2 else max(cluster, units // _PART * of_part)
