"""How far products can go: the measurements of `python -m benchmarks.cuda floor`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backends.problem import GemmProblem
from backends.registry import FoundDevice
from benchmarks import cuda_feeding, cuda_floor, cuda_inside, cuda_reading
from benchmarks.cuda_tuned import ceilings_of, kernel_cache, machine, read_shapes
from benchmarks.report import write
from tuners.ceilings import Ceilings
from tuners.runner import DeviceRunner

Measured = Callable[[FoundDevice, Sequence[tuple[str, GemmProblem]], Ceilings], dict[str, Any]]
#: The list, and what is measured of it.
FLOORS: Mapping[str, tuple[str, Measured]] = {
    "floor": ("odd", cuda_floor.floor),
    "reading": ("decode_m1", cuda_reading.reading),
    "moving": ("odd", cuda_reading.moving),
    "feeding": ("odd", cuda_feeding.feeding),
    "inside": ("odd", cuda_inside.inside),
}


def floor(options: argparse.Namespace) -> None:
    """What padding, reading, moving and feeding take by themselves, and even products inside odd ones."""
    device = machine(options.device, 1)[0]
    with DeviceRunner(device, kernel_cache()) as runner:
        ceilings = ceilings_of(runner, [options.dtype])
    if ceilings is None:
        raise SystemExit("the device's ceilings could not be measured")
    for name in options.of:
        which, measured = FLOORS[name]
        shapes = [(shape.name, shape.problem(options.dtype)) for shape in read_shapes(lists=[which])]
        figures = measured(device, shapes, ceilings)
        write(f"{options.device}-{name}", device.environment, figures, options.output)
