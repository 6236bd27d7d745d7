"""Records what the genuine libraries answer, or compares it with the committed recording.

python -m tests.backends.hip.genuine.record [FILE]       records into FILE (default: the committed recording)
python -m tests.backends.hip.genuine.record --compare    prints the differences; exits with 1 if there are any
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.backends.hip.genuine import headers, library_logs, recording
from tests.backends.hip.genuine.fetch import LIBRARIES, Genuine, Unavailable, fetch
from tests.backends.hip.genuine.machine import build_fake, python
from tests.backends.hip.genuine.problems import DEVICES, Device

COMMAND = "make genuine"
_MODULE = "tests.backends.hip.genuine"
#: Calls that end the process: on the genuine runtime without a GPU, or on a device of an architecture without
#: tables. The backend checks beforehand.
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
        "from backends.hip.rocblas_api import rocblas\n"
        "api = rocblas(); api.of_types(api.create(0), 168, 168, 151)",
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
    """The whole recording; every part comes from a new process. Raises Unavailable."""
    build_fake(genuine)
    devices = {}
    for device in DEVICES:
        print(f"{device.arch} with {device.cu_count} compute units", flush=True)
        devices[device.arch] = _device(genuine, device)
    print("headers, the runtime without a device, hipRTC", flush=True)
    text = _answer(genuine, "headers", None)
    return {
        "provenance": _provenance(genuine),
        "devices": devices,
        "unguarded": {what: _ending(genuine, *how) for what, how in _UNGUARDED.items()},
        "headers": headers.check(genuine, text),
        **json.loads(_answer(genuine, "without_device", None)),
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
    found: dict[str, Any] = json.loads(_answer(genuine, "answers", device))
    names = found["hipblaslt"]["names"]
    found["hipblaslt"]["names"] = {int(index): pair for index, pair in names.items()}
    found |= {"gcn_arch": device.gcn_arch, "cu_count": device.cu_count}
    if not any("every" in one for one in found["hipblaslt"]["problems"].values()):
        return found
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "hipblaslt"), Path(folder, "rocblas")
        _run(genuine, device, "library_logs", **library_logs.variables(*logs))
        lines = [log.read_text().splitlines() if log.exists() else [] for log in logs]
    found["hipblaslt"]["log"] = [line.strip() for line in lines[0]]
    # rocBLAS also logs its checks, which launch nothing, and writes its lines in no order.
    found["rocblas"]["log"] = sorted(line for line in lines[1] if "flags: none" in line)
    return found


def _answer(genuine: Genuine, module: str, device: Device | None) -> str:
    """What a module of this folder writes to its file, with FOLDER in place of the libraries' folder."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        _run(genuine, device, module, file.name)
        return file.read().replace(str(genuine.folder), "FOLDER")


def _run(genuine: Genuine, device: Device | None, module: str, *arguments: str, **variables: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = {"GEMMTUNE_FAKE_TRACE": str(Path(folder, "trace"))}
        done = python(genuine, "-m", f"{_MODULE}.{module}", *arguments, device=device, **trace, **variables)
    if done.returncode:
        where = "the genuine runtime" if device is None else device.arch
        raise Unavailable(f"{module} on {where} ends with {done.returncode}: {done.stderr.strip()[-2000:]}")


def _ending(genuine: Genuine, device: Device | None, code: str) -> str:
    """How a process that runs this code ends: its signal, or its exit status and the backend's own error."""
    done = python(genuine, "-c", code, device=device)
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    last = done.stderr.strip().splitlines() or [""]
    ours = last[-1] if "LibraryError" in last[-1] else ""
    return f"exit {done.returncode}{': ' if ours else ''}{ours.rpartition('.')[2]}"


def main() -> None:
    """Records or compares."""
    arguments = sys.argv[1:]
    try:
        genuine = fetch()
        found = record(genuine)
    except Unavailable as error:
        raise SystemExit(f"the genuine libraries cannot be run: {error}") from None
    if arguments != ["--compare"]:
        path = Path(arguments[0]) if arguments else recording.FILE
        recording.save(found, path)
        print(f"{path}: {path.stat().st_size} bytes")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "enumeration.json.gz")
        recording.save(found, path)
        found = recording.load(path)
    differences = recording.differences(recording.load(), found)
    print("\n".join(differences) or f"no difference from {recording.FILE.name}")
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
