"""The process that looks for AMD GPUs and their libraries, and prints what it found as JSON.

It is a process of its own because ROCm's libraries may exit or abort, and because a process that has opened
the HIP runtime must not fork. It writes {"devices": [...], "libraries": {...}, "notes": [...]} to standard
output. A device has the fields of an Environment but its libraries, its full gcnArchName and its PCI address.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from backends.gpu.library import LibraryError
from backends.hip.driver import HipDriver, RuntimeMissing, api, check, device_count
from backends.hip.hipblaslt import hipblaslt_build
from backends.hip.hipblaslt_api import hipblaslt
from backends.hip.library import HIPBLAS, ROCBLAS, LibraryMissing
from backends.hip.rocblas_api import rocblas
from backends.toolchains.rocm import rocm_version

#: Compute partitions of a device that stand for the whole of it.
_WHOLE = ("", "SPX")


def main() -> None:
    """Prints the answer. Standard output is kept for it alone: libraries may print."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        found = look()
    except RuntimeMissing as error:
        found = {"devices": [], "libraries": {}, "notes": [str(error)]}
    answer.write(json.dumps(found))
    answer.flush()
    os._exit(0)  # a library's own exit handlers have hung before


def look() -> dict[str, Any]:
    """The devices and the libraries. Raises RuntimeMissing."""
    devices = [_device(index) for index in range(device_count())]
    _tell_apart(devices)
    runtime = int(check(api().hipRuntimeGetVersion(), "hipRuntimeGetVersion"))
    driver = _kernel_driver()
    for device in devices:
        device["driver"] = driver
        device["runtime"] = f"HIP {runtime // 10**7}.{runtime // 10**5 % 100}.{runtime % 10**5}"
    libraries, notes = {"hip": str(runtime)}, []
    if (rocm := rocm_version()) is not None:
        libraries["rocm"] = rocm
    for name, ask, statuses in (("hipblaslt", _hipblaslt, HIPBLAS), ("rocblas", _rocblas, ROCBLAS)):
        try:
            libraries[name] = ask()
        except LibraryMissing as error:
            notes.append(f"{name}: {error}")
        except LibraryError as error:
            notes.append(f"{name} does not start: {statuses.name(error.status)}")
    if "hipblaslt" in libraries and (missing := hipblaslt().extension_missing) is not None:
        notes.append(f"hipBLASLt's solutions are those of its heuristic alone: {missing}")
    return {"devices": devices, "libraries": libraries, "notes": notes}


def _device(index: int) -> dict[str, Any]:
    found = check(api().hipGetDeviceProperties(index), f"device {index}")
    full = _text(found.gcnArchName)
    address = f"{int(found.pciDomainID):04x}:{int(found.pciBusID):02x}:{int(found.pciDeviceID):02x}.0"
    partition = _partition(address)
    return {
        "vendor": "hip",
        "arch": full.partition(":")[0],
        "product": _text(found.name) or "AMD GPU",
        "units": int(found.multiProcessorCount),
        "memory_bytes": int(found.totalGlobalMem),
        "uuid": _uuid(found, address),
        "partition": "" if partition in _WHOLE else partition,
        "gcn_arch": full,
        "address": address,
    }


def _text(value: Any) -> str:
    data = bytes(value) if not isinstance(value, str) else value.encode()
    return data.partition(b"\0")[0].decode(errors="replace").strip()


def _uuid(found: Any, address: str) -> str:
    """GPU-<digits> as rocminfo and amd-smi print it; the PCI address where the runtime tells no UUID."""
    try:
        raw = bytes(found.uuid.bytes)
    except (AttributeError, TypeError):
        raw = b""
    text = raw.partition(b"\0")[0]
    if not text:
        return f"GPU-{address}"
    digits = text.decode("ascii") if re.fullmatch(rb"[0-9a-fA-F]{8,16}", text) else raw.hex()
    return f"GPU-{digits}"


def _tell_apart(devices: list[dict[str, Any]]) -> None:
    """Partitions of one GPU may have one UUID: each then gets its number among them."""
    counts = Counter(device["uuid"] for device in devices)
    seen: Counter[str] = Counter()
    for device in devices:
        uuid = device["uuid"]
        if counts[uuid] > 1:
            device["uuid"] = f"{uuid}.{seen[uuid]}"
            seen[uuid] += 1


def _partition(address: str) -> str:
    """The compute partition as the kernel driver says it: SPX, DPX, QPX, CPX; "" where it has none."""
    try:
        return Path("/sys/bus/pci/devices", address, "current_compute_partition").read_text().strip()
    except OSError:
        return ""


def _kernel_driver() -> str:
    """The amdgpu module's version, else the kernel's."""
    try:
        return Path("/sys/module/amdgpu/version").read_text().strip()
    except OSError:
        return os.uname().release


def _hipblaslt() -> str:
    library = hipblaslt()
    HipDriver(0).open()  # the device whose context the handle is of
    return hipblaslt_build(library, library.create())


def _rocblas() -> str:
    return rocblas().version()


if __name__ == "__main__":
    main()
