"""A user's kernel for a GPU, judged on the null backend: compiled by the emulator, launched on host
fibers, timed by the null driver's events, verified by the device's own reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.outcome import Status
from backends.problem import from_mm
from backends.registry import FoundDevice
from backends.user_kernels.source import read_kernel
from tuners.device_process import Task
from tuners.judge.client import JudgeClient
from tuners.policy import MeasurementPolicy

#: In the words of device/portable.h, which the emulator compiles; docs/examples/judge/tile.cu has CUDA's own.
SOURCE = """
// gemmtune: types fp32
// gemmtune: features padded
// gemmtune: grid cdiv(m * n, 32)
// gemmtune: block 32
#include "device/args.h"
#include "gemm_call.h"

struct Mine {  // gemm(call)
    using Args = GemmCall;
    static constexpr int kThreads = 32, kMinBlocks = 0, kSharedBytes = 0;
    static constexpr bool kWaits = false;

    static GEMMTUNE_DEVICE void run(const GemmCall& call, char*) {
        const long long at = gemmtune::block_x() * 32LL + gemmtune::thread_index();
        if (at >= call.m * call.n) return;
        const long long i = at / call.n, j = at % call.n;
        float sum = 0.0f;
        for (long long k = 0; k < call.k; ++k)
            sum += static_cast<const float*>(call.a)[i * call.lda + k] *
                   static_cast<const float*>(call.b)[k * call.ldb + j];
        static_cast<float*>(call.d)[i * call.ldd + j] = VALUE;
    }
};
GEMMTUNE_KERNEL(gemm, Mine)
"""


@pytest.mark.compiler
@pytest.mark.parametrize(("value", "status"), [("sum", Status.OK), ("sum + 1", Status.WRONG_RESULT)])
def test_a_compiled_kernel_is_judged(
    value: str, status: Status, tmp_path: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "null", "backends.gpu.null_backend:NullBackend")
    (environment,) = registry.backend("null").probe().devices
    path = tmp_path / "mine.cu"
    path.write_text(SOURCE.replace("VALUE", value))
    device = FoundDevice("null", 0, environment)
    with JudgeClient(device, cache, read_kernel(path)) as client:
        task = Task(from_mm(8, 12, 16, "fp32"), MeasurementPolicy(mode="graph", cache="warm"), 0)
        space = client.space(task, None)
        client.open(task)
        client.screen([space.baselines[0].solution], None)
        outcome = client.screen([client.solution], None)[0]
    assert outcome.status is status, dict(outcome.evidence)
    assert "cheats" not in outcome.evidence
