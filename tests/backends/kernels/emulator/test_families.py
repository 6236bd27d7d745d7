"""Every family computes right, as its header is: the same text as a GPU's, on the host's fibers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelConfig
from backends.kernels.few_columns import FewColumnsFamily
from backends.kernels.legality import arch_of
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import (
    H200,
    HostDevice,
    HostKernel,
    build,
    built,
    compiled,
    copied_headers,
    source,
)
from tests.backends.kernels.emulator.memory import HostBuffer
from tests.backends.kernels.samples import OF_WARP, PROBLEMS, SM_90, legal_values, sizes_of_one
from tuners.inputs import Case
from tuners.verify import Verifier

#: Wide warps are AMD's.
MI300X = replace(H200, vendor="hip", arch="gfx942", product="AMD Instinct MI300X", units=304)
#: Of warps of 64 threads.
WIDE = ("one", "nt", "tt", "fp16 batch", "one column, odd", "one column across k", "three columns across k",
        "five columns, odd", "seven columns batch", "sixteen columns")  # fmt: skip


def _sample(
    problem: GemmProblem, warp: int, seed: int, names: Iterable[str] = tuple(FAMILIES)
) -> list[KernelConfig]:
    """One configuration of each family, two of those for few columns."""
    environment = H200 if warp == 32 else MI300X
    assert arch_of(environment).warp == warp
    found = []
    for family in (FAMILIES[name] for name in names):
        if environment.vendor in family.vendors:
            most = 2 if isinstance(family, FewColumnsFamily) else 1
            sample = legal_values(family, problem, environment, most, seed)
            found += [family.config(problem, values, OF_WARP[warp]) for values in sample]
    return found


def _check(sample: list[KernelConfig], folder: Path, warp: int) -> None:
    """Each configuration on the problem that it was derived for."""
    verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
    for one in build(sample, folder, warp):
        for other_way in (False, True):
            case = Case(one.found.product.problem, 3, "normal", "exact")
            finding = verifier.check(HostKernel(one, other_way), case, runs=1)
            what = (one.found.instantiation, one.found.splits, case.problem.slug, other_way)
            assert finding.wrong == "", what


@pytest.mark.parametrize(("name", "warp"), [(name, 32) for name in PROBLEMS] + [(name, 64) for name in WIDE])
def test_every_family_computes_right(name: str, warp: int, tmp_path: Path) -> None:
    problem = PROBLEMS[name]
    _check(_sample(problem, warp, seed=list(PROBLEMS).index(name)), tmp_path, warp)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "warp"),
    [
        (name, warp)
        for name, one in FAMILIES.items()
        for vendor, warp in (("cuda", 32), ("hip", 64))
        # Wavefronts of WMMA have 32 lanes: families/test_tile_wmma.py runs it as gfx1100 and gfx1201 do.
        # No problem here is grouped or has quantised weights or 8-bit operands: tests in families/ do.
        if vendor in one.vendors and name != "tile-wmma" and any(map(one.supports, PROBLEMS.values()))
    ],
)
def test_a_family_computes_every_problem_right(family: str, warp: int, tmp_path: Path) -> None:
    """The tests of one family, for `pytest -k FAMILY`."""
    found = [_sample(problem, warp, seed, (family,)) for seed, problem in enumerate(PROBLEMS.values())]
    sample = [one for of_problem in found for one in of_problem]
    assert sample, f"{family} has no legal configuration for warps of {warp} threads"
    _check(sample, tmp_path, warp)


def test_every_size_may_be_one(tmp_path: Path) -> None:
    for number, problem in enumerate(sizes_of_one()):
        folder = tmp_path / str(number)
        folder.mkdir()
        sample = [
            one
            for name in ("gemv", "skinny", "small-batch", "async-copy", "double-buffered")
            for one in [
                FAMILIES[name].config(problem, values, SM_90)
                for values in legal_values(FAMILIES[name], problem, H200, 1, number)
            ]
        ]
        _check(sample, folder, 32)


#: Of few columns: whole loads and none, less than a step and several, a batch; by skinny's or gemv's family.
AHEAD = {
    "no whole load": from_linear(1, 40, 5, "bf16"),
    "a load": from_linear(3, 5, 8, "bf16"),
    "several steps": from_linear(1, 9, 4168, "bf16"),
    "several steps of more columns": from_linear(3, 9, 4168, "fp16"),
    **{name: PROBLEMS[name] for name in ("one column", "one column, odd", "two columns", "five columns, odd",
                                         "seven columns batch")},
}  # fmt: skip
FEW: dict[str, Parameter] = {"stream": "a", "rows": 2, "unroll": 2, "warps_m": 2, "warps_k": 2}


def _few(problem: GemmProblem, aheads: tuple[int, ...]) -> list[KernelConfig]:
    """Configurations of one and of two slices that fetch so many steps (0 or 1) ahead."""
    found = []
    for splits, ahead in product((1, 2), aheads):
        values = {**FEW, "splits": splits, "ahead": ahead}
        family = FAMILIES["gemv" if problem.n == 1 else "skinny"]
        assert family.rule(problem, values, H200) is None
        found.append(family.config(problem, values, SM_90))
    return found


@pytest.mark.parametrize("name", AHEAD)
def test_fetching_ahead_changes_no_sum(name: str, tmp_path: Path) -> None:
    problem = AHEAD[name]
    _check(_few(problem, (0, 1)), tmp_path, 32)


#: Of the host's header: what is fetched (1), and what is loaded (0) of the operand that is read once, in the
#: order of a block's threads, and by whom.
SEES = """
extern "C" {
__attribute__((weak)) unsigned long long seen[1 << 20][3];
__attribute__((weak)) int sights = 0;
}
inline void see(unsigned long long kind, const void* p) {
    unsigned long long block = block_z();
    block = (block << 16 | block_y()) << 16 | block_x();
    seen[sights][0] = kind, seen[sights][1] = block << 10 | thread_index();
    seen[sights++][2] = reinterpret_cast<u64>(p);
}
inline void prefetch_l2(const void* p) { see(1, p); }
inline Words stream16(const void* p) {
    see(0, p);
    return aligned_load<Words>(p, 16);
}
"""


def _seeing(folder: Path) -> Path:
    """The headers, of which the host's writes down what is fetched and loaded."""
    copied_headers(folder)
    text = (folder / "emulator" / "host.h").read_text()
    plain = "inline Words stream16(const void* p) { return aligned_load<Words>(p, 16); }\n"
    for line in ("inline void prefetch_l2(const void*) {}\n", plain):
        assert text.count(line) == 1
        text = text.replace(line, "")
    place = "inline void stream8("
    assert text.count(place) == 1
    (folder / "emulator" / "host.h").write_text(text.replace(place, SEES + place))
    return folder


@pytest.mark.parametrize("name", AHEAD)
def test_what_is_fetched_ahead_is_what_the_first_step_loads(name: str, tmp_path: Path) -> None:
    """Of each thread the loads of its first step along k and no other, all before it loads anything; where
    lines are unaligned, nothing outside of the operand."""
    problem = AHEAD[name]
    sample = _few(problem, (0, 1))
    library = compiled(source(sample), tmp_path / "seen.so", 32, _seeing(tmp_path / "headers"))
    count = ctypes.c_int.in_dll(library, "sights")
    seen = (ctypes.c_ulonglong * 3 * (1 << 20)).in_dll(library, "seen")
    memory = {part: HostBuffer(layout.bytes) for part, layout in layouts(problem).items()}
    start, step = memory["a"].address, int(FEW["rows"] or 0) * int(FEW["unroll"] or 0)
    for one, other_way in product(built(library, sample), (False, True)):
        count.value = 0
        kernel = HostKernel(one, other_way)
        operands = Operands.at({part: buffer.address for part, buffer in memory.items()}, problem.scalars)
        workspace = HostBuffer(kernel.workspace_bytes)
        kernel.bind(operands, workspace.address)()
        threads: dict[int, list[tuple[int, int]]] = {}
        for kind, thread, place in seen[: count.value]:
            threads.setdefault(thread, []).append((kind, place))
        fetched = {who: [place for kind, place in events if kind] for who, events in threads.items()}
        ahead = one.found.instantiation.endswith(", true>")
        assert ahead != one.found.instantiation.endswith(", false>")
        assert any(fetched.values()) == (ahead and problem.k > 7)
        for places in fetched.values():
            assert all(start <= at and at + 16 <= start + memory["a"].size for at in places)
            assert len(places) <= step
        if ahead and one.found.product.aligned("a"):
            loaded = {who: [place for kind, place in events if not kind] for who, events in threads.items()}
            for who, events in threads.items():
                assert fetched[who] == loaded[who][:step]
                assert all(kind for kind, _ in events[: len(fetched[who])])
            if name.startswith("several steps"):
                assert any(len(places) > step for places in loaded.values())


def _transposes(dtype: str, sizes: tuple[int, int, int, int]) -> list[GemmProblem]:
    """A batch in every transpose; of no whole loads where sizes are odd."""
    m, n, k, batch = sizes
    return [
        from_blas(m, n, k, dtype, trans_a=a, trans_b=b, batch=batch, dtype_d="fp32", beta=beta, bias="fp32")
        for a, b, beta in (("N", "N", 0.0), ("N", "T", 1.0), ("T", "N", 0.0), ("T", "T", 1.0))
    ]


@pytest.mark.parametrize("warp", [32, 64])
def test_a_pipeline_is_right_in_every_transpose_and_depth(warp: int, tmp_path: Path) -> None:
    """Whole loads and ragged ones, k of several tiles and of less than one; blocks of several sets of
    products and an end of the batch within one. Copies come as late as a wait allows, and at once."""
    environment = H200 if warp == 32 else MI300X
    asked: dict[str, list[GemmProblem]] = {
        # Tiles within D and beyond it.
        "async-copy": [*_transposes("fp32", (260, 264, 84, 2)), *_transposes("fp32", (67, 130, 77, 1)),
                       *_transposes("fp32", (64, 128, 5, 1))[2:]],
        # Products that fill their tile and that do not.
        "small-batch": [*_transposes("fp32", (16, 32, 24, 13)), *_transposes("fp32", (33, 7, 19, 13)),
                        *_transposes("bf16", (64, 8, 48, 9)), *_transposes("bf16", (24, 40, 56, 9)),
                        *_transposes("fp16", (11, 50, 21, 9)), from_bmm(21, 8, 16, 24, "bf16", stride_a=0)],
    }  # fmt: skip
    for name, problems in asked.items():
        family = FAMILIES[name]
        found = [
            (problem, family.config(problem, values, OF_WARP[warp]))
            for seed, problem in enumerate(problems)
            for values in legal_values(family, problem, environment, 1, seed)
        ]
        assert len(found) == len(problems)
        folder = tmp_path / name
        folder.mkdir()
        verifier = Verifier(HostDevice())  # type: ignore[arg-type]  # memory is all that it asks for
        for (problem, one), made in zip(found, build([one for _, one in found], folder, warp), strict=True):
            for other_way in (False, True):
                finding = verifier.check(
                    HostKernel(made, other_way), Case(problem, 3, "normal", "exact"), runs=1
                )
                assert finding.wrong == "", (one.instantiation, problem.slug, other_way)
