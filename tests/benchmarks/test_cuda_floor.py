"""How far products can go: what is launched for it, and what the rows are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from backends.cuda.padded import copied
from backends.errors import IllegalSolution
from backends.operands import Operands
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from benchmarks import cuda_floor, cuda_reading
from benchmarks.cuda_reading import _Mover, _Reader
from tests.backends.cuda.fakes import FakeDevice
from tests.benchmarks.gpus import gpu
from tuners.ceilings import Ceilings

CEILINGS = Ceilings(4e12, 3e12, {"bf16": 8e14})
ODD, TOKEN = from_linear(17, 43, 41, "bf16"), from_linear(1, 4096, 1024, "bf16")
#: Addresses of A of two operand sets.
WEIGHTS = (1 << 20, 1 << 30)


class Kernel:
    """Writes down what its steps are called for; `tile` 2 is refused."""

    workspace_bytes = 64

    def __init__(self, log: list[Any], tile: object) -> None:
        self.log, self.tile = log, tile
        if tile == 2:
            raise IllegalSolution("the library refuses it")

    def steps(self, operands: Operands, workspace: int) -> dict[str, Callable[[], None] | None]:
        def step(name: str) -> Callable[[], None]:
            def launch() -> None:
                self.log.append((name, self.tile))

            launch.__name__ = f"{name}{self.tile}"
            return launch

        return {name: step(name) for name in ("into", "product", "back")}

    def bind(self, operands: Operands, workspace: int) -> Callable[[], None]:
        def default() -> None:
            """Nothing."""

        return default


class Padded:
    """Lists tiles 1 to 4, each padded both ways."""

    log: list[Any]

    def listed(self, problem: GemmProblem, device: Any, limit: int | None) -> Iterator[Solution]:
        for tile in (1, 2, 3, 4):
            for pad in ("all", "inputs"):
                yield Solution("cublaslt-padded", 1, {"tile": tile, "pad": pad})

    def load(self, problem: GemmProblem, solution: Solution, binary: None, device: Any) -> Kernel:
        assert solution.parameters["pad"] == "all", "what is limited is padding everything"
        return Kernel(self.log, solution.parameters["tile"])


#: Microseconds of a launch by its name.
TIMES = {
    "least": 1.5,
    "into1": 4.0,
    "back1": 2.0,
    "product1": 9.0,
    "product3": 5.0,
    "product4": 6.0,
    "default": 22.0,
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A device whose launches take TIMES, and readers what their shape says."""
    found = FakeDevice()
    found.load = lambda problem, solution, binary: Kernel(found.log, 0)  # type: ignore[attr-defined]
    baseline = SimpleNamespace(name="torch 2", solution=Solution("torch", 1, {}))
    backend = SimpleNamespace(open=lambda index, cache: found, baselines=lambda problem, here: [baseline])
    operands = [Operands(address, 0, 0, 0, 0, 1.0, 0.0) for address in WEIGHTS]

    def seconds(device: Any, launches: Sequence[Any], samples: int = 9) -> float:
        assert len(launches) == len(WEIGHTS), "every operand set has its turn"
        name = getattr(launches[0], "__name__", "")
        return (TIMES[name] if name in TIMES else launches[0].microseconds()) * 1e-6

    for module in (cuda_floor, cuda_reading):
        monkeypatch.setattr(module, "backend", lambda name: backend)
        monkeypatch.setattr(module, "kernel_cache", lambda: None)
        monkeypatch.setattr(module, "seconds", seconds)
        held = SimpleNamespace(sets=operands, free=lambda: None)
        monkeypatch.setattr(module, "OperandSets", lambda *how, held=held: held)
    return found


def test_a_padded_products_limits(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_heels(function: Any, device: Any, grid: Any, block: Any, arguments: Any) -> Callable[[], None]:
        def least() -> None:
            """Copies 16 bytes."""

        assert (grid, [value.value for value in arguments][1:]) == ((1, 1, 1), [arguments[0].value + 32, 1])
        return least

    monkeypatch.setattr(cuda_floor, "on_heels", on_heels)
    monkeypatch.setattr(cuda_floor, "PaddedCublasLt", Padded)
    monkeypatch.setattr(Padded, "log", device.log, raising=False)
    assert copied(ODD, "all")
    found = cuda_floor.floor(gpu(0), [("odd", ODD), ("aligned", TOKEN)], CEILINGS)
    (row,) = found["rows"]
    assert (row["name"], row["m"], row["n"], row["k"]) == ("odd", 17, 43, 41)
    assert (row["copies_in_us"], row["copy_back_us"]) == pytest.approx((4.0, 2.0))
    assert row["product_us"] == pytest.approx(5.0), "the fastest; what the library refuses is none"
    assert row["library_limit"] == pytest.approx(22.0 / (4.0 + 2.0 + 5.0))
    assert row["limit"] == pytest.approx(22.0 / (4.0 + row["product_bound_us"]))
    assert found["limit_geometric_mean"] == pytest.approx(row["limit"])
    # Two copies and a product, each a launch at least: of a megabyte copies take what the memory says.
    assert (row["launch_us"], row["ideal_us"]) == pytest.approx((1.5, 3 * 1.5))
    assert found["ideal_geometric_mean"] == pytest.approx(row["ideal_limit"]) == pytest.approx(22.0 / 4.5)
    assert device.log == [("into", 1), ("into", 3), ("into", 4)], "products have numbers to multiply"
    large = from_linear(17, 4097, 4095, "bf16")
    (row,) = cuda_floor.floor(gpu(0), [("large", large)], CEILINGS)["rows"]
    moved = (17 + 4097) * (4095 + 4096) * 2 / CEILINGS.copy_bytes_per_second * 1e6
    assert row["ideal_us"] == pytest.approx(moved + 1.5 + row["product_bound_us"], rel=1e-3)


class Launch:
    """A reader's: one shape, of 264 blocks, is the fastest; a store takes a microsecond."""

    def __init__(self, defines: Any, blocks: int, threads: int) -> None:
        self.how = {name: int(value) for name, value in defines}
        self.blocks, self.threads = blocks, threads

    def microseconds(self) -> float:
        best = self.how["IN_FLIGHT"] == 2 and self.threads == 256 and self.how["AHEAD"] == 1
        return 3.0 + abs(self.blocks - 264) / 1000 + (not best) + self.how["STORE"]


def test_the_fastest_reader_and_what_it_takes_with_a_store(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Any] = []

    def function(source: str, name: str, defines: Any) -> Any:
        assert (source, name) == ("bandwidth.cu", "read_words")
        return SimpleNamespace(
            defines=tuple(defines.items()), pack=lambda *values: packed.append([v.value for v in values])
        )

    def on_heels(function: Any, device: Any, grid: Any, block: Any, arguments: Any) -> Launch:
        return Launch(function.defines, grid[0], block[0])

    monkeypatch.setattr(device, "function", function)
    monkeypatch.setattr(cuda_reading, "on_heels", on_heels)
    found = cuda_reading.reading(gpu(0), [("token", TOKEN)], CEILINGS)
    (row,) = found["rows"]
    assert (row["m"], row["n"], row["k"]) == (1, 4096, 1024)
    assert (row["reading_us"], row["storing_us"], row["default_us"]) == pytest.approx((3.0, 4.0, 22.0))
    assert row["kernel"] == "264 blocks of 256 threads, 2 loads each, ahead"
    assert found["limit_geometric_mean"] == row["limit"] == pytest.approx(22.0 / 3.0)
    words = 4096 * 1024 * 2 // 16
    assert {(address, count) for address, count, _ in packed} == {(address, words) for address in WEIGHTS}
    (sink,) = {sink for _, _, sink in packed}
    (buffer,) = [buffer for buffer in device.buffers if buffer.address == sink]
    assert buffer.size >= 4 * max(reader.blocks for reader in cuda_reading._readers(words, 132))


@pytest.mark.parametrize(
    ("problem", "moves", "limit"),
    [(ODD, 4.0, 22.0 / 4.0), (from_linear(2048, 2048, 2048, "bf16"), 4.0, 1.0243)],
)
def test_the_longer_of_moving_and_multiplying_is_the_limit(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, problem: GemmProblem, moves: float, limit: float
) -> None:
    packed: list[Any] = []
    grids: list[int] = []

    def function(source: str, name: str, defines: Any) -> Any:
        assert (source, name) == ("bandwidth.cu", "move_words")
        kind = {name: int(value) for name, value in defines.items()}
        return SimpleNamespace(kind=kind, pack=lambda *all: packed.append(all))

    def on_heels(function: Any, device: Any, grid: Any, block: Any, arguments: Any) -> Launch:
        grids.append(grid[0])
        fastest = function.kind == {"IN_FLIGHT": 4, "AHEAD": 0, "EARLY": 1} and block[0] == 512
        return Launch({"IN_FLIGHT": 2, "AHEAD": 1, "STORE": moves - 3 + (not fastest)}.items(), 264, 256)

    monkeypatch.setattr(device, "function", function)
    monkeypatch.setattr(cuda_reading, "on_heels", on_heels)
    found = cuda_reading.moving(gpu(0), [("odd", problem)], CEILINGS)
    (row,) = found["rows"]
    assert (row["moving_us"], row["default_us"]) == pytest.approx((moves, 22.0))
    assert row["multiplying_us"] == pytest.approx(problem.flops / 8e14 * 1e6)
    assert row["kernel"].endswith("512 threads, 4 loads each, storing early")
    assert found["limit_geometric_mean"] == row["limit"] == pytest.approx(limit, rel=1e-3)
    sizes = [problem.m * problem.k, problem.k * problem.n, problem.m * problem.n]
    (a, b, d) = (size * 2 // 16 for size in sizes)
    assert {(values[0].value, values[1].value) for values in packed} == {(at, a) for at in WEIGHTS}
    assert {(values[3].value, values[5].value) for values in packed} == {(b, d)}
    assert max(grids) == -(-max(a + b, d) // 128), "a thread each, for all that is read or written"


def test_readers_cover_the_words_and_none_is_idle() -> None:
    found = list(cuda_reading._readers(5000, 132))
    assert len(found) == len(set(found)), "nobody is tried twice"
    for reader in found:
        assert 1 <= reader.blocks <= -(-5000 // (reader.threads * reader.in_flight)), "no block has nothing"
    assert _Reader(128, 8, 0, 5) in found
    assert max(reader.blocks for reader in cuda_reading._readers(10**6, 132)) > 16 * 132


@pytest.mark.parametrize(("read", "written"), [(5000, 900), (900, 5000)])
def test_movers_cover_what_is_read_and_what_is_written(read: int, written: int) -> None:
    found = list(cuda_reading._movers(read, written, 132))
    assert len(found) == len(set(found)) == 2 * len(list(cuda_reading._readers(5000, 132)))
    assert {(one.ahead, one.early) for one in found} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert _Mover(256, 2, 0, 10, 1) in found, "no thread has more than its loads in flight"
    assert str(_Mover(256, 2, 0, 10, 1)) == "10 blocks of 256 threads, 2 loads each, storing early"
