"""How a kind of device is measured: facts that tuners ask for, in place of guessing them from one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MeasurementTraits:
    """What a tuner must know of a kind of device to time and to verify candidates on it."""

    #: Timing modes (eager, graph), the default first.
    modes: tuple[str, ...]
    #: Whether compilers may work while the device measures: not where the device is the host.
    compiles_beside: bool
    #: Whether the device times its own work (events on its stream) in place of the host's clock.
    own_clock: bool
    #: Seconds that a sample must last for its fixed costs to vanish: while screening, and in a final.
    sample_seconds: tuple[float, float]
    #: How many short launches size a sample.
    sizing_launches: int
    #: Undisturbed samples that a screening wants of a candidate.
    screening_samples: int
    #: Seconds that one round of all operand sets may take in a screening; None for the final's rule. Making a
    #: series costs some devices more than its launches do.
    screening_round_seconds: float | None
    #: Whether inputs, references and comparisons are the device's own (Device.reference), not the host's.
    device_reference: bool
    #: Whether a screening verifies every case of one seed, or the one with the problem's own scalars alone.
    screens_every_case: bool
    #: Whether the exact problem is run twice, which shows what a run leaves behind. It takes a host long.
    repeats_exact: bool
    #: Whether a screening runs the other cases twice, as a proof does.
    repeats_others_in_screening: bool
    #: Seeds of the exact problem in a proof, where operands are large; None for all of the policy's.
    exact_seeds: int | None
    #: Bytes of the workspace that is allocated before anybody asks: growing it means binding everybody anew.
    workspace_bytes: int


#: The host as a device: its clock, numpy's references.
HOST_TRAITS = MeasurementTraits(
    modes=("eager",),  # it has no graphs: a launch is what a caller pays for
    compiles_beside=False,
    own_clock=False,
    sample_seconds=(1e-3, 1e-3),  # the clock costs some 100 ns
    sizing_launches=10,
    screening_samples=5,
    screening_round_seconds=None,
    device_reference=False,
    screens_every_case=True,
    repeats_exact=False,
    repeats_others_in_screening=True,
    exact_seeds=2,
    workspace_bytes=2**20,
)

#: A GPU, of any vendor. A sample's fixed cost is some 2.5 us: a graph's launch between two events.
GPU_TRAITS = MeasurementTraits(
    modes=("graph", "eager"),  # a graph's replay leaves out the host, which servers do not pay for
    compiles_beside=True,
    own_clock=True,
    sample_seconds=(5e-5, 1e-3),
    sizing_launches=3,
    screening_samples=3,
    screening_round_seconds=1e-3,
    device_reference=True,
    screens_every_case=False,
    repeats_exact=True,
    repeats_others_in_screening=False,
    exact_seeds=None,
    workspace_bytes=64 * 2**20,
)

#: vendor -> its devices' traits.
VENDOR_TRAITS: Mapping[str, MeasurementTraits] = {"cpu": HOST_TRAITS, "cuda": GPU_TRAITS, "hip": GPU_TRAITS}
