"""What a sample consists of: which operand sets, how many launches, made ready how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import lcm
from types import SimpleNamespace
from typing import Any

import pytest

from backends.errors import CompilerMissing, DeviceMemoryExceeded, LaunchError
from backends.grouping import ends_of
from backends.kernels.prepacked import PACKED_ALIGNMENT, most_packed_bytes
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_blas, from_linear, from_mm
from backends.protocol import Launch, Sample
from backends.traits import GPU_TRAITS, HOST_TRAITS, MeasurementTraits
from tests.backends.weight_samples import weights
from tuners.measure import COLD_CACHES, MAX_LEAD, MAX_SETS, OperandSets, Timer, working_bytes
from tuners.policy import MeasurementPolicy

SHORT, LONG = 1e-4, 1e-3


@dataclass
class Clocked:
    """A series on a device where a launch takes `seconds`, and at least `queued` if it is queued by itself:
    which launches it has, and how often it is run."""

    device: ClockedDevice
    launches: list[Any]
    mode: str
    lead: list[Any]
    samples: int = 0
    closed: bool = False

    def sample(self, warm: bool = True) -> Sample:
        assert not self.closed
        self.samples += 1
        seconds = max(self.device.seconds, self.device.queued if self.mode == "eager" else 0.0)
        return Sample(seconds, len(self.launches))

    def close(self) -> None:
        self.closed = True


@dataclass
class ClockedDevice:
    """A GPU's traits where it has a reference, else a host's."""

    seconds: float
    reference: Any = None
    queued: float = 0.0
    cache_bytes: int = 2**20
    free_bytes: int = 2**32
    made: list[Clocked] = field(default_factory=list)
    freed: int = 0

    @property
    def traits(self) -> MeasurementTraits:
        return replace(HOST_TRAITS if self.reference is None else GPU_TRAITS, sample_seconds=(SHORT, LONG))

    def series(
        self, kernel: object, launches: Sequence[Launch], mode: str, lead: Sequence[Launch] = ()
    ) -> Clocked:
        self.made.append(Clocked(self, list(launches), mode, list(lead)))
        return self.made[-1]

    def allocate(self, size: int) -> Any:
        def free() -> None:
            self.freed += 1

        return SimpleNamespace(address=2**30, size=size, upload=lambda *_: None, free=free)


class Reference:
    """Draws nothing; remembers where."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.drawn: list[int] = []
        self._fault = fault

    def draw(self, layout: object, address: int, seed: int, distribution: str) -> None:
        if self._fault is not None:
            raise self._fault
        self.drawn.append(address)


PROBLEM = from_mm(256, 256, 256)


def timer_of(device: ClockedDevice, problem: GemmProblem = PROBLEM, cache: str = "cold") -> Timer:
    """A timer whose launch number i is on operand set i."""
    anything: Any = device
    sets = OperandSets(anything, problem, MeasurementPolicy(mode="graph", cache=cache), 0)
    number = {id(operands): i for i, operands in enumerate(sets.sets)}
    kernel: Any = SimpleNamespace(bind=lambda operands, workspace: number[id(operands)])
    return Timer(anything, kernel, sets, 0, "graph")


def kept(device: ClockedDevice) -> list[Clocked]:
    """The series that are kept, in the order made."""
    return [series for series in device.made if not series.closed]


def test_a_final_goes_round_all_sets_a_whole_number_of_times() -> None:
    device = ClockedDevice(13e-6, Reference())
    timer = timer_of(device)
    for _ in range(5):
        assert timer.sample().seconds == 13e-6
    (series,) = kept(device)
    sets = timer.operands.rotation.sets
    assert series.samples == 5
    assert len(series.launches) >= LONG / 13e-6
    assert series.launches == list(range(sets)) * (len(series.launches) // sets)
    assert series.lead[-1] == sets - 1, "the set that is furthest from being used again"
    timer.close()
    assert kept(device) == []


def test_a_screening_that_is_cold_goes_round_half_of_them_where_the_device_keeps_the_time() -> None:
    device = ClockedDevice(13e-6, Reference())
    timer = timer_of(device)
    sets = timer.operands.rotation.sets
    assert timer.operands.rotation.cold
    timer.sample(screening=True)
    (series,) = kept(device)
    half = -(-sets // 2)
    assert set(series.launches) == set(range(half))
    assert len(series.launches) % half == 0
    per_set = timer.operands.rotation.bytes / sets
    assert half * per_set > device.cache_bytes, "which is beyond the cache still"
    timer.sample()
    assert len(kept(device)) == 2


def test_a_host_screens_on_all_sets() -> None:
    device = ClockedDevice(13e-6)
    timer = timer_of(device)
    timer.sample(screening=True)
    (series,) = kept(device)
    assert set(series.launches) == set(range(timer.operands.rotation.sets))


def test_sets_that_stay_in_the_cache_are_not_halved() -> None:
    device = ClockedDevice(5e-6, Reference(), cache_bytes=2**30)
    timer = timer_of(device)
    assert not timer.operands.rotation.cold
    timer.sample(screening=True)
    assert set(kept(device)[0].launches) == set(range(MAX_SETS))


class Uploads(ClockedDevice):
    """Keeps what is uploaded: address -> bytes."""

    def allocate(self, size: int) -> Any:
        base, self.memory = 2**30, dict[int, bytes]()

        def upload(values: Any, offset: int = 0) -> None:
            assert offset + values.nbytes <= size
            self.memory[base + offset] = values.tobytes()

        return SimpleNamespace(address=base, size=size, upload=upload, free=lambda: None)


def grouped(rows: int, routing: str | list[int] = "uniform") -> GemmProblem:
    """Rows of eight groups."""
    return from_linear(rows, 64, 128, "bf16", groups=8, routing=routing)


@pytest.mark.parametrize(("cache", "copies"), [(2**12, None), (2**16, 3), (2**30, MAX_SETS)])
def test_sets_of_a_grouped_product_take_turns_among_its_draws(cache: int, copies: int | None) -> None:
    device = Uploads(13e-6, Reference(), cache_bytes=cache)
    problem = grouped(16)
    sets = timer_of(device, problem).operands
    assert copies is None or sets.rotation.sets == copies
    assert [one.draw for one in sets.sets] == [0, 1, 2, 3] * (len(sets.sets) // 4)
    seen = [(one.a, device.memory[one.offsets]) for one in sets.sets]
    ends = [ends_of(problem, draw).tobytes() for draw in range(4)]
    assert [of_draw for _, of_draw in seen] == ends * (len(seen) // 4)
    copied = sorted({address for address, _ in seen})
    assert len(copied) == sets.rotation.sets
    assert len(seen) == len(set(seen)) == lcm(len(copied), 4)
    assert all(a != b for (a, _), (b, _) in pairwise([*seen, seen[0]])), "weights stay cold"


@pytest.mark.parametrize("problem", [grouped(129), grouped(16, [2] * 8), PROBLEM])
def test_other_products_have_one_draw(problem: GemmProblem) -> None:
    sets = timer_of(Uploads(13e-6, Reference()), problem).operands
    assert len(sets.sets) == sets.rotation.sets


@pytest.mark.parametrize(
    ("cache", "copies", "screened"), [(2**12, 2, 4), (2**16, 3, 8), (90_000, 4, 4), (200_000, 8, 4)]
)
def test_every_sample_has_each_draw_as_often(cache: int, copies: int, screened: int) -> None:
    """However long the launches are: candidates are compared by the same counts, also in a screening."""
    device = Uploads(5e-3, Reference(), cache_bytes=cache)
    timer = timer_of(device, grouped(16))
    assert timer.operands.rotation.sets == copies
    for screening in (True, False):
        timer.sample(screening=screening)
    made = kept(device)
    assert made[0].launches == list(range(screened))
    assert made[-1].launches == list(range(len(timer.operands.sets)))
    for series in made:
        draws = Counter(timer.operands.sets[number].draw for number in series.launches)
        assert len(draws) == 4
        assert len(set(draws.values())) == 1


def test_launches_too_long_for_a_round_go_on_where_the_last_sample_ended() -> None:
    device = ClockedDevice(2e-3, Reference())
    timer = timer_of(device)
    for _ in range(3):
        timer.sample()
    assert kept(device) == []
    in_graphs = [series.launches for series in device.made if series.mode == "graph"]
    assert [len(launches) for launches in in_graphs] == [1, 1, 1]
    assert len({launches[0] for launches in in_graphs}) == 3


def test_what_ran_a_moment_ago_is_not_warmed_up() -> None:
    device = ClockedDevice(2e-3, Reference())
    timer = timer_of(device)
    timer.sample()
    assert len(device.made[-1].lead) == 1
    timer.sample(warm=False)
    assert device.made[-1].lead == []


@pytest.mark.parametrize("seconds", [1e-6, 13e-6, 90e-6])
def test_a_graph_is_queued_while_its_lead_runs(seconds: float) -> None:
    device = ClockedDevice(seconds, Reference())
    timer = timer_of(device)
    timer.sample()
    (series,) = kept(device)
    sets = timer.operands.rotation.sets
    assert len(series.lead) == min(MAX_LEAD, -(-GPU_TRAITS.lead_seconds // seconds))
    in_order = [*series.lead, *series.launches]
    assert all((b - a) % sets == 1 for a, b in pairwise(in_order)), "operands stay cold"


def test_a_lead_that_was_sized_too_short_is_made_anew() -> None:
    """A round of so many sets has the same launches by either time."""
    device = ClockedDevice(10e-6, Reference(), queued=30e-6)
    timer = timer_of(device, from_mm(16, 16, 16))
    timer.sample()
    (series,) = kept(device)
    assert len(series.launches) == timer.operands.rotation.sets == MAX_SETS
    assert len(series.lead) == 10


def test_a_host_is_led_by_one_launch() -> None:
    device = ClockedDevice(13e-6)
    timer_of(device).sample()
    assert [len(series.lead) for series in kept(device)] == [1]


@pytest.mark.parametrize("screening", [False, True])
def test_launches_that_wait_for_the_host_when_they_are_sized_get_as_many_as_others(screening: bool) -> None:
    numbers = []
    for queued in (0.0, 20e-6, 166e-6):
        device = ClockedDevice(13e-6, Reference(), queued)
        timer = timer_of(device)
        for _ in range(3):
            assert timer.sample(screening=screening).seconds == 13e-6
        (series,) = kept(device)
        numbers.append((len(series.launches), len(series.lead), series.samples))
    assert numbers[0] == numbers[1] == numbers[2]


@pytest.mark.parametrize(("reference", "launches"), [(None, [1, 10]), (Reference(), [1, 3])])
def test_the_first_sample_sizes_the_others(reference: Any, launches: list[int]) -> None:
    device = ClockedDevice(13e-6, reference)
    timer_of(device).sample()
    assert [len(s.launches) for s in device.made if s.mode == "eager"] == launches


def test_a_long_launch_is_sized_by_one() -> None:
    device = ClockedDevice(1e-3, Reference())
    assert timer_of(device).size().seconds == 1e-3
    assert [len(s.launches) for s in device.made] == [1]


def test_a_candidate_is_bound_to_the_sets_that_it_runs_on() -> None:
    timer = timer_of(ClockedDevice(13e-6, Reference()), from_mm(16, 16, 16))
    seen: list[int] = []
    bind = timer.kernel.bind

    def counted(operands: Any, workspace: int) -> Launch:
        seen.append(workspace)
        return bind(operands, workspace)

    timer.kernel.bind = counted  # type: ignore[method-assign]
    timer.size()
    assert 1 < len(seen) < 10 < timer.operands.rotation.sets
    for _ in range(3):
        timer.sample()
    assert len(seen) == timer.operands.rotation.sets


def test_rotation_exceeds_the_caches_or_says_that_it_does_not() -> None:
    cold = timer_of(ClockedDevice(1e-5, Reference())).operands.rotation
    assert cold.cold
    assert cold.bytes >= COLD_CACHES * 2**20
    assert timer_of(ClockedDevice(1e-5, Reference()), cache="warm").operands.rotation.sets == 1


@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_operands_are_timed_at_addresses_as_the_problem_promises(alignment: int) -> None:
    reference = Reference()
    timer_of(ClockedDevice(1e-5, reference), from_blas(64, 48, 32, "bf16", alignment=alignment))
    assert all(address % alignment == 0 for address in reference.drawn)
    if alignment < 16:
        assert all(address % (2 * alignment) for address in reference.drawn)
    else:
        assert all(address % 256 == 0 for address in reference.drawn), "as allocators align"


def test_operands_do_not_overlap() -> None:
    reference, problem = Reference(), from_blas(65, 47, 33, "bf16", beta=1.0, alignment=2)
    timer_of(ClockedDevice(1e-5, reference), problem)
    sizes = [layout.bytes for layout in layouts(problem).values()]
    places = sorted(zip(reference.drawn, sizes * (len(reference.drawn) // len(sizes)), strict=True))
    assert all(a + size <= b for (a, size), (b, _) in pairwise(places))


def test_memory_is_given_back_where_inputs_cannot_be_drawn() -> None:
    device = ClockedDevice(1e-5, Reference(CompilerMissing("no NVRTC")))
    with pytest.raises(CompilerMissing):
        timer_of(device)
    assert device.freed == 1


def test_what_does_not_fit_is_said_with_its_size() -> None:
    with pytest.raises(DeviceMemoryExceeded, match=r"needs about \d+ MiB to run and verify"):
        timer_of(ClockedDevice(1e-5, Reference(), free_bytes=2**20))


def test_a_device_with_a_reference_needs_less_than_a_host() -> None:
    large = from_mm(32768, 32768, 32768, "bf16")
    assert working_bytes(large, device_reference=True) < working_bytes(large, device_reference=False) / 2


# ---- packed weights ------------------------------------------------------------------------------

WEIGHTS = weights(16, 512, 1024)


class Packed:
    """A kernel that reads packed copies: its launches are ("pack" or "run", the operands)."""

    workspace_bytes = 0

    def __init__(self, layout: str | None = "rows", packed_bytes: int = 512 * 1024 // 2) -> None:
        self.layout, self.packed_bytes = layout, packed_bytes

    def pack(self, operands: Operands) -> Any:
        return "pack", operands

    def bind(self, operands: Operands, workspace: int) -> Any:
        return "run", operands


def packed_timers(device: Any, *kernels: Any) -> list[Timer]:
    """Timers of kernels that share operand sets."""
    sets = OperandSets(device, WEIGHTS, MeasurementPolicy(mode="graph"), 0)
    return [Timer.of(device, kernel, sets, "graph", lambda _: 0) for kernel in kernels]


def packs(device: ClockedDevice) -> list[Clocked]:
    """The series that pack."""
    return [series for series in device.made if series.launches[0][0] == "pack"]


def test_weights_are_packed_before_anything_is_timed_once_for_all_of_a_layout() -> None:
    device = ClockedDevice(13e-6, Reference())
    timers = packed_timers(device, *(Packed() for _ in range(60)), Packed(None))
    assert len(packs(device)) == len(device.made) == 1
    for timer in timers:
        timer.size()
        timer.sample(screening=True)
        timer.sample()
    (series,) = packs(device)
    assert series is device.made[0]
    assert series.mode == "eager"
    assert series.closed
    kinds = {kind for other in device.made[1:] for kind, _ in [*other.launches, *other.lead]}
    assert kinds == {"run"}, "packing is in no sample"


def test_each_set_in_rotation_has_a_packed_copy_of_its_own_weights() -> None:
    device = ClockedDevice(13e-6, Reference())
    first, second, plain = packed_timers(device, Packed(), Packed(), Packed(None))
    rotation = first.operands.rotation
    assert rotation.sets > 1
    (packing,) = packs(device)
    written = {operands.packed: operands.a for _, operands in packing.launches}
    assert len(written) == rotation.sets
    assert sorted(written.values()) == sorted(operands.a for operands in first.operands.sets)
    assert all(address % PACKED_ALIGNMENT == 0 for address in written)
    assert all(b - a >= Packed().packed_bytes for a, b in pairwise(sorted(written)))
    for timer in (first, second):
        timer.sample()
        read = [operands for _, operands in kept(device)[-1].launches]
        assert len({operands.packed for operands in read}) == rotation.sets
        assert all(written[operands.packed] == operands.a for operands in read)
        assert timer.operands.cold(timer.kernel)
    plain.sample()
    assert {operands.packed for _, operands in kept(device)[-1].launches} == {0}


def test_only_weights_are_there_when_they_are_packed() -> None:
    device = ClockedDevice(13e-6, Reference())
    packed_timers(device, Packed())
    for _, operands in packs(device)[0].launches:
        assert operands.a
        assert operands.scale_a
        assert (operands.b, operands.c, operands.d, operands.bias, operands.scale_b) == (0, 0, 0, 0, 0)


def test_packing_costs_what_the_fastest_round_takes() -> None:
    device = ClockedDevice(13e-6, Reference(), queued=85e-6)
    timers = packed_timers(device, Packed(), Packed("tiles"), Packed(None))
    costs = [timer.packing() for timer in timers]
    assert costs[0] == {"packing": {"layout": "rows", "bytes": 512 * 1024 // 2, "us": 85.0}}
    assert costs[1]["packing"]["layout"] == "tiles"
    assert costs[2] == {}
    device.queued = 60e-6
    assert timers[0].packing()["packing"]["us"] == 85.0
    assert timers[0].packing(again=True)["packing"]["us"] == 60.0


def test_a_copy_much_smaller_than_the_weights_is_told_as_not_cold() -> None:
    """All sets are then gone through, in a screening too."""
    device = ClockedDevice(13e-6, Reference())
    large, small = packed_timers(device, Packed(), Packed("small", 1024))
    assert "packed_copies_fit_the_cache" not in large.packing()
    assert small.packing()["packed_copies_fit_the_cache"] is True
    sets = large.operands.rotation.sets
    for timer, gone in ((large, -(-sets // 2)), (small, sets)):
        timer.sample(screening=True)
        assert len({operands.a for _, operands in kept(device)[-1].launches}) == gone


def test_half_of_the_packed_copies_exceeds_the_cache_as_half_of_the_sets_does() -> None:
    (timer,) = packed_timers(ClockedDevice(13e-6, Reference()), Packed())
    half = -(-timer.operands.rotation.sets // 2)
    assert half * Packed().packed_bytes > ClockedDevice.cache_bytes


def test_copies_that_do_not_fit_are_that_candidates_alone() -> None:
    device: Any = ClockedDevice(13e-6, Reference(), free_bytes=2**24)
    sets = OperandSets(device, WEIGHTS, MeasurementPolicy(mode="graph"), 0)

    def pack(kernel: Any) -> None:
        Timer.of(device, kernel, sets, "graph", lambda _: 0)

    with pytest.raises(DeviceMemoryExceeded, match=r"in layout huge need [0-9,]+ MiB; of 50% of the free"):
        pack(Packed("huge", 2**32))
    assert packs(device) == []
    pack(Packed())
    assert len(packs(device)) == 1
    with pytest.raises(DeviceMemoryExceeded, match="operands and other layouts leave 1 MiB"):
        pack(Packed("another"))
    pack(Packed())
    pack(Packed("another", 1024))
    assert len(packs(device)) == 2


def test_copies_are_allocated_when_they_are_needed_and_freed_with_the_operands() -> None:
    device = ClockedDevice(13e-6, Reference())
    plain, *_ = packed_timers(device, Packed(None))
    plain.operands.free()
    assert device.freed == 1
    one, *_ = packed_timers(device, Packed(), Packed(), Packed("tiles"))
    one.operands.free()
    assert device.freed == 1 + 3


def test_copies_are_freed_where_packing_fails() -> None:
    device = ClockedDevice(13e-6, Reference())

    class Failing(Packed):
        def pack(self, operands: Operands) -> Any:
            raise LaunchError("no such launch")

    with pytest.raises(LaunchError, match="no such launch"):
        packed_timers(device, Failing())
    assert device.freed == 1


def test_a_layouts_name_says_its_size() -> None:
    with pytest.raises(LaunchError, match="in layout rows has 300 bytes, that of another kernel 262144"):
        packed_timers(ClockedDevice(13e-6, Reference()), Packed(), Packed("rows", 300))


def test_what_a_prepacked_problem_needs_has_its_packed_copies() -> None:
    stored = weights(16, 4096, 4096)
    prepacked = weights(16, 4096, 4096, prepacked=True)
    copy = most_packed_bytes(prepacked)
    assert most_packed_bytes(stored) == 0
    assert copy > 4096 * 4096 // 2
    for on_device, copies in ((True, 3), (False, 5)):
        assert working_bytes(prepacked, on_device) == working_bytes(stored, on_device) + copies * copy


def test_a_prepacked_problem_that_fits_has_space_for_its_packed_copies() -> None:
    """On the smallest device that passes, and on those that have space for some sets."""
    problem = weights(16, 512, 1024, prepacked=True)
    needed = working_bytes(problem, device_reference=True)
    largest: Any = Packed("rows", most_packed_bytes(problem) - 2 * PACKED_ALIGNMENT)
    for part in (1.0, 1.2, 1.7, 2.5, 6.0):
        device: Any = ClockedDevice(13e-6, Reference(), free_bytes=int(2 * part * needed) + 2)
        sets = OperandSets(device, problem, MeasurementPolicy(mode="graph"), 0)
        Timer.of(device, largest, sets, "graph", lambda _: 0)
        assert len(packs(device)) == 1
    too_small: Any = ClockedDevice(13e-6, Reference(), free_bytes=2 * needed - 2)
    with pytest.raises(DeviceMemoryExceeded, match="to run and verify"):
        OperandSets(too_small, problem, MeasurementPolicy(mode="graph"), 0)
