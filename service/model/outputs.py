"""The files that a model's process can load, by name.

OUTPUTS is the one place where outputs are named; an output is one entry.

An output is checked before anything is tuned: a file that nothing on the device could load is refused at
once.
"""

from __future__ import annotations

from collections.abc import Mapping

from backends.environment import DeviceClass
from service.formats.core.export import ExportRefused
from service.model.bundle_outputs import BUNDLE_OUTPUTS
from service.model.plan import ModelPlan
from service.model.request import Output
from service.model.text_outputs import TEXT_OUTPUTS

#: Every output by name.
OUTPUTS: Mapping[str, Output] = {output.name: output for output in (*TEXT_OUTPUTS, *BUNDLE_OUTPUTS)}


def output_for(name: str, device: DeviceClass) -> Output:
    """The output called `name`, whose check() the caller makes. Raises ExportRefused: no such output, or one
    that no program on this device loads."""
    output = OUTPUTS.get(name)
    if output is None:
        raise ExportRefused(f"--for {name!r} is unknown; known: {', '.join(OUTPUTS)}")
    if device.vendor not in output.vendors:
        works = ", ".join(other.name for other in OUTPUTS.values() if device.vendor in other.vendors)
        raise ExportRefused(
            f"--for {name} is for {output.what}, which runs on {' and '.join(output.vendors)} devices, "
            f"not on {device}; there works: {works}"
        )
    return output


def plan_for(output: Output, plan: ModelPlan, prepacked: bool) -> ModelPlan:
    """The plan of what the output has of a model; with `prepacked` that of a program that packs the model's
    quantised weights. Raises ExportRefused where no program with the output's files does, InvalidProblem for
    a model without such weights."""
    plan = plan.of(output.products)
    plan = plan.gated() if output.packs else plan  # (of programs that load our own kernels)
    if not prepacked:
        return plan
    if not output.packs:
        works = ", ".join(other.name for other in OUTPUTS.values() if other.packs)
        raise ExportRefused(
            f"--prepacked is of programs that pack weights for our own kernels, not of --for {output.name}; "
            f"there works: {works}"
        )
    return plan.prepacked()
