"""How candidates are timed and verified on each kind of device. Tuners read these explicit traits; they never
infer one from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MeasurementTraits:
    """What a tuner must know about a kind of device to time and verify candidates on it."""

    #: Timing modes (eager, graph); the first is the default.
    modes: tuple[str, ...]
    #: Whether compilers may run while the device measures. False if the device is the host.
    compiles_beside: bool
    #: Whether the device times its own work (events on its stream); otherwise the host's clock is used.
    own_clock: bool
    #: Least duration of a sample in seconds, so that its fixed costs are negligible: (screening, final).
    sample_seconds: tuple[float, float]
    #: How long the untimed launches before those of a graph run, in seconds: meanwhile the host queues the
    #: graph, so that no sample has the device waiting for it. 0 takes one launch.
    lead_seconds: float
    #: Number of short launches that are timed to decide how many launches a sample has.
    sizing_launches: int
    #: Undisturbed samples that a screening takes of a candidate.
    screening_samples: int
    #: How much the device's speed may differ between two screenings, as a share; within one it does not.
    speed_drift: float
    #: Longest round over all operand sets in a screening, in seconds; None applies the rule for finals. On
    #: some devices preparing a series costs more than its launches.
    screening_round_seconds: float | None
    #: Whether the device draws inputs, computes references and compares results (Device.reference), rather
    #: than the host.
    device_reference: bool
    #: Whether a screening verifies every case of one seed, or of the ragged cases only the one with the
    #: problem's own scalars.
    screens_every_case: bool
    #: Whether the exact problem is run twice, which detects state left behind by a run. Slow on a host.
    repeats_exact: bool
    #: Whether a screening runs the other cases twice, as a proof always does.
    repeats_others_in_screening: bool
    #: Seeds on which a proof runs the exact problem if its operands are large; None for all seeds.
    exact_seeds: int | None
    #: Bytes of workspace allocated up front, since growing it later means binding every candidate again.
    workspace_bytes: int


#: The host as a device: timed by its own clock, verified with numpy references.
HOST_TRAITS = MeasurementTraits(
    modes=("eager",),  # there are no graphs: a timed launch is what a caller pays for
    compiles_beside=False,
    own_clock=False,
    sample_seconds=(1e-3, 1e-3),  # the clock costs some 100 ns
    lead_seconds=0.0,
    sizing_launches=10,
    screening_samples=5,
    speed_drift=0.5,  # other programs: 99% of recorded medians differ less between two passes
    screening_round_seconds=None,
    device_reference=False,
    screens_every_case=True,
    repeats_exact=False,
    repeats_others_in_screening=True,
    exact_seeds=2,
    workspace_bytes=2**20,
)

#: A GPU of any vendor. A sample costs about 2.5 us of the device's time, if its graph is queued before it
#: begins. Queueing one takes the host 4 to 15 us, and 50 us at times.
GPU_TRAITS = MeasurementTraits(
    modes=("graph", "eager"),  # replaying a graph excludes the host's launch cost, as in servers
    compiles_beside=True,
    own_clock=True,
    sample_seconds=(5e-5, 1e-3),
    lead_seconds=1e-4,
    sizing_launches=3,
    screening_samples=3,
    speed_drift=0.1,  # clocks: 99.9% of recorded medians differ less between two passes
    screening_round_seconds=1e-3,
    device_reference=True,
    screens_every_case=False,
    repeats_exact=True,
    repeats_others_in_screening=False,
    exact_seeds=None,
    workspace_bytes=64 * 2**20,
)

#: vendor -> the traits of its devices.
VENDOR_TRAITS: Mapping[str, MeasurementTraits] = {"cpu": HOST_TRAITS, "cuda": GPU_TRAITS, "hip": GPU_TRAITS}
