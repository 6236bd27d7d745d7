"""GPUs that are only numbers: runners whose candidates take fixed times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any

from backends.environment import Environment
from backends.errors import DeviceError
from backends.outcome import Outcome, Phase, Status
from backends.protocol import Baseline
from backends.registry import FoundDevice
from backends.solution import Solution
from backends.traits import GPU_TRAITS
from tests.tuners.recorded import RecordedRunner
from tuners.ceilings import Ceilings
from tuners.device_process import Task
from tuners.space import Space

#: Candidate -> its time over torch's, unless a test says otherwise.
SPEEDS: Mapping[str, float] = {"torch": 1.0, "heuristic": 0.9, "fast": 0.5, "slow": 3.0}
_FAMILIES = {"torch": "torch", "heuristic": "cublaslt-heuristic"}


def gpu(index: int) -> FoundDevice:
    """A device of this number."""
    libraries = {"torch": "2.0+cu1", "cublaslt": "130000"}
    environment = Environment(
        "cuda",
        "sm_90",
        "Imagined",
        132,
        2**37,
        f"GPU-{index}",
        driver="1",
        runtime="CUDA 13.0",
        libraries=libraries,
    )
    return FoundDevice("cuda", index, environment)


def candidate(name: str) -> Solution:
    """A solution that is only a name."""
    return Solution(_FAMILIES.get(name, "cublaslt"), 1, {"name": name})


class GpuRunner(RecordedRunner):
    """Runs SPEEDS (or others) at 20 us for torch; `wrong` ones are caught while screening; `dies` at open."""

    def __init__(
        self,
        device: FoundDevice,
        speeds: Mapping[str, float] = SPEEDS,
        wrong: Sequence[str] = (),
        dies: bool = False,
    ) -> None:
        fails = {(name, Phase.SCREEN): Status.WRONG_RESULT for name in wrong}
        super().__init__([20e-6], speed=speeds, fails=fails)
        self.device, self._names, self._dies = device, list(speeds), dies
        self.environment = device.environment
        self.backend: Any = SimpleNamespace(name="imagined", traits=GPU_TRAITS, families=dict)

    def __enter__(self) -> GpuRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        pass

    def open(self, task: Task) -> Any:
        if self._dies:
            raise DeviceError("the device is gone")
        return super().open(task)

    def space(self, task: Task, families: Sequence[str] | None) -> Space:
        base = [
            Baseline(f"{name} 1", candidate(name)) for name in ("torch", "heuristic") if name in self._names
        ]
        others = tuple(candidate(name) for name in self._names if name not in ("torch", "heuristic"))
        return Space(tuple(base), others, ("a note",))

    def prove(self, solution: Solution, seeds: int) -> Outcome:
        evidence = {"seeds": seeds, "cases": ["exact"], "condition": {"watts": 500}}
        return Outcome(solution, Phase.PROOF, Status.OK, (), evidence)

    def ceilings(self, dtypes: Sequence[str]) -> Ceilings:
        """Four TB/s; a TFLOP a millisecond."""
        return Ceilings(4e12, 3e12, dict.fromkeys(dtypes, 1e15))
