"""The contract of a backend, run on every registered one. Its first part holds on any machine; the second
runs where the backend's devices are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import DeviceLost, IllegalSolution, LaunchError, UnsupportedProblem
from backends.hip import backend as hip
from backends.operands import Operands
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.protocol import Backend, Device, DeviceListedFamily, Family
from backends.registry import BACKENDS as REGISTERED
from backends.registry import load_object
from backends.solution import Parameter, Solution
from tests.backends.hip.on_host.build import variables
from tests.backends.weight_samples import mx_product
from tuners.inputs import Case, applicable, cases
from tuners.verify_device import make_verifier

ON_HOST = "hip-on-host"
PROBLEMS = {
    "fp32 nn": from_mm(33, 70, 129),
    "fp32 decode bias gelu": from_linear(5, 257, 511, bias="fp32", activation="gelu"),
    "fp64 tt beta": from_mm(40, 30, 50, "fp64", trans_a="T", trans_b="T", alpha=2.0, beta=1.0),
    "fp16 linear bias": from_linear(17, 65, 300, "fp16", bias="fp16"),
    "fp16 few rows": from_mm(200, 3, 300, "fp16", activation="silu"),
    "bf16 to fp32": from_linear(9, 100, 200, "bf16", dtype_d="fp32"),
    "bf16 batch broadcast": from_bmm(3, 20, 30, 40, "bf16", stride_b=0, activation="relu"),
    "int8": from_linear(31, 70, 90, "int8"),
    "groups": from_linear(40, 48, 72, "bf16", groups=5, routing=[0, 30, 0, 9, 1]),
    "swiglu": from_linear(40, 48, 72, "bf16", groups=5, routing=[0, 30, 0, 9, 1], activation="swiglu"),
    "mxfp4 by mxfp4": mx_product(33, 70, 96),
    "int8 in whole vectors": from_linear(32, 64, 96, "int8"),
    "bias along rows": from_mm(30, 50, 20, bias="fp32", bias_axis="m"),
}


#: A device that each backend was once run on, for machines that have none.
RECORDED = {
    "hip": Environment(
        "hip", "gfx942", "AMD Instinct MI300X", 304, 205_520_896_000, "GPU-recorded", driver="6.12.12",
        runtime="HIP 7.0.51831",
        libraries={
            "gcn_arch": "gfx942:sramecc+:xnack-", "hip": "70051831", "hipblaslt": "100000-af8eb8ab1e",
            "hiprtc": "9.0", "rocblas": "5.0.0.af8eb8ab1e", "torch": "2.9.1+rocm7.0",
        },
    ),
    "cuda": Environment(
        "cuda", "sm_90", "NVIDIA H200", 132, 150_754_820_096, "GPU-recorded", driver="580.159.04",
        runtime="CUDA 13.0",
        libraries={"cublas": "130100", "cublaslt": "130100", "nvrtc": "13.0", "torch": "2.11.0+cu130"},
    ),
}  # fmt: skip
#: Problems that no call of a backend without torch takes: cuBLASLt multiplies int8 with k in whole vectors of
#: four; AMD's libraries add a bias along the contiguous dimension alone, and have no products of groups nor
#: of MXFP4.
REFUSED = {("cuda", "int8"), ("null", "fp64 tt beta"), ("null", "int8"), ("null", "int8 in whole vectors"),
           ("hip", "bias along rows"), ("hip", "groups"), ("null", "groups"),
           ("hip", "swiglu"), ("null", "swiglu"), ("hip", "mxfp4 by mxfp4"),
           ("null", "mxfp4 by mxfp4")}  # fmt: skip
#: Backends whose devices any machine that runs these tests has.
EVERYWHERE = ("cpu", "null", ON_HOST)
#: At most so many candidates of a family that its library lists, and of one's neighbours; of our own kernels
#: for a GPU, whose lists are samples of a space that suites of their own go through. Of the CPU's, each of
#: which is compiled, at most so many instantiations, from all over the list.
LISTED, NEAR, COMPILED = 6, 2, 2
#: Families of our own that are compiled for a problem on the host's HIP.
HOST_FAMILIES = 1
#: The registered backends, the shared GPU layer without a GPU, and the HIP backend on libraries of our own.
BACKENDS = {
    **REGISTERED,
    "null": "backends.gpu.null_backend:NullBackend",
    ON_HOST: "backends.hip.backend:HipBackend",
}


# ---- on any machine ----------------------------------------------------------------------------


@contextmanager
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The backend of a fixture's parameter, where it needs them with libraries of our own."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == ON_HOST:
            for name, value in variables(request.getfixturevalue("rocm"), bad="0").items():
                patch.setenv(name, value)
            patch.setattr(hip, "usable_build", lambda: None)  # Triton's kernels are machine code
            hip._look.cache_clear()
        made: Backend = load_object(BACKENDS[request.param])()  # type: ignore[operator]
        yield made
    hip._look.cache_clear()


@pytest.fixture(params=sorted(BACKENDS))
def one(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with backend(request) as made:
        yield made


@pytest.fixture
def environment(one: Backend) -> Environment:
    """Its first device here, or a recorded one."""
    return next(iter(one.probe().devices), None) or RECORDED[one.name]


def test_probe_is_repeatable_and_its_environment_survives_json(one: Backend) -> None:
    first, second = one.probe(), one.probe()
    assert first == second
    assert first.devices or first.notes, "no devices: somebody must be told why"
    assert first.devices or one.name not in EVERYWHERE
    for environment in first.devices:
        assert environment.vendor == one.name
        assert Environment.from_dict(environment.to_dict()) == environment
        assert environment.units >= 1
        assert environment.memory_bytes > 0


def test_a_device_beyond_the_last_is_lost(one: Backend, cache: BinaryCache) -> None:
    with pytest.raises(DeviceLost, match=f"^{one.name} device 99 is gone: "):
        one.open(99, cache)


def test_families_are_known_by_their_names(one: Backend, environment: Environment) -> None:
    found = one.families()
    assert list(found) == list(one.families())
    for name, family in found.items():
        assert family.name == name
        assert family.unavailable(environment) is None or family.unavailable(environment)


def test_a_family_whose_library_is_missing_says_so(one: Backend, environment: Environment) -> None:
    bare = replace(environment, libraries={})
    asked = {name: family.unavailable(bare) for name, family in one.families().items()}
    assert all(reason is None or len(reason) > 10 for reason in asked.values())
    if one.name not in EVERYWHERE:
        assert None not in asked.values(), asked


def test_what_baselines_call_is_legal(one: Backend, environment: Environment) -> None:
    for name, problem in PROBLEMS.items():
        for baseline in [] if _refused(one, name) else one.baselines(problem, environment):
            family = one.families()[baseline.solution.family]
            assert baseline.name
            assert family.supports(problem)
            assert family.unavailable(environment) is None
            assert family.illegal(problem, baseline.solution, environment) is None


@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_are_distinct_legal_and_of_their_family(
    one: Backend, environment: Environment, name: str
) -> None:
    problem = PROBLEMS[name]
    ids, told = [], False
    for family_name, family in one.families().items():
        if family.unavailable(environment) or not family.supports(problem):
            continue
        told = told or isinstance(family, DeviceListedFamily)
        for solution in family.solutions(problem, environment):
            assert solution.family == family_name
            assert family.illegal(problem, solution, environment) is None, solution
            ids.append(solution.id)
    assert len(ids) == len(set(ids))
    # Vendors' libraries have one call each, or tell their candidates on the device.
    assert len(ids) > (3 if one.name == "cpu" else 0) or told or _refused(one, name)


@pytest.mark.parametrize(
    "problem", [from_linear(16, 16, 16, "complex64"), from_bmm(3, 16, 16, 16, "complex128")]
)
def test_a_problem_of_no_backend_is_refused_by_name(
    one: Backend, environment: Environment, problem: GemmProblem
) -> None:
    with pytest.raises(UnsupportedProblem, match=f"{one.name} backend .*{problem.dtype_a}"):
        one.baselines(problem, environment)
    assert not [name for name, family in one.families().items() if family.supports(problem)]


# ---- where the devices are ---------------------------------------------------------------------


def _refused(one: Backend, name: str) -> bool:
    """Whether no library call of a backend without torch takes the problem."""
    return one.name in ("null", "hip") and (one.name, name) in REFUSED


@dataclass
class Live:
    """A backend and its first device, opened."""

    backend: Backend
    device: Device
    name: str

    @property
    def environment(self) -> Environment:
        return self.device.environment


def _live(name: str) -> object:
    return pytest.param(name, marks=[] if name in EVERYWHERE else [getattr(pytest.mark, name)])


@pytest.fixture(scope="module", params=[_live(name) for name in sorted(BACKENDS)])
def live(request: pytest.FixtureRequest, cache: BinaryCache) -> Iterator[Live]:
    with backend(request) as found:
        if not found.probe().devices:
            pytest.fail(f"{found.name} is registered, but this machine has none of its devices")
        yield Live(found, found.open(0, cache), request.param)


def baselines_of(live: Live, name: str) -> list[Solution]:
    try:
        return [b.solution for b in live.backend.baselines(PROBLEMS[name], live.environment)]
    except UnsupportedProblem as error:
        if _refused(live.backend, name):
            return []
        if live.name in EVERYWHERE or "torch" in live.environment.libraries:
            raise
        pytest.skip(str(error))


def listed(live: Live, family: Family, problem: GemmProblem) -> Iterator[Solution]:
    """Of a list instantiations from its first to its last, once each; of a library that is asked, its first
    candidates and some of the first one's neighbours."""
    if isinstance(family, DeviceListedFamily):
        first = list(islice(family.enumerate_on(problem, live.device, None), LISTED))
        yield from first
        for origin in first[:1]:
            yield from islice(family.neighbours_on(problem, origin, live.device, None), NEAR)
        return
    if live.name not in EVERYWHERE:
        yield from islice(family.solutions(problem, live.environment), LISTED)
        return
    found: dict[tuple[Parameter, ...], Solution] = {}
    for solution in family.solutions(problem, live.environment):
        blocks = ("mc", "nc", "kc")
        key = tuple(value for name, value in solution.parameters.items() if name not in blocks)
        found.setdefault(key, solution)
    several = list(found.values())
    most = COMPILED if live.name == "cpu" else 1
    step = max(1, -(-len(several) // most))
    yield from several[::step]


def sample_of(live: Live, name: str) -> list[Solution]:
    """The baselines, and candidates of every family."""
    found = {solution.id: solution for solution in baselines_of(live, name)}
    compiled = 0
    for family in live.backend.families().values():
        if not family.unavailable(live.environment) and family.supports(PROBLEMS[name]):
            compiled += family.compiles
            if live.name == ON_HOST and family.compiles and compiled > HOST_FAMILIES:
                continue  # they run on the emulator in suites of their own
            for solution in listed(live, family, PROBLEMS[name]):
                assert solution.family == family.name
                assert family.illegal(PROBLEMS[name], solution, live.environment) is None, solution
                found[solution.id] = solution
    return list(found.values())


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_candidate_computes_right(live: Live, name: str, cache: BinaryCache) -> None:
    problem, families = PROBLEMS[name], live.backend.families()
    verifier = make_verifier(live.device)
    exact = 0
    try:
        for solution in sample_of(live, name):
            family = families[solution.family]

            def right(case: Case, family: Family = family, solution: Solution = solution) -> bool:
                """Whether it runs the case at all; where it does, it must be right."""
                p = case.problem
                if not family.supports(p) or family.illegal(p, solution, live.environment):
                    return False
                binary = family.compile(p, solution, live.environment, cache)
                try:
                    kernel = live.device.load(p, solution, binary)
                    finding = verifier.check(kernel, case)
                except IllegalSolution:  # libraries refuse as late as at a launch
                    return False
                assert finding.wrong == "", (solution.id, case.name, case.distribution)
                return True

            ran = [case.name for case in applicable(cases(problem, 2, 11), right)]
            exact += ran.count("exact")
            assert "exact" in ran or live.backend.name != "cpu", solution
    finally:
        verifier.forget()
    assert exact > 0 or (live.backend.name, name) in REFUSED, "every candidate was refused"


@pytest.mark.parametrize("every", [0, -1])
def test_a_sample_times_the_launches_it_was_given(live: Live, every: int, cache: BinaryCache) -> None:
    problem, device, mode = from_mm(64, 64, 64), live.device, live.backend.traits.modes[every]
    solution = live.backend.baselines(problem, live.environment)[0].solution
    family = live.backend.families()[solution.family]
    kernel = device.load(problem, solution, family.compile(problem, solution, live.environment, cache))
    buffers = [device.allocate(64 * 64 * 4) for _ in range(3)]
    workspace = device.allocate(kernel.workspace_bytes)
    for buffer in buffers:
        buffer.upload(np.zeros(buffer.size, np.uint8))
    operands = Operands(buffers[0].address, buffers[1].address, 0, buffers[2].address, 0, 1.0, 0.0)
    launch = kernel.bind(operands, workspace.address)
    series = device.series(kernel, [launch] * 7, mode, [launch] * 2)
    for warm in (True, False):
        sample = series.sample(warm)
        assert sample.launches == 7
        assert 0 < sample.seconds < 1
    series.close()
    for buffer in [*buffers, workspace]:
        buffer.free()


def test_memory_keeps_what_was_put_there(live: Live) -> None:
    buffer = live.device.allocate(1000)
    buffer.upload(np.zeros(1000, np.uint8))
    buffer.upload(np.arange(200, dtype=np.uint8), 17)
    assert buffer.size == 1000
    assert buffer.download(16, 202).tolist() == [0, *range(200), 0]
    buffer.free()
    assert 0 < live.device.free_bytes <= live.environment.memory_bytes
    assert live.device.cache_bytes > 0


def test_an_unknown_family_is_a_launch_error(live: Live) -> None:
    with pytest.raises(LaunchError, match="family 'nobody' is unknown; known: "):
        live.device.load(from_mm(4, 4, 4), Solution("nobody", 1, {}), None)
