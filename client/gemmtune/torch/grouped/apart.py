"""Whether a product runs with its activation in it, or alone with the activation behind it, where a table has
rows of both.

A row with the activation runs if its measured time is at most that of the row without plus the least that the
activation takes behind it: one more launch, which reads gate and up and writes a result half as large. That
is an estimate, as no row has a time of the activation; it is low on purpose, so that a row with the
activation that was tuned badly does not hide behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmtune.torch.grouped.products import GroupedProduct

if TYPE_CHECKING:
    from gemmtune.torch.served import Served
    from gemmtune.torch.tuned_row import TunedRow

#: What the shortest launch of the activation took in a graph on an H100, and the memory bandwidth of an H200,
#: the fastest on which the activation was timed. The kernel reached 2.9 TB/s on an H100, of 3.35. Memory of a
#: B200 or MI300X is faster: there the estimate is above the least, and favours rows with the activation.
LAUNCH_SECONDS, BYTES_PER_SECOND = 1.5e-6, 4.8e12
#: Rows that an input may always be padded to: their time is that of reading the weights.
_ALWAYS_PADDED = 64
#: Numbers of rows of one product whose answers are remembered.
_MOST_KNOWN = 4096


def sizes(rows: dict[int, TunedRow], m: int) -> list[int]:
    """The M of rows that may serve a call of `m` rows, the smallest first: at least `m`, and not much
    larger."""
    return sorted(size for size in rows if m <= size <= max(_ALWAYS_PADDED, 2 * m))


def activation_seconds(product: GroupedProduct) -> float:
    """The least that the activation takes behind a product, in seconds."""
    elements = product.m * (product.n + product.n // 2)
    size: int = product.dtype.itemsize
    return LAUNCH_SECONDS + elements * size / BYTES_PER_SECOND


def runs_apart(served: Served, product: GroupedProduct) -> bool:
    """Whether a product with an activation is faster by the row without it, and the activation behind it.
    False where the table lacks a row of either. It is decided once for each number of rows, and looked up at
    every call."""
    known = served.apart.setdefault(product.key, {})
    answer = known.get(product.m)
    if answer is None:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        answer = known[product.m] = _runs_apart(served, product)
    return answer


def _runs_apart(served: Served, product: GroupedProduct) -> bool:
    """Whether rows may run now is not asked here: it changes, and a row that may not run leaves the product
    to the other."""
    with_it = _first(served, product)
    without = _first(served, product._replace(activation="none"))
    # Rows that were distributed otherwise have other times.
    if with_it is None or without is None or with_it.product.routing != without.product.routing:
        return False
    most = without.row.verdict.seconds + activation_seconds(product)
    return with_it.row.verdict.seconds > most


def _first(served: Served, product: GroupedProduct) -> TunedRow | None:
    rows = served.grouped.get(product.key, {})
    return next((rows[size] for size in sizes(rows, product.m)), None)
