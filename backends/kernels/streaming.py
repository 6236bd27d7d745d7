"""Families for few columns: one operand is streamed, the other kept near (gemv.h, skinny.h, skinny_mma.h)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import Configuration, KernelFamily, Values, number
from backends.kernels.legality import (
    UNIT_REGISTERS,
    arch_of,
    columns_rule,
    deep_rule,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
)
from backends.kernels.product import WIDE, Product, flag
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The operand that is streamed: the problem's A, or (the transposed product) its B.
STREAMS = ("a", "b")
#: At most so many candidates are listed; of families that another one mostly beats, on what it runs too.
MOST, MOST_BEATEN = 128, 24
#: Columns from which tensor cores multiply faster than what skinny has.
_MANY_COLUMNS = 5
#: Bytes on their way that a multiprocessor needs for its share of the memory's speed: 4.6 TB/s over 132 of
#: them for 800 ns, and half as much again because loads do not come evenly.
IN_FLIGHT = 42_000
#: Of a multiprocessor of an H200, a clock: bytes that the memory sends it, that its L1 cache answers with in
#: practice, and multiplications.
UNIT_BYTES, CACHE_BYTES, LANES = 20, 64, 128
#: Threads of a multiprocessor, of which blocks take their part.
UNIT_THREADS = 2048
#: What the second launch of a split product costs, in bytes that are read meanwhile by one multiprocessor.
SECOND_LAUNCH = 60_000


def streamed(problem: GemmProblem, values: Values) -> Product:
    """The product whose A is the streamed operand."""
    return Product(problem, values["stream"] == "b")


def likelier_stream(problem: GemmProblem) -> str:
    """The larger operand."""
    return "a" if problem.n <= problem.m else "b"


def _up2(size: int) -> int:
    return 1 << (size - 1).bit_length()


class StreamFamily(KernelFamily):
    """What the families share: who is streamed, the launch, the order of candidates."""

    #: Columns of the product that they run, at least and at most.
    columns: ClassVar[tuple[int, int]]

    @abstractmethod
    def rows(self, product: Product, values: Values, warp: int) -> int:
        """Rows of a block."""

    def blocks(self, product: Product, values: Values, warp: int) -> int:
        """Blocks along m."""
        return -(-product.m // self.rows(product, values, warp))

    def threads(self, values: Values, warp: int) -> int:
        """Threads of a block."""
        return warp * number(values, "warps_m") * number(values, "warps_k")

    @abstractmethod
    def step(self, product: Product, values: Values) -> int:
        """Elements of k that a slice is a whole number of."""

    @abstractmethod
    def registers(self, product: Product, values: Values) -> int:
        """Registers for loads in flight, sums, and what is being multiplied."""

    @abstractmethod
    def shared_bytes(self, product: Product, values: Values, warp: int) -> int:
        """Shared memory of a block."""

    @abstractmethod
    def loads(self, product: Product, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of its loads that hit k's slices."""

    @abstractmethod
    def legal(self, product: Product, values: Values, environment: Environment) -> str | None:
        """The family's own rule."""

    @abstractmethod
    def instantiation(self, product: Product, values: Values) -> str:
        """The class in the header."""

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        product, arch = streamed(problem, values), arch_of(environment)
        threads = self.threads(values, arch.warp)
        return first(
            columns_rule(product, *self.columns),
            self.legal(product, values, environment),
            threads_rule(threads, arch),
            shared_rule(self.shared_bytes(product, values, arch.warp), arch),
            registers_rule(self.registers(product, values), threads),
            grid_rule(self.blocks(product, values, arch.warp), product, number(values, "splits")),
        )

    def configuration(self, problem: GemmProblem, values: Values, warp: int = 32) -> Configuration:
        product = streamed(problem, values)
        return Configuration(
            product, self.header, self.instantiation(product, values), self.threads(values, warp),
            self.shared_bytes(product, values, warp), self.blocks(product, values, warp),
            number(values, "splits"), self.step(product, values),
        )  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(), every combination of choices with the larger operand streamed."""
        stream = likelier_stream(problem)
        product = Product(problem, stream == "b")
        if columns_rule(product, *self.columns) is not None:
            return
        names = [name for name in self.choices if name != "stream"]
        found = []
        for row in combinations(*(self.choices[name] for name in names)):
            values = {"stream": stream, **dict(zip(names, row, strict=True))}
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(product, values, environment), values))
        found.sort(key=lambda one: one[0])
        yield from (values for _, values in found[: self.most(product, environment)])

    def most(self, product: Product, environment: Environment) -> int:
        """At most so many candidates are listed."""
        return MOST

    def resident(self, product: Product, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once."""
        threads = self.threads(values, arch_of(environment).warp)
        registers = threads * (self.registers(product, values) + 24)
        return max(1, min(UNIT_THREADS // threads, UNIT_REGISTERS // registers, 32))

    def cost(self, product: Product, values: Values, environment: Environment) -> float:
        """Roughly the bytes that the slowest multiprocessor reads, over the share of the memory's speed that
        its loads in flight keep up. A guess for the order only: what is fast is measured."""
        warp, units, splits = arch_of(environment).warp, max(1, environment.units), number(values, "splits")
        blocks = self.blocks(product, values, warp) * splits * product.batch
        resident = self.resident(product, values, environment)
        here = min(resident, ceil(blocks / units))
        bytes_each, used = self.loads(product, values, warp)
        speed = min(1.0, here * self.threads(values, warp) * bytes_each * used / IN_FLIGHT)
        read = product.m * product.k * product.element_bytes * product.batch
        waves = blocks / (resident * units)
        busiest = read / blocks * ceil(blocks / units)  # the last wave's tail included
        uneven = busiest if waves <= 1 else (busiest + read / units) / 2
        return uneven / (speed * used) + (SECOND_LAUNCH if splits > 1 else 0)


class Skinny(StreamFamily):
    """2 to 16 columns: the large operand is streamed once, every column multiplied by what is loaded of it.

    Parameters: stream (a | b), rows (of a warp; 1 where the streamed operand is not contiguous along k),
    unroll (loads in flight of each row), warps_m and warps_k (of a block), splits (blocks along k), ahead
    (whether the first step is on its way to L2 before the launch before has ended; 0 as rows is 1)."""

    name, header, columns = "skinny", "skinny.h", (2, 16)
    version = 2
    kernel: ClassVar[str] = "Skinny"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "rows": (1, 2, 4, 8), "unroll": (1, 2, 4, 8, 16), "warps_m": (1, 2, 4, 8),
        "warps_k": (1, 2, 4, 8, 16), "splits": (1, 2, 4, 8, 16), "ahead": (0, 1),
    }  # fmt: skip

    def step(self, product: Product, values: Values) -> int:
        return WIDE // product.element_bytes if product.a_along_k else 1

    def _columns(self, product: Product) -> int:
        """Columns of the instantiation."""
        return _up2(product.n)

    def _across(self, product: Product) -> int:
        """Rows of a lane's load where A is contiguous along m (skinny.h: SkinnyAcrossK::V)."""
        columns = self._columns(product)
        words = 4 if columns <= 4 else 2 if columns == 8 else 1
        return words * 4 // product.element_bytes

    def rows(self, product: Product, values: Values, warp: int) -> int:
        each = number(values, "rows") if product.a_along_k else warp * self._across(product)
        return each * number(values, "warps_m")

    def shared_bytes(self, product: Product, values: Values, warp: int) -> int:
        warps_k = number(values, "warps_k")
        if product.a_along_k and warps_k == 1:
            return 0
        return warps_k * self.rows(product, values, warp) * self._columns(product) * 4

    def registers(self, product: Product, values: Values) -> int:
        columns, unroll = self._columns(product), number(values, "unroll")
        if product.a_along_k:
            rows, v = number(values, "rows"), WIDE // product.element_bytes
            return 4 * rows * unroll + rows * columns + (rows + 1) * v + 2 * rows
        v = self._across(product)
        return unroll * v * product.element_bytes // 4 + v * columns + v

    def loads(self, product: Product, values: Values, warp: int) -> tuple[int, float]:
        unroll, warps_k = number(values, "unroll"), number(values, "warps_k")
        slices = number(values, "splits") * warps_k
        if product.a_along_k:
            chunks = product.k * product.element_bytes / WIDE / slices
            step = warp * unroll
            return WIDE * number(values, "rows") * unroll, chunks / (ceil(chunks / step) * step)
        steps = product.k / slices
        return self._across(product) * product.element_bytes * unroll, steps / (ceil(steps / unroll) * unroll)

    def cost(self, product: Product, values: Values, environment: Environment) -> float:
        """What is read of B from the caches for a byte of A, and the multiplications, may be the bound."""
        columns = self._columns(product)
        rows = number(values, "rows") if product.a_along_k else self._across(product)
        cached = (1 + columns / rows) * UNIT_BYTES / CACHE_BYTES
        multiplied = (columns + 1) * UNIT_BYTES / product.element_bytes / LANES
        found = super().cost(product, values, environment) * max(1.0, cached, multiplied)
        # On an H200 that gains or costs some per cent of a single column, and costs where there are more.
        return found * (1.1 if columns > 1 and number(values, "ahead") else 1.0)

    def most(self, product: Product, environment: Environment) -> int:
        others = tensor_core_rule(environment) or deep_rule(product)
        return MOST_BEATEN if product.n >= _MANY_COLUMNS and others is None else MOST

    def legal(self, product: Product, values: Values, environment: Environment) -> str | None:
        if environment.vendor != "cuda" and number(values, "ahead") != 0:
            return f"ahead must be 0 where nothing is fetched ahead of its load, not {values['ahead']}"
        if product.a_along_k:
            return None
        if number(values, "rows") != 1:
            return f"rows must be 1 where the streamed operand is contiguous along m, not {values['rows']}"
        if number(values, "ahead") != 0:
            return f"ahead must be 0 where the streamed operand is contiguous along m, not {values['ahead']}"
        return None

    def instantiation(self, product: Product, values: Values) -> str:
        names = (
            ["rows", "unroll", "warps_m", "warps_k"]
            if product.a_along_k
            else ["unroll", "warps_m", "warps_k"]
        )
        numbers = [number(values, name) for name in names]
        shape = "AlongK" if product.a_along_k else "AcrossK"
        near = product.aligned("b") or not product.b_along_k
        fast = product.aligned("a") and near if product.a_along_k else product.whole("a")
        flags = [flag(product.b_along_k), flag(fast)]
        arguments = [*flags, *self._template_columns(product), *numbers]
        if product.a_along_k:
            arguments.append(flag(values["ahead"] == 1))
        return f"{self.kernel}{shape}<{product.types}, {', '.join(map(str, arguments))}>"

    def _template_columns(self, product: Product) -> list[int]:
        return [self._columns(product)]


class Gemv(Skinny):
    """Matrix times vector: the matrix is streamed once. The parameters are skinny's."""

    name, header, columns, kernel = "gemv", "gemv.h", (1, 1), "Gemv"

    def _template_columns(self, product: Product) -> list[int]:
        return []


class SkinnyMma(StreamFamily):
    """2 to 64 columns on tensor cores, both operands contiguous along k; the large one is streamed once.

    Parameters: stream (a | b), row_tiles (of 16 rows, of a warp), unroll (loads in flight of each row),
    warps_m and warps_k (of a block), splits (blocks along k)."""

    name, header, columns = "skinny-mma", "skinny_mma.h", (2, 64)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "row_tiles": (1, 2), "unroll": (1, 2, 4, 8), "warps_m": (1, 2, 4),
        "warps_k": (1, 2, 4, 8, 16), "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def supports(self, problem: GemmProblem) -> bool:
        return super().supports(problem) and DTYPES[problem.dtype_a].bytes == 2

    def step(self, product: Product, values: Values) -> int:
        return 32

    def _column_tiles(self, product: Product) -> int:
        return -(-product.n // 8)

    def rows(self, product: Product, values: Values, warp: int) -> int:
        return 16 * number(values, "row_tiles") * number(values, "warps_m")

    def shared_bytes(self, product: Product, values: Values, warp: int) -> int:
        pitch = self.rows(product, values, warp) + 4
        return number(values, "warps_k") * 8 * self._column_tiles(product) * pitch * 4

    def registers(self, product: Product, values: Values) -> int:
        tiles, columns = number(values, "row_tiles"), self._column_tiles(product)
        return 8 * tiles * number(values, "unroll") + 4 * tiles * columns + 4 * tiles + 2 * columns + 4

    def loads(self, product: Product, values: Values, warp: int) -> tuple[int, float]:
        steps = product.k / 32 / (number(values, "warps_k") * number(values, "splits"))
        unroll = number(values, "unroll")
        return 2 * WIDE * number(values, "row_tiles") * unroll, steps / (ceil(steps / unroll) * unroll)

    def most(self, product: Product, environment: Environment) -> int:
        return MOST_BEATEN  # by skinny-ring

    def legal(self, product: Product, values: Values, environment: Environment) -> str | None:
        return first(tensor_core_rule(environment), deep_rule(product))

    def instantiation(self, product: Product, values: Values) -> str:
        names = ("row_tiles", "unroll", "warps_m", "warps_k")
        numbers = [self._column_tiles(product), *(number(values, name) for name in names)]
        whole = "true" if product.whole("a") and product.whole("b") else "false"
        return f"SkinnyMma<{product.types}, {whole}, {', '.join(map(str, numbers))}>"

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """None where k is so short that a lane's loads are mostly beyond it."""
        if problem.k >= 32:
            yield from super().candidates(problem, environment)
