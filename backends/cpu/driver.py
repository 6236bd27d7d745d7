"""Reads this CPU's product, ISA level, cores, caches, memory and disturbances from the operating system.

Reads Linux's /proc and /sys directly; a missing file counts as empty and is never an error.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from backends.archs import CPU_EXTENSIONS, CPU_ISAS, CpuIsa, cpu_isa

#: Assumed if /sys has no cache sizes (some containers hide them).
DEFAULT_CACHE_BYTES = 32 * 2**20
#: One involuntary context switch per this time is the background noise of a quiet machine.
SWITCH_SECONDS = 5e-3
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _cpuinfo(name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else ""


@dataclass(frozen=True)
class CpuInfo:
    """This machine's CPU as this process may use it."""

    product: str
    machine: str
    flags: frozenset[str]
    cores: tuple[int, ...]
    memory_bytes: int
    cache_bytes: int
    uuid: str

    @property
    def isa(self) -> CpuIsa | None:
        """The ISA level, None for a machine that archs.py does not list."""
        return cpu_isa(self.machine, self.flags)

    @property
    def extensions(self) -> tuple[str, ...]:
        """Extensions beyond the ISA level that the kernels can use."""
        if self.isa is None or self.isa.vector_bytes < 64:
            return ()
        return tuple(name for name in CPU_EXTENSIONS if name in self.flags)

    @property
    def partition(self) -> str:
        """ISA level and extensions in one word: x86-64-v4+avx512_bf16."""
        level = self.isa.name if self.isa else self.machine
        return "+".join([level, *self.extensions])


def isa_of(partition: str) -> tuple[CpuIsa | None, tuple[str, ...]]:
    """The inverse of CpuInfo.partition: (level, extensions); (None, ()) for a level not listed."""
    level, *extensions = partition.split("+")
    row = next((row for row in CPU_ISAS if row.name == level), None)
    return row, tuple(extensions)


def read_cpu() -> CpuInfo:
    """Reads this machine. `cores` are the cores in the process's affinity mask, limited to the number that a
    container's quota allows."""
    flags = _cpuinfo("flags") or _cpuinfo("Features")
    product = _cpuinfo("model name") or platform.processor() or platform.machine()
    product = re.sub(r"\((R|TM|r|tm)\)|\bCPU\b|@.*$|\d+-Core Processor", " ", product)
    cores = tuple(sorted(os.sched_getaffinity(0)))[: _core_quota()]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    identity = _read("/etc/machine-id").strip() or platform.node()
    uuid = hashlib.sha256(f"{identity}:{product}:{memory}".encode()).hexdigest()[:32]
    return CpuInfo(
        product=" ".join(product.split()),
        machine=platform.machine(),
        flags=frozenset(flags.split()),
        cores=cores,
        memory_bytes=_memory_limit(memory),
        cache_bytes=_cache_bytes(cores),
        uuid=f"CPU-{uuid}",
    )


def _core_quota() -> int | None:
    """The number of cores that a container's CPU quota amounts to, at least one; None without a quota."""
    words = _read("/sys/fs/cgroup/cpu.max").split()
    if len(words) != 2 or not words[0].isdigit():
        return None
    return max(1, round(int(words[0]) / int(words[1])))


def _memory_limit(physical: int) -> int:
    """Physical memory in bytes, or the container's limit if that is smaller."""
    text = _read("/sys/fs/cgroup/memory.max").strip()
    return min(physical, int(text)) if text.isdigit() else physical


def _cache_bytes(cores: tuple[int, ...]) -> int:
    """Total size in bytes of the last-level caches of `cores`, each counted once."""
    caches = {}
    for core in cores:
        folder = f"/sys/devices/system/cpu/cpu{core}/cache"
        shared = [_read(f"{folder}/index{index}/shared_cpu_list").strip() for index in range(8)]
        last = max((i for i, text in enumerate(shared) if text), default=0)
        caches[shared[last]] = _largest_cache(core)
    return sum(caches.values())


def _largest_cache(core: int) -> int:
    sizes = []
    for index in range(8):
        text = _read(f"/sys/devices/system/cpu/cpu{core}/cache/index{index}/size").strip()
        found = re.fullmatch(r"(\d+)([KMG]?)", text)
        if found:
            sizes.append(int(found.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found.group(2)])
    return max(sizes, default=DEFAULT_CACHE_BYTES)


def free_memory_bytes() -> int:
    """Bytes that can be allocated without swapping (MemAvailable, within a container's limit)."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    free = int(found.group(1)) * 1024 if found else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    used = _read("/sys/fs/cgroup/memory.current").strip()
    return min(free, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else free


@dataclass(frozen=True)
class Disturbance:
    """Counters of CPU time lost to others: this process's involuntary context switches, and the time stolen
    by the hypervisor in clock ticks, over all cores."""

    switches: int
    steal: int

    @classmethod
    def now(cls) -> Disturbance:
        """The current counters."""
        first = _read("/proc/stat").split("\n", 1)[0].split()
        steal = int(first[8]) if len(first) > 8 else 0
        return cls(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, steal)

    def since(self, earlier: Disturbance, seconds: float) -> str:
        """Describes the disturbances in the `seconds` since `earlier`; "" if they are negligible: one switch
        per SWITCH_SECONDS, or stolen time up to 1%, does not move a median."""
        words = []
        if self.switches - earlier.switches > seconds / SWITCH_SECONDS:
            words.append(f"{self.switches - earlier.switches} involuntary switches")
        if (self.steal - earlier.steal) * TICK_SECONDS > 0.01 * seconds:
            words.append(f"{self.steal - earlier.steal} ticks stolen")
        return ", ".join(words)
