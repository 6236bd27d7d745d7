"""The families hipblaslt and rocblas on the recorded answers of the genuine libraries (genuine/README.md)."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.hip import hipblaslt, library, rocblas
from backends.hip.hipblaslt import HipblasLt, HipblasLtHeuristic
from backends.hip.rocblas import Rocblas, RocblasDefault
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Baseline, Family, NamedKernel
from backends.solution import Solution
from service.formats import READERS, Entry, ExportRefused, ExportRow
from tests.backends.gpu.null_device import NullDevice
from tests.backends.hip.genuine import library_logs, recording
from tests.backends.hip.genuine.problems import DEVICES, PROBLEMS
from tests.backends.hip.genuine.recording import digest
from tests.backends.hip.genuine.replay import (
    RecordedHipblasLt,
    RecordedRocblas,
    described,
    described_product,
)
from tests.service.formats.made import outcomes, row, written
from tuners.policy import MeasurementPolicy
from tuners.space import listed as listed_by
from tuners.space import search_space

MIB = 2**20
UNLIMITED = 2**40
SERVED = ("gfx90a", "gfx1100", "gfx1201")
#: Counts of Debian's hipBLASLt 7.1.1 for 4096 x 512 x 4096 in bf16: listed, supported, heuristic.
LISTED = {"gfx90a": (2226, 2226, 2226), "gfx1100": (128, 64, 64), "gfx1201": (749, 749, 749)}
#: Limit on the size of the committed recording.
MOST_BYTES = 400_000


@lru_cache(maxsize=1)
def recorded() -> Mapping[str, Any]:
    return recording.load()


def answers(arch: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = recorded()["devices"][arch][name]
    return found


def queried(name: str, *, refused: bool = False) -> list[tuple[str, str]]:
    """(architecture, problem) for which a library listed solutions, or which it refused."""
    return [
        (arch, key)
        for arch, devices in recorded()["devices"].items()
        for key, one in devices[name]["problems"].items()
        if "unsupported" not in one and ("described" in one and "status" not in one) != refused
    ]


def environment(arch: str) -> Environment:
    probe = recorded()["devices"][arch]["probe"]
    (device,) = probe["devices"]
    fields = {name: value for name, value in device.items() if name not in ("gcn_arch", "address")}
    return Environment(**fields, libraries={**probe["libraries"], "gcn_arch": device["gcn_arch"]})


class OnRecording:
    """A device on which both libraries answer from the recording."""

    def __init__(self, arch: str) -> None:
        self.hipblaslt = RecordedHipblasLt(answers(arch, "hipblaslt"))
        self.rocblas = RecordedRocblas(answers(arch, "rocblas"))
        self.device = NullDevice(environment(arch))


Opened = Callable[[str], OnRecording]


@pytest.fixture
def on_recording(monkeypatch: pytest.MonkeyPatch) -> Opened:
    def opened(arch: str) -> OnRecording:
        found = OnRecording(arch)
        for module in (hipblaslt, rocblas):
            monkeypatch.setattr(module, "device_count", lambda: 1)
        monkeypatch.setattr(hipblaslt, "hipblaslt", lambda: found.hipblaslt)
        monkeypatch.setattr(rocblas, "rocblas", lambda: found.rocblas)
        missing = None if "described" in answers(arch, "rocblas")["problems"]["bf16 TN"] else "no tables"
        monkeypatch.setattr(rocblas, "missing_tables", lambda arch: missing)
        return found

    return opened


def index_of(solution: Solution) -> int:
    return int(solution.parameters["solution_index"] or 0)


def pairs(listed: list[Solution]) -> list[list[int]]:
    return [[index_of(solution), solution.workspace_bytes] for solution in listed]


# ---- the recording


def test_the_recording_is_small_and_names_its_source() -> None:
    assert recording.FILE.stat().st_size <= MOST_BYTES
    provenance = recorded()["provenance"]
    assert provenance["packages"]["libhipblaslt1"].startswith("7.1.1")
    assert {name: len(one["sha256"]) for name, one in provenance["libraries"].items()} == dict.fromkeys(
        ("amdhip64", "hiprtc", "hipblaslt", "rocblas"), 64
    )
    assert set(recorded()["devices"]) == {device.arch for device in DEVICES}


def test_counts_of_the_genuine_libraries() -> None:
    for arch, counts in LISTED.items():
        one = answers(arch, "hipblaslt")["problems"]["bf16 TN"]
        supported = [size for size in one["supports"] if size is not None]
        assert (len(one["every"]), len(supported), len(one["heuristic"])) == counts
    one = answers("gfx90a", "hipblaslt")["problems"]["bf16 TN"]
    assert sum(size > 0 for size in one["supports"]) == 1493
    assert one["heuristic_within_mib"] == {"32": 1076, "128": 1940}
    assert sum(size <= 128 * MIB for size in one["supports"]) == 1940
    assert max(one["supports"]) // 10**6 == 182
    one = answers("gfx90a", "rocblas")["problems"]["bf16 TN"]
    # A new handle has 32 MiB and lists the solutions that fit.
    assert (one["of_problem_at_first"], len(one["of_problem"]), len(one["of_types"])) == (522, 543, 1622)


@pytest.mark.parametrize(("arch", "key"), queried("hipblaslt"))
def test_the_genuine_hipblaslt_kept_to_what_we_rely_on(arch: str, key: str) -> None:
    one = answers(arch, "hipblaslt")["problems"][key]
    assert one["launches_while_listing"] == 0
    assert one["limit_filters"], "a limit excludes the solutions that need more, and no others"
    assert one["by_index"]
    launched = one["launched"]
    assert launched["loaded"] == launched["launched"] == launched["of"] > 0, launched["error"]
    assert set(one["heuristic"]) <= set(one["every"])


@pytest.mark.parametrize(("arch", "key"), queried("rocblas"))
def test_the_genuine_rocblas_kept_to_what_we_rely_on(arch: str, key: str) -> None:
    one = answers(arch, "rocblas")["problems"][key]
    assert one["launches_while_listing"] == 0, "the check of an index must not run it"
    assert one["same_after_launches"], "what is listed must not depend on the workspace of the last launch"
    assert one["refusals"] in ([], [11])
    assert set(one["of_problem"]) <= set(one["passed"]) <= set(one["of_types"])
    assert one["launched"]["loaded"] == one["launched"]["of"]


def test_numbers_structures_and_names_are_those_of_the_headers() -> None:
    found = recorded()["headers"]
    assert found["assertions"] > 100
    assert (found["failed"], found["names_differ"], found["names"]) == ([], [], 5)


def test_unguarded_calls_end_the_process() -> None:
    """The backend checks beforehand: device_count(), missing_tables(), by_index()."""
    assert recorded()["unguarded"] == {
        "hipblasLtCreate without a device": "exit 1",
        "rocblas_create_handle without a device": "exit 1: LibraryError: status 6",
        "rocBLAS's list of solutions on an architecture without tables": "SIGABRT",
        "matmulIsAlgoSupported of an index that the library lacks": "SIGSEGV",
    }


def test_the_probe_reports_that_the_genuine_runtime_has_no_device() -> None:
    found = recorded()["no_device"]
    assert "hipErrorNoDevice" in found["device_count"]
    assert found["probe"] == {"devices": 0, "notes": [found["device_count"]]}


@pytest.mark.parametrize("arch", [device.arch for device in DEVICES])
def test_hiprtc_compiles_every_family(arch: str) -> None:
    hiprtc = recorded()["hiprtc"]
    one = hiprtc["architectures"][arch]
    assert one["failed"] == {}
    matrix_cores = {"tile-mfma", "tile-wmma"}
    own = "tile-mfma" if arch.startswith("gfx9") else "tile-wmma"
    assert set(one["without_candidates"]) == matrix_cores - {own}
    assert own in one["compiled"]
    assert len(one["compiled"]) >= 15
    assert 1 <= min(one["compiled"].values()) <= max(one["compiled"].values()) == hiprtc["samples"]


def test_a_recording_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "again.json.gz"
    recording.save(recorded(), path)
    assert recording.load(path) == recorded()
    packed = {"format": recording.FORMAT + 1}
    path.write_bytes(gzip.compress(json.dumps(packed).encode()))
    with pytest.raises(ValueError, match=f"format {recording.FORMAT + 1}, not {recording.FORMAT}: record it"):
        recording.load(path)


def test_differences_name_what_changed_and_ignore_order_and_dates() -> None:
    old = {"date": "1", "every": [1, 2], "first": [[3, 4], [5, 6]], "a": {"b": 7}, "gone": 0}
    new = {"date": "2", "every": [1, 3, 4], "first": [[5, 6], [3, 4]], "a": {"b": 8}, "here": 0}
    assert recording.differences(old, new) == [
        "every: 2 before, 3 now, 1 the same at their places",
        "a: b: 7 before, 8 now",
        "gone: only in the old recording",
        "here: only in the new recording",
    ]


# ---- descriptions of problems


@pytest.mark.parametrize(("arch", "key"), queried("hipblaslt") + queried("hipblaslt", refused=True))
def test_a_problem_is_described_to_hipblaslt_as_when_it_was_recorded(arch: str, key: str) -> None:
    assert described(PROBLEMS[key]) == answers(arch, "hipblaslt")["problems"][key]["described"]


@pytest.mark.parametrize(("arch", "key"), queried("rocblas"))
def test_a_problem_is_described_to_rocblas_as_when_it_was_recorded(arch: str, key: str) -> None:
    assert list(described_product(PROBLEMS[key])) == answers(arch, "rocblas")["problems"][key]["described"]


@pytest.mark.parametrize("arch", SERVED)
@pytest.mark.parametrize(("name", "log"), [("hipblaslt", "hipblaslt-log"), ("rocblas", "rocblas-profile")])
def test_the_librarys_own_log_has_the_problem(arch: str, name: str, log: str) -> None:
    read = [found for line in answers(arch, name)["log"] for found in outcomes(READERS[log], line)]
    assert all(isinstance(found, Entry) for found in read), read
    problems = {found.problem for found in read if isinstance(found, Entry)}
    served = "described" in answers(arch, name)["problems"]["bf16 TN"]
    assert problems == (
        {problem for _, problem in library_logs.logged_problems(name, arch)} if served else set()
    )


# ---- hipBLASLt


def expected(one: Mapping[str, Any], limit: int) -> list[list[int]]:
    """The heuristic's answers in their order, then the rest by index, within a limit of the workspace."""
    sizes = dict(zip(one["every"], one["supports"], strict=True))
    picked = {index: one["heuristic_differs"].get(str(index), sizes[index]) for index in one["heuristic"]}
    rest = {index: size for index, size in sorted(sizes.items()) if index not in picked and size is not None}
    return [[index, size] for index, size in {**picked, **rest}.items() if size <= limit]


@pytest.mark.parametrize(("name", "limit"), [("default", None), ("unlimited", UNLIMITED)])
@pytest.mark.parametrize(("arch", "key"), queried("hipblaslt"))
def test_hipblaslt_lists_the_union(
    on_recording: Opened, arch: str, key: str, name: str, limit: int | None
) -> None:
    device, one = on_recording(arch).device, answers(arch, "hipblaslt")["problems"][key]
    family = HipblasLt()
    listed = list(family.enumerate_on(PROBLEMS[key], device, limit))
    assert pairs(listed) == expected(one, 32 * MIB if limit is None else limit)
    live = one["enumerated"][name]
    assert (len(listed), digest(sorted(pairs(listed)))) == (live["count"], live["sha256"])
    assert {(s.family, s.version, s.build, s.deterministic) for s in listed} <= {
        ("hipblaslt", 1, answers(arch, "hipblaslt")["build"], None)
    }
    assert all(family.illegal(PROBLEMS[key], s, device.environment) is None for s in listed[:8])
    assert family.notes(PROBLEMS[key], device.environment) == ()


@pytest.mark.parametrize("arch", SERVED)
def test_a_solution_that_only_one_of_the_lists_has_is_listed(on_recording: Opened, arch: str) -> None:
    found = on_recording(arch)
    one = dict(answers(arch, "hipblaslt")["problems"]["bf16 TN"])
    cut = one["heuristic"][3:]
    problems = {**answers(arch, "hipblaslt")["problems"], "bf16 TN": {**one, "heuristic": cut}}
    found.hipblaslt = RecordedHipblasLt({**answers(arch, "hipblaslt"), "problems": problems})
    listed = pairs(list(HipblasLt().enumerate_on(PROBLEMS["bf16 TN"], found.device, UNLIMITED)))
    assert [index for index, _ in listed] == cut + sorted(one["heuristic"][:3])


def test_a_workspace_of_exactly_the_limit_is_within_it(on_recording: Opened) -> None:
    found, problem = on_recording("gfx90a"), PROBLEMS["bf16 TN"]
    recorded_here = answers("gfx90a", "hipblaslt")
    one = recorded_here["problems"]["bf16 TN"]
    sizes = dict(zip(one["every"], one["supports"], strict=True))
    needs_most = {index for index, size in sizes.items() if size == max(one["supports"])}
    only_in_list = {**one, "heuristic": [index for index in one["heuristic"] if index not in needs_most]}
    for replayed in (one, only_in_list):
        problems = {**recorded_here["problems"], "bf16 TN": replayed}
        found.hipblaslt = RecordedHipblasLt({**recorded_here, "problems": problems})
        for limit, expected_here in ((max(one["supports"]), needs_most), (max(one["supports"]) - 1, set())):
            device = NullDevice(environment("gfx90a"))
            listed = pairs(list(HipblasLt().enumerate_on(problem, device, limit)))
            assert {index for index, _ in listed} & needs_most == expected_here


@pytest.mark.parametrize("arch", SERVED)
def test_tf32_lists_the_heuristics_answers_although_the_extension_supports_none(
    on_recording: Opened, arch: str
) -> None:
    one = answers(arch, "hipblaslt")["problems"]["tf32 NT"]
    assert one["supports"] == [None] * len(one["every"])
    device, problem, family = on_recording(arch).device, PROBLEMS["tf32 NT"], HipblasLt()
    listed = list(family.enumerate_on(problem, device, None))
    assert [index for index, _ in pairs(listed)] == [
        index for index in one["heuristic"] if one["heuristic_differs"][str(index)] <= 32 * MIB
    ]
    kernel = family.load(problem, listed[-1], None, device)
    assert kernel.workspace_bytes == listed[-1].workspace_bytes


@pytest.mark.parametrize(("arch", "key"), queried("hipblaslt"))
def test_names_reach_the_kernel(on_recording: Opened, arch: str, key: str) -> None:
    device, problem, family = on_recording(arch).device, PROBLEMS[key], HipblasLt()
    recorded_names = answers(arch, "hipblaslt")["names"]
    for solution in list(family.enumerate_on(problem, device, UNLIMITED))[::31]:
        kernel = family.load(problem, solution, None, device)
        assert isinstance(kernel, NamedKernel)
        assert kernel.workspace_bytes == solution.workspace_bytes
        names = kernel.names()
        assert [names["kernel_name"], names["solution_name"]] == recorded_names[index_of(solution)]
        assert f"_ISA{arch.removeprefix('gfx')}_" in names["solution_name"]
        assert names["solution_name"].startswith("Cijk_")


def test_solutions_that_the_library_lacks_or_of_other_types_are_illegal(
    on_recording: Opened,
) -> None:
    device, problem = on_recording("gfx90a").device, PROBLEMS["bf16 TN"]
    other = answers("gfx90a", "hipblaslt")["problems"]["fp16 NN"]["every"][0]
    for index, why in ((2**31 - 1, "has no solution 2147483647 here"), (other, "does not support tn_4096")):
        with pytest.raises(IllegalSolution, match=why):
            HipblasLt().load(problem, Solution("hipblaslt", 1, {"solution_index": index}), None, device)


@pytest.mark.parametrize("arch", SERVED)
def test_a_rank_is_the_heuristics_answer(on_recording: Opened, arch: str) -> None:
    device, problem = on_recording(arch).device, PROBLEMS["bf16 TN"]
    recorded_here = answers(arch, "hipblaslt")
    first = recorded_here["problems"]["bf16 TN"]["heuristic"][0]
    baseline = hipblaslt.first_heuristic(device.environment, None)
    kernel = HipblasLtHeuristic().load(problem, baseline, None, device)
    assert kernel.names()["solution_name"] == recorded_here["names"][first][1]
    beyond = replace(baseline, parameters={"rank": 4000, "workspace_limit": 2**25})
    with pytest.raises(IllegalSolution, match="none of rank 4000"):
        HipblasLtHeuristic().load(problem, beyond, None, device)


# ---- an architecture that a library was not built for


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_an_architecture_without_tables_gives_status_3_and_a_note(on_recording: Opened, arch: str) -> None:
    device, problem, family = on_recording(arch).device, PROBLEMS["bf16 TN"], HipblasLt()
    assert answers(arch, "hipblaslt")["problems"]["bf16 TN"]["status"] == 3
    assert list(family.enumerate_on(problem, device, None)) == []
    (note,) = family.notes(problem, device.environment)
    assert note.startswith(f"no candidates from hipBLASLt on {arch}")
    assert "HIPBLAS_STATUS_INVALID_VALUE" in note
    assert [note] == answers(arch, "hipblaslt")["problems"]["bf16 TN"]["notes"]
    assert family.notes(PROBLEMS["fp16 NN"], device.environment) == (), "the note belongs to another problem"
    with pytest.raises(IllegalSolution, match=r"HIPBLAS_STATUS_INVALID_VALUE"):
        HipblasLtHeuristic().load(problem, hipblaslt.first_heuristic(device.environment, None), None, device)
    with pytest.raises(IllegalSolution, match="has no solution 5 here"):
        HipblasLt().load(problem, Solution("hipblaslt", 1, {"solution_index": 5}), None, device)


@pytest.mark.parametrize("arch", ["gfx1201", "gfx942", "gfx950"])
def test_rocblas_without_tables_is_not_called(on_recording: Opened, arch: str) -> None:
    device, problem, family = on_recording(arch).device, PROBLEMS["bf16 TN"], Rocblas()
    assert list(family.enumerate_on(problem, device, None)) == []
    (note,) = family.notes(problem, device.environment)
    assert note == f"no candidates from rocBLAS on {arch}: rocBLAS has no kernels for {arch}: no tables"
    for other in (Rocblas(), RocblasDefault()):
        with pytest.raises(IllegalSolution, match=f"rocBLAS has no kernels for {arch}"):
            other.load(problem, Solution(other.name, 1, {"solution_index": 5}), None, device)


class TwoLibraries:
    """A backend with these two families alone."""

    name = "hip"

    def __init__(self) -> None:
        self._families: Mapping[str, Family] = {"hipblaslt": HipblasLt(), "rocblas": Rocblas()}

    def families(self) -> Mapping[str, Family]:
        return self._families

    def baselines(self, *_: Any) -> tuple[Baseline, ...]:
        return ()


@pytest.mark.parametrize("arch", [device.arch for device in DEVICES])
def test_a_search_space_holds_the_listed_solutions_or_a_note(on_recording: Opened, arch: str) -> None:
    device: Any = on_recording(arch).device
    backend: Any = TwoLibraries()
    problem = PROBLEMS["bf16 TN"]
    policy = MeasurementPolicy()
    rest: Any = problem, backend, device.environment, policy.max_workspace_bytes, device
    space = search_space(
        problem, backend, device.environment, policy, lister=lambda names: listed_by(names, *rest)
    )
    counts = {
        name: sum(solution.family == name for solution in space.candidates) for name in backend.families()
    }
    of = {name: answers(arch, name)["problems"]["bf16 TN"]["enumerated"] for name in counts}
    limit = policy.max_workspace_bytes
    name = "default" if limit is None else "unlimited"
    for family, found in of.items():
        listed = found[name] if isinstance(found, Mapping) else {"count": 0}
        assert counts[family] <= listed["count"]
        titles = {"hipblaslt": "hipBLASLt", "rocblas": "rocBLAS"}
        noted = any(note.startswith(f"no candidates from {titles[family]} on {arch}") for note in space.notes)
        assert noted == (counts[family] == 0) == (listed["count"] == 0)


# ---- the build


def test_a_build_without_a_revision_is_its_version_and_its_files_digest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    lt = answers("gfx90a", "hipblaslt")
    assert (lt["version"], lt["revision"]) == (100100, "")
    sha256 = recorded()["provenance"]["libraries"]["hipblaslt"]["sha256"]
    assert lt["build"] == f"100100+file-{sha256[:12]}"
    assert environment("gfx90a").libraries["hipblaslt"] == lt["build"]
    file = tmp_path / "libhipblaslt.so"
    file.write_bytes(b"library")
    monkeypatch.setattr(library, "find_library", lambda name: file)
    library.file_digest.cache_clear()
    stand_in: Any = RecordedHipblasLt(lt)
    assert hipblaslt.hipblaslt_build(stand_in, 1) == f"100100+file-{sha256_of(b'library')[:12]}"
    library.file_digest.cache_clear()


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_override_file_is_refused_for_a_build_without_a_revision(on_recording: Opened) -> None:
    rows = exported_rows(on_recording, HipblasLt(), environment("gfx90a"))
    with pytest.raises(ExportRefused, match=r"HIPBLASLT_VERSION '100100\+file-0e621a6a494d' is not"):
        written("hipblaslt", rows, "rocm-7.1")
    with pytest.raises(ExportRefused, match=r"'100100\+file-0e621a6a494d' is a build without a git revision"):
        written("tunableop", rows, "torch-2.10.0+rocm7.1")


# ---- exports


#: The build as a release of AMD's has it.
REVISION = "100100-0123456789"


def with_revision() -> Environment:
    here = environment("gfx90a")
    return replace(here, libraries={**here.libraries, "hipblaslt": REVISION})


def exported_rows(on_recording: Opened, family: HipblasLt | Rocblas, here: Environment) -> list[ExportRow]:
    """A row of every problem, won by a solution from the middle of the replayed list."""
    on_recording(here.arch)
    rows = []
    for arch, key in queried(family.name):
        if arch == here.arch:
            listed = list(family.enumerate_on(PROBLEMS[key], NullDevice(here), UNLIMITED))
            rows.append(row(PROBLEMS[key], environment=here, solution=listed[len(listed) // 2]))
    return rows


def read_back(name: str, text: str) -> dict[GemmProblem, tuple[str, int]]:
    """Problem -> family and index, as the format's reader finds them."""
    entries = [found for found in outcomes(READERS[name], text) if isinstance(found, Entry)]
    claims = [(found.problem, found.claim.solution) for found in entries if found.claim is not None]
    return {
        problem: (solution.family, index_of(solution)) for problem, solution in claims if solution is not None
    }


def listed_index(one: ExportRow) -> tuple[str, int]:
    return one.solution.family, index_of(one.solution)


_EPILOGUE, _BETA = "bf16 TN, bias and gelu", "bf16 TN, padded, beta, batch of 3"
#: Problems that the keys of a format cannot record. TunableOp's have one type for inputs and output.
UNNAMED = {
    "tunableop": {_EPILOGUE, _BETA, "int8 TN"},
    "hipblaslt": {_EPILOGUE, _BETA},
    "aiter": set(PROBLEMS) - {"bf16 TN", "bf16 TN, odd sizes"},
}


@pytest.mark.parametrize(
    ("name", "target"),
    [("tunableop", "torch-2.10.0+rocm7.1"), ("hipblaslt", "rocm-7.1"), ("aiter", None)],
)
def test_an_export_carries_the_listed_index_of_hipblaslt(
    on_recording: Opened, name: str, target: str | None
) -> None:
    rows = exported_rows(on_recording, HipblasLt(), with_revision())
    text, report = written(name, rows, target)
    named = [one for one in rows if one.problem not in {PROBLEMS[key] for key in UNNAMED[name]}]
    assert len(named) == report.written > 0
    assert read_back(name, text) == {one.problem: listed_index(one) for one in named}
    recorded_here = answers("gfx90a", "hipblaslt")["names"]
    assert {listed_index(one)[1] for one in named} <= set(recorded_here)


def test_tunableops_file_carries_the_listed_index_of_rocblas_and_the_recorded_validators(
    on_recording: Opened,
) -> None:
    rows = exported_rows(on_recording, Rocblas(), with_revision())
    text, report = written("tunableop", rows, "torch-2.10.0+rocm7.1")
    named = [one for one in rows if one.problem not in {PROBLEMS[key] for key in UNNAMED["tunableop"]}]
    assert len(named) == report.written > 0
    assert read_back("tunableop", text) == {one.problem: listed_index(one) for one in named}
    header = dict(line.split(",")[1:] for line in text.splitlines() if line.startswith("Validator,"))
    assert header == {
        "PT_VERSION": "2.10.0",
        "HIP_VERSION": "604",
        "HIPBLASLT_VERSION": REVISION,
        "ROCBLAS_VERSION": "4.4.1.",
        "GCN_ARCH_NAME": "gfx90a:sramecc+:xnack-",
    }


def test_rocblas_override_file_leaves_out_positive_indices(on_recording: Opened) -> None:
    """Debian builds rocBLAS 4.4 without hipBLASLt, and its Tensile indices are positive. In AMD's builds of
    that version a positive index is hipBLASLt's, and the version string does not distinguish the two."""
    rows = exported_rows(on_recording, Rocblas(), with_revision())
    assert min(listed_index(one)[1] for one in rows) > 0
    _, report = written("rocblas", rows, "rocm-6.4")
    assert (report.written, sum(report.omitted.values())) == (0, len(rows))
    assert any("positive index" in reason for reason in report.omitted)


# ---- rocBLAS


@pytest.mark.parametrize(("name", "limit"), [("default", None), ("unlimited", UNLIMITED)])
@pytest.mark.parametrize(("arch", "key"), queried("rocblas"))
def test_rocblas_lists_the_union(
    on_recording: Opened, arch: str, key: str, name: str, limit: int | None
) -> None:
    found, one = on_recording(arch), answers(arch, "rocblas")["problems"][key]
    family, problem = Rocblas(), PROBLEMS[key]
    sizes = dict(zip(one["passed"], one["workspace"], strict=True))
    order = [*one["of_problem"], *(index for index in one["passed"] if index not in set(one["of_problem"]))]
    most = 32 * MIB if limit is None else limit
    expected = [[index, sizes[index]] for index in order if sizes[index] <= most]
    for _ in range(2):
        listed = list(family.enumerate_on(problem, found.device, limit))
        assert pairs(listed) == expected
        # A launch changes the handle's workspace, and the list must not depend on it.
        launch(found, family, problem, listed[0])
    live = one["enumerated"][name]
    assert (len(listed), digest(sorted(pairs(listed)))) == (live["count"], live["sha256"])
    assert {(s.family, s.version, s.build) for s in listed} == {("rocblas", 1, "4.4.1.")}


def test_a_solution_of_the_types_that_passes_the_check_is_listed_last(on_recording: Opened) -> None:
    found, recorded_here = on_recording("gfx90a"), answers("gfx90a", "rocblas")
    one = recorded_here["problems"]["bf16 TN"]
    missing, rest = one["of_problem"][:3], one["of_problem"][3:]
    problems = {**recorded_here["problems"], "bf16 TN": {**one, "of_problem": rest}}
    found.rocblas = RecordedRocblas({**recorded_here, "problems": problems})
    listed = pairs(list(Rocblas().enumerate_on(PROBLEMS["bf16 TN"], found.device, UNLIMITED)))
    assert [index for index, _ in listed] == rest + missing


def test_a_workspace_of_exactly_the_limit_is_within_it_for_rocblas_too(on_recording: Opened) -> None:
    device, problem, family = on_recording("gfx90a").device, PROBLEMS["bf16 TN"], Rocblas()
    every = pairs(list(family.enumerate_on(problem, device, UNLIMITED)))
    most = max(size for _, size in every)
    assert pairs(list(family.enumerate_on(problem, device, most))) == every
    below = [[index, size] for index, size in every if size < most]
    assert pairs(list(family.enumerate_on(problem, device, most - 1))) == below != every


def launch(found: OnRecording, family: Rocblas, problem: GemmProblem, solution: Solution) -> None:
    kernel = family.load(problem, solution, None, found.device)
    kernel.bind(
        Operands(256, 256, 256, 256, 0, *problem.scalars), 0 if not kernel.workspace_bytes else 4096
    )()
    assert found.rocblas.launched.pop() == solution.parameters.get("solution_index", 0)
    assert found.rocblas.workspace == max(1, kernel.workspace_bytes)


def test_a_solution_loads_after_a_launch_with_any_workspace(
    on_recording: Opened,
) -> None:
    found, problem, family = on_recording("gfx90a"), PROBLEMS["bf16 TN"], Rocblas()
    listed = list(family.enumerate_on(problem, found.device, UNLIMITED))
    small, large = min(listed, key=lambda s: s.workspace_bytes), max(listed, key=lambda s: s.workspace_bytes)
    assert (small.workspace_bytes, large.workspace_bytes) == (0, 128 * MIB)
    for solution in (small, large, small, large):
        launch(found, family, problem, solution)
    default = rocblas.default_solution(found.device.environment)
    launch(found, RocblasDefault(), problem, default)


def test_a_solution_that_rocblas_refuses_does_not_load(on_recording: Opened) -> None:
    found, one = on_recording("gfx90a"), answers("gfx90a", "rocblas")["problems"]["bf16 TN"]
    refused = next(index for index in one["of_types"] if index not in set(one["passed"]))
    with pytest.raises(IllegalSolution, match="rocblas_status_invalid_value"):
        Rocblas().load(
            PROBLEMS["bf16 TN"], Solution("rocblas", 1, {"solution_index": refused}), None, found.device
        )
