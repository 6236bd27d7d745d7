"""The CPU of this machine, as gemmtune's service names it (backends/cpu/driver.py; a test compares both)."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence

from gemmtune.device import DeviceClass, slug


def device_class() -> DeviceClass:
    """The class of this machine's CPU, with the cores that this process may use."""
    return DeviceClass("cpu", platform.machine(), slug(_product()), _cores())


def flags() -> frozenset[str]:
    """The CPU's extensions, as /proc/cpuinfo names them."""
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())


def lacks(partition: str) -> Sequence[str]:
    """Extensions that binaries of an ISA level ("x86-64-v4+avx512_bf16") use and this CPU lacks, by the
    level's and the extensions' names."""
    level, *extensions = partition.split("+")
    mine = flags()
    missing = [name for name in extensions if name not in mine]
    wanted = _LEVELS.get(level, frozenset())
    return [*([level] if not wanted <= mine else []), *missing]


_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_LEVELS = {
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _cpuinfo(name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else ""


def _product() -> str:
    product = _cpuinfo("model name") or platform.processor() or platform.machine()
    product = re.sub(r"\((R|TM|r|tm)\)|\bCPU\b|@.*$|\d+-Core Processor", " ", product)
    return " ".join(product.split())


def _cores() -> int:
    """Cores of the affinity mask, at most as many as a container's quota amounts to."""
    cores = len(os.sched_getaffinity(0))
    words = _read("/sys/fs/cgroup/cpu.max").split()
    if len(words) != 2 or not words[0].isdigit():
        return cores
    return min(cores, max(1, round(int(words[0]) / int(words[1]))))
