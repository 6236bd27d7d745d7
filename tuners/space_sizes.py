"""How large the families' spaces of a problem are, on a device or for an architecture that is not here."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from backends.archs import foreign_float, gpu_arch
from backends.cache import BinaryCache
from backends.errors import UnsupportedProblem
from backends.family_space import FamilySpace
from backends.kernel_checks.candidates import GPU_FAMILIES, environment_of, vendors
from backends.problem import GemmProblem
from backends.registry import FoundDevice
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.policy import MeasurementPolicy

#: Seconds for counting the legal members of a space.
SECONDS = 1.0


@dataclass(frozen=True)
class SpaceSize:
    """`combinations`: the space's size, which bounds the number of members. `legal`: the number of members;
    None where counting took too long. `listed`: candidates that a search tries first."""

    family: str
    combinations: int
    legal: int | None
    listed: int

    @classmethod
    def of(cls, space: FamilySpace, listed: int, seconds: float) -> SpaceSize:
        """Counts for at most `seconds`."""
        counted = space.count(seconds)
        return cls(space.family, space.size, counted.legal if counted.whole else None, listed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def on_arch(problem: GemmProblem, arch: str, seconds: float = SECONDS) -> list[SpaceSize]:
    """The families that we compile for an architecture; libraries list theirs on a device only. Raises
    UnsupportedProblem if none runs the problem."""
    environment = environment_of(arch)
    found = [
        SpaceSize.of(space, sum(1 for _ in family.solutions(problem, environment)), seconds)
        for family in GPU_FAMILIES.values()
        if environment.vendor in vendors(family) and (space := family.space(problem, environment)).size
    ]
    if not found:
        foreign = foreign_float(
            (problem.dtype_a, problem.dtype_b), gpu_arch(environment.vendor, environment.arch)
        )
        why = f": {foreign}" if foreign else ""
        raise UnsupportedProblem(f"none of our families runs {problem.slug} on {arch}{why}")
    return found


def on_device(
    problem: GemmProblem, device: FoundDevice, cache: BinaryCache, seconds: float = SECONDS
) -> tuple[list[SpaceSize], tuple[str, ...]]:
    """Every family that runs the problem on a device, and notes on those that do not. Raises
    UnsupportedProblem, DeviceError."""
    with DeviceClient(device, cache) as runner:
        task = Task(problem, MeasurementPolicy.of(device.environment.vendor), 0)
        space = runner.space(task, None)
        listed = Counter(one.family for one in space.candidates)
        listed.update(one.solution.family for one in space.baselines)
        sizes = [
            SpaceSize.of(runner.family_space(task, name), listed[name], seconds) for name in space.families
        ]
    return [size for size in sizes if size.combinations], space.notes
