"""tile-wgmma taken apart: which lines are changed, that it compiles, and what the rows are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.errors import CompilerMissing, ContextLost, LaunchError
from backends.kernels import resources
from backends.kernels.families import FAMILIES, HEADERS
from backends.kernels.family import ENTRY
from backends.operands import Operands
from backends.problem import from_linear
from backends.solution import Solution
from benchmarks import cuda_feeding
from benchmarks.cuda_feeding import VARIANTS, Change, changed, compiled, fastest, headers
from benchmarks.cuda_tuned import kernel_cache, read_shapes
from tests.backends.cuda.fakes import ENVIRONMENT, FakeDevice
from tests.backends.kernels.ptx import compiled as ptx_of
from tests.benchmarks.gpus import gpu
from tuners.ceilings import Ceilings

FAMILY = FAMILIES[cuda_feeding.FAMILY]
ALIGNED, ODD = from_linear(333, 1000, 6216, "bf16"), from_linear(17, 43, 41, "bf16")
CEILINGS = Ceilings(4e12, 3e12, {"bf16": 8e14})
#: Addresses of A of two operand sets.
SETS = (1 << 20, 1 << 30)


# ---- texts ---------------------------------------------------------------------------------------


def test_a_text_that_is_not_there_once_is_an_error() -> None:
    assert changed("one, two", [Change("two", "2"), Change("2", "two")]) == "one, two"
    with pytest.raises(ValueError, match="the header has 0 times, not once: three"):
        changed("one, two", [Change("three", "3")])
    with pytest.raises(ValueError, match="the header has 2 times, not once: o"):
        changed("one, two", [Change("o", "0")])


def test_only_the_familys_header_is_changed(tmp_path: Path) -> None:
    found = headers(tmp_path)
    assert list(found) == list(VARIANTS)
    texts = {
        what: {path.name: path.read_text() for path in folder.iterdir()} for what, folder in found.items()
    }
    own = {path.name: path.read_text() for path in HEADERS.glob("*.h")}
    assert texts.pop("whole") == own
    for what, each in texts.items():
        assert {name for name in own if each[name] != own[name]} == {"tile_wgmma.h"}, what
    assert len({each["tile_wgmma.h"] for each in texts.values()}) == len(texts)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every variant's headers."""
    return headers(tmp_path_factory.mktemp("headers"))


def test_what_is_left_out_is_not_there(folders: dict[str, Path]) -> None:
    """Of slices of k, in blocks that share nothing else: a cluster is what sums are added through."""
    values = {"tile_m": 64, "tile_n": 64, "stages": 4, "share": 1, "share_b": 1, "splits": 3, "group": 8}
    unit = FAMILY.configuration(ALIGNED, values).unit
    texts = {
        what: ptx_of(unit, "sm_90a", sorted(folder.glob("*.h")))[ENTRY] for what, folder in folders.items()
    }
    others = [what for what, text in texts.items() if "ld.shared::cluster" in text]
    assert others == ["whole", "feeding and sums", "sums and storing"]
    assert [what for what, text in texts.items() if "barrier.cluster.wait" in text] == others
    assert [what for what, text in texts.items() if "1048576" in text] == ["feeding and sums", "feeding"]
    assert all("wgmma.mma_async" in text for text in texts.values()), "its sums are in registers all the same"
    assert all("cp.async.bulk.tensor" in text for text in texts.values())


def test_every_variant_compiles_and_takes_the_same_registers(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_feeding, "MOST", 1)
    cache = BinaryCache(tmp_path)
    try:
        made = compiled(ALIGNED, ENVIRONMENT, folders, cache)
    except CompilerMissing as error:
        pytest.skip(str(error))
    (solution,) = made.solutions
    paths = [made.binaries[what, solution.id] for what in VARIANTS]
    assert len(set(paths)) == len(VARIANTS), "no variant is another's binary"
    taken = [resources.read(path)[ENTRY] for path in paths]
    assert {one.spill_bytes for one in taken} == {0}
    assert {one.registers for one in taken[:2]} == {taken[0].registers}, "as many blocks of a multiprocessor"


# ---- rows ----------------------------------------------------------------------------------------


class Kernel:
    """What a variant takes: less the more is left out, the least by one candidate of its own."""

    workspace_bytes = 0

    def __init__(self, solution: Solution, binary: Path | None) -> None:
        self.solution, self.binary = solution, binary

    def bind(self, operands: Operands, workspace: int) -> Any:
        return SimpleNamespace(microseconds=self.microseconds, operands=operands)

    def microseconds(self) -> float:
        if self.binary is None:
            return 22.0
        if self.solution.parameters["stages"] == 2:
            raise LaunchError("refused")
        place = list(VARIANTS).index(self.binary.parent.name)
        return 10.0 - 2 * place + abs(int(self.solution.parameters["stages"] or 0) - 3 - place)


def test_each_variants_fastest_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    device, samples = FakeDevice(), []
    device.load = lambda problem, solution, binary: Kernel(solution, binary)  # type: ignore[attr-defined]
    baseline = SimpleNamespace(name="torch 2", solution=Solution("torch", 1, {}))
    backend = SimpleNamespace(open=lambda index, cache: device, baselines=lambda problem, here: [baseline])
    operands = [Operands(address, 0, 0, 0, 0, 1.0, 0.0) for address in SETS]
    freed: list[str] = []
    held = SimpleNamespace(sets=operands, free=lambda: freed.append("sets"))
    listed = [Solution("tile-wgmma", 2, {"stages": stages}) for stages in range(8, 1, -1)]

    def compiled(problem: Any, environment: Any, folders: Any, cache: BinaryCache) -> Any:
        assert cache.root != kernel_cache().root, "nobody finds a changed kernel as a candidate"
        if problem is ODD:
            return cuda_feeding.Compiled([], {})
        paths = {(what, one.id): Path(what, one.id) for what in folders for one in listed}
        return cuda_feeding.Compiled(listed, paths)

    def seconds(device: Any, launches: Sequence[Any], count: int) -> float:
        assert [launch.operands for launch in launches] == operands, "every operand set has its turn"
        samples.append(count)
        return float(launches[0].microseconds()) * 1e-6

    for name, value in (
        ("backend", lambda name: backend), ("OperandSets", lambda *how: held), ("compiled", compiled),
        ("seconds", seconds),
    ):  # fmt: skip
        monkeypatch.setattr(cuda_feeding, name, value)
    (row,) = cuda_feeding.feeding(gpu(0), [("aligned", ALIGNED), ("odd", ODD)], CEILINGS)["rows"]
    assert (row["name"], row["m"], row["n"], row["k"]) == ("aligned", 333, 1000, 6216)
    assert (row["default_us"], row["tried"]) == (pytest.approx(22.0), 7)
    assert [one["what"] for one in row["variants"]] == list(VARIANTS)
    assert [one["us"] for one in row["variants"]] == pytest.approx([10.0, 8.0, 6.0, 4.0])
    assert [one["parameters"] for one in row["variants"]] == [{"stages": stages} for stages in (3, 4, 5, 6)]
    assert samples == [9, *([3] * 7 + [9] * 4) * len(VARIANTS)]
    assert freed == ["sets"]
    assert all(buffer.freed for buffer in device.buffers)


def test_a_context_that_is_lost_ends_it_and_nobody_left_is_said() -> None:
    def timed(solution: Solution, samples: int) -> float:
        raise ContextLost("gone") if solution.parameters["stages"] == 4 else LaunchError("refused")

    with pytest.raises(LaunchError, match="no candidate could be launched"):
        fastest(timed, [Solution("tile-wgmma", 2, {"stages": 3})])
    with pytest.raises(ContextLost):
        fastest(timed, [Solution("tile-wgmma", 2, {"stages": stages}) for stages in (3, 4)])


def test_two_of_the_odd_shapes_are_taken() -> None:
    taken = [
        shape.name
        for shape in read_shapes(lists=["odd"])
        if list(islice(FAMILY.solutions(shape.problem("bf16"), ENVIRONMENT), 1))
    ]
    assert taken == ["odd/333x1000x6216", "odd/1000x1000x1000"]
