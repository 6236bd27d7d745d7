"""Records what the genuine libraries answer, and compares it with the committed recording.

    python -m tests.backends.hip.genuine.record [FILE]            records into a file
    python -m tests.backends.hip.genuine.record --compare         records into a scratch file, prints differences
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.backends.hip.genuine import headers, recording, spoken
from tests.backends.hip.genuine.fetch import LIBRARIES, Genuine, Unobtainable, fetch
from tests.backends.hip.genuine.machine import build_fake, python
from tests.backends.hip.genuine.problems import DEVICES, Device

COMMAND = "make genuine"
_MODULE = "tests.backends.hip.genuine"
#: What the libraries do where a caller forgot to ask first: on the genuine runtime without a GPU, and on a
#: device of an architecture without tables.
_UNGUARDED = {
    "hipblasLtCreate without a device": (
        None,
        "from backends.hip.hipblaslt_api import hipblaslt; hipblaslt().create()",
    ),
    "rocblas_create_handle without a device": (
        None,
        "from backends.hip.rocblas_api import rocblas; rocblas().create(0)",
    ),
    "rocBLAS's list of solutions on an architecture without tables": (
        DEVICES[2],
        "from backends.hip.rocblas_api import rocblas; api = rocblas(); api.of_types(api.create(0), 168, 168, 151)",
    ),
    "matmulIsAlgoSupported of an index that the library lacks": (
        DEVICES[0],
        "from backends.hip.hipblaslt_api import Found, hipblaslt\n"
        "from backends.hip.hipblaslt_call import MatmulCall\n"
        "from tests.backends.hip.genuine.problems import PROBLEMS\n"
        "api = hipblaslt(); call = MatmulCall(api, api.create(), PROBLEMS['bf16 TN']); call.every()\n"
        "call.supports(Found((10**6).to_bytes(4, 'little') + bytes(12) + b'\\xff' * 8, 0))",
    ),
}


def record(genuine: Genuine) -> dict[str, Any]:
    """Everything, from fresh processes."""
    build_fake(genuine)
    devices = {}
    for device in DEVICES:
        print(f"{device.arch} of {device.units} compute units", flush=True)
        devices[device.arch] = _device(genuine, device)
    print("headers, kernels by hipRTC", flush=True)
    text = _answer(genuine, "headers", None)
    return {
        "provenance": _provenance(genuine),
        "devices": devices,
        "unguarded": {what: _end(genuine, *how) for what, how in _UNGUARDED.items()},
        "headers": headers.check(genuine, text),
        **json.loads(_answer(genuine, "compiled", None)),
    }


def _provenance(genuine: Genuine) -> dict[str, Any]:
    files = {name: genuine.file(name) for name in LIBRARIES}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": COMMAND,
        "suite": "Debian sid, amd64",
        "packages": dict(genuine.packages),
        "libraries": {
            name: {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for name, path in files.items()
        },
    }


def _device(genuine: Genuine, device: Device) -> dict[str, Any]:
    found = json.loads(_answer(genuine, "answers", device))
    names = found["hipblaslt"]["names"]
    found["hipblaslt"]["names"] = {int(index): pair for index, pair in names.items()}
    if not any("every" in one for one in found["hipblaslt"]["problems"].values()):
        return {**found, "gcn_arch": device.gcn_arch, "units": device.units}
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "hipblaslt"), Path(folder, "rocblas")
        _run(genuine, device, "spoken", **spoken.variables(*logs))
        lines = [log.read_text().splitlines() if log.exists() else [] for log in logs]
    found["hipblaslt"]["spoken"] = [line.strip() for line in lines[0]]
    # rocBLAS writes down its checks, too, which do not run, and everything in no order.
    found["rocblas"]["spoken"] = sorted(line for line in lines[1] if "flags: none" in line)
    return {**found, "gcn_arch": device.gcn_arch, "units": device.units}


def _answer(genuine: Genuine, module: str, device: Device | None) -> str:
    """What a module of this folder writes into its file. The folder of the libraries is FOLDER in it."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        _run(genuine, device, module, file.name)
        return file.read().replace(str(genuine.folder), "FOLDER")


def _run(genuine: Genuine, device: Device | None, module: str, *arguments: str, **variables: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = {"GEMMTUNE_FAKE_TRACE": str(Path(folder, "trace"))}
        done = python(genuine, "-m", f"{_MODULE}.{module}", *arguments, device=device, **trace, **variables)
    if done.returncode:
        where = "the genuine runtime" if device is None else device.arch
        raise Unobtainable(f"{module} on {where} ends with {done.returncode}: {done.stderr.strip()[-2000:]}")


def _end(genuine: Genuine, device: Device | None, code: str) -> str:
    """How a process ends that runs this code."""
    done = python(genuine, "-c", code, device=device)
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    last = done.stderr.strip().splitlines() or [""]
    ours = last[-1] if "LibraryError" in last[-1] else ""
    return f"exit {done.returncode}{': ' if ours else ''}{ours.rpartition('.')[2]}"


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs."""
    return recording.differences(old, new)


def main() -> None:
    """See the module."""
    arguments = sys.argv[1:]
    try:
        genuine = fetch()
        found = record(genuine)
    except Unobtainable as error:
        raise SystemExit(f"the genuine libraries cannot be asked: {error}") from None
    if arguments != ["--compare"]:
        path = Path(arguments[0]) if arguments else recording.FILE
        recording.save(found, path)
        print(f"{path}: {path.stat().st_size} bytes")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "enumeration.json.gz")
        recording.save(found, path)
        told = compare(recording.load(), recording.load(path))
    print("\n".join(told) or f"as in {recording.FILE.name}")
    raise SystemExit(1 if told else 0)


if __name__ == "__main__":
    main()
