"""Host time to launch a stored cuBLASLt solution, from Python and from C++."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from backends.problem import from_linear
from backends.protocol import DeviceListedFamily, Launch
from backends.registry import FoundDevice, backend
from backends.solution import Solution
from benchmarks.cuda_tuned import kernel_cache, say
from tuners.measure import OperandSets
from tuners.policy import MeasurementPolicy
from tuners.selftest.calls import host_seconds

#: Launches per repetition, in bursts with an untimed synchronisation between them; a burst is small enough
#: that the device's queue never fills up and stalls the host.
CALLS, BURST, REPETITIONS = 2000, 64, 15
#: A problem small enough that the device keeps up, and decode shapes (m, n, k of F.linear).
LAUNCHED = ((16, 64, 64), (64, 8192, 8192), (16, 4096, 4096))

# ---- launches ------------------------------------------------------------------------------------


def launches(found: FoundDevice, dtype: str) -> dict[str, Any]:
    """Times launches outside graphs: a stored cuBLASLt solution loaded and bound in this process,
    cublasLtMatmul from C++, and torch.mm with out=."""
    device = backend(found.backend).open(found.index, kernel_cache())
    family = backend(found.backend).families()["cublaslt"]
    rows = []
    for m, n, k in LAUNCHED:
        problem = from_linear(m, n, k, dtype)
        if not isinstance(family, DeviceListedFamily):
            raise SystemExit("the family cublaslt lists nothing")
        listed = next(iter(family.enumerate_on(problem, device, None)))
        stored = Solution.from_dict(listed.to_dict())  # as read from a database
        kernel = device.load(problem, stored, None)
        sets = OperandSets(device, problem, MeasurementPolicy.of(found.environment.vendor, cache="warm"), 0)
        workspace = device.allocate(max(kernel.workspace_bytes, 1))
        bound: Launch = kernel.bind(sets.of(kernel, 0), workspace.address)
        kernel.prepare()
        size = {"m": m, "n": n, "k": k}
        rows.append({**size, "call": "cublaslt", "solution": stored.id, **_cost(bound, device.synchronize)})
        for held in (sets, workspace):
            held.free()
        native = _native(m, n, k)
        if native is not None:
            rows.append({**size, "call": "cublasLtMatmul from C++", "solution": None, **native})
        if "torch" in found.environment.libraries:
            rows.append(
                {**size, "call": "torch.mm(out=)", "solution": None, **_torch(m, n, k, dtype, found.index)}
            )
    return {
        "what": "host microseconds a call from Python, outside graphs; synchronisations are not in the time",
        "dtype": dtype, "calls": CALLS, "burst": BURST, "repetitions": REPETITIONS, "rows": rows,
    }  # fmt: skip


def _native(m: int, n: int, k: int) -> dict[str, float] | None:
    """The library's own call, timed by benchmarks/launch.cpp; None without nvcc."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        return None
    source = Path(__file__).parent / "launch.cpp"
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "launch")
        subprocess.run([compiler, "-O2", "-std=c++17", "-o", program, str(source), "-lcublasLt"], check=True)
        command = [program, str(m), str(n), str(k), str(BURST)]
        times = [float(subprocess.check_output(command, text=True)) for _ in range(3)]
    say(f"cublasLtMatmul from C++: {median(times):.2f} us")
    return {"median_us": median(times), "worst_us": max(times), "best_us": min(times)}


def _torch(m: int, n: int, k: int, dtype: str, index: int) -> dict[str, float]:
    import torch  # noqa: PLC0415  (optional)

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}[
        dtype
    ]
    where = torch.device("cuda", index)
    x, w = (torch.randn(rows, k, device=where, dtype=kind) for rows in (m, n))
    y, right = torch.empty(m, n, device=where, dtype=kind), w.t()
    with torch.inference_mode():
        return _cost(lambda: torch.mm(x, right, out=y), lambda: torch.cuda.synchronize(where))


def _cost(launch: Callable[[], object], synchronize: Callable[[], object]) -> dict[str, float]:
    times = [seconds * 1e6 for seconds in host_seconds(launch, synchronize, CALLS, BURST, REPETITIONS)]
    values = {"median_us": median(times), "worst_us": max(times), "best_us": min(times)}
    say(f"a launch: {values['median_us']:.2f} us (worst repetition {values['worst_us']:.2f})")
    return values
