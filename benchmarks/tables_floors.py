"""How far products can go, for docs/performance.md: padding, reading, moving, feeding, even ones inside odd ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import cells
from benchmarks.cells import source
from benchmarks.report import geometric_mean


def floor(document: Mapping[str, Any]) -> str:
    """How far padding can go."""
    rows = document["rows"]
    behind = [row["default_us"] / (_least_copies(row) + row["product_us"]) for row in rows]
    lines = [
        [row["name"], cells.us(row["default_us"]), cells.us(row["copies_in_us"]), cells.us(row["copy_back_us"]),
         cells.us(row["product_bound_us"]), f"{row['limit']:.2f}x", cells.us(row["product_us"]), cells.times(row["library_limit"]),
         cells.us(_least_copies(row)), cells.times(limit)]
        for row, limit in zip(rows, behind, strict=True)
    ]  # fmt: skip
    heads = ["shape", "default us", "copies in us", "copy of D back us", "product at its bound us", "limit",
             "by cuBLASLt us", "limit", "copies at their least us", "cuBLASLt behind those"]  # fmt: skip
    return (
        "## How far padding misaligned operands can go\n\nEach copy timed among others of its kind, whose blocks are "
        "placed as the one before ends. Copies of the inputs and the product at its bound, D stored where it belongs: "
        f"padding reaches **{document['limit_geometric_mean']:.2f}x** the default over these shapes (geometric mean) by these copies, "
        "whatever multiplies; by cuBLASLt D is copied too. With whatever copies: a launch of them takes at least what a launch takes that "
        f"copies 16 bytes ({rows[0]['launch_us']:.2f} us), and what the memory's speed of copying says of its bytes. "
        f"Behind copies at that least, cuBLASLt's fastest product leaves **{geometric_mean(behind):.2f}x**, a product "
        f"at its bound {document['ideal_geometric_mean']:.2f}x. Beyond that lie kernels that load misaligned operands "
        f"themselves.\n\n{cells.table(heads, lines)}\n{source(document)}\n"
    )


def _least_copies(row: Mapping[str, Any]) -> float:
    """Microseconds of a padded product's copies, each at its least."""
    found: float = row["ideal_us"] - max(row["product_bound_us"], row["launch_us"])
    return found


def reading(document: Mapping[str, Any]) -> str:
    """How far one token's products can go."""
    lines = [
        [f"{row['m']} x {row['n']} x {row['k']}", cells.us(row["default_us"]), cells.us(row["bound_us"]), cells.us(row["reading_us"]),
         cells.us(row.get("storing_us")), f"{row['limit']:.2f}x", row["kernel"]]
        for row in document["rows"]
    ]  # fmt: skip
    heads = [
        "m x n x k",
        "default us",
        "bound us",
        "reading alone us",
        "and storing us",
        "limit",
        "fastest reader",
    ]
    return (
        "## How far products of one token can go\n\nA launch that reads the weights, and does nothing else, in the same "
        "graphs over cold operands, the fastest of many grids: against it the default is "
        f"**{document['limit_geometric_mean']:.3f}x** slower (geometric mean). A product that multiplies what it reads, "
        f"and stores the sums, takes longer.\n\n{cells.table(heads, lines)}\n{source(document)}\n"
    )


def moving(document: Mapping[str, Any]) -> str:
    """How far odd products can go."""
    lines = [
        [f"{row['m']} x {row['n']} x {row['k']}", cells.us(row["default_us"]), cells.us(row["moving_us"]),
         cells.us(row["multiplying_us"]), f"{row['limit']:.2f}x", row["kernel"]]
        for row in document["rows"]
    ]  # fmt: skip
    heads = ["m x n x k", "default us", "moving us", "multiplying us", "limit", "fastest mover"]
    return (
        "## How far odd products can go\n\nA launch that reads A and B once, writes D once, in whole aligned words, "
        "and does nothing else, in the same graphs over cold operands, the fastest of many grids; beside it the "
        "product's multiplications at the device's measured speed. Against the longer of the two the default is "
        f"**{document['limit_geometric_mean']:.2f}x** slower (geometric mean). A product has to move as much, with "
        "lines that start anywhere as they lie, multiplies while it moves, and adds up slices.\n\n"
        f"{cells.table(heads, lines)}\n{source(document)}\n"
    )


def feeding(document: Mapping[str, Any]) -> str:
    """What feeding tensor cores takes: a line a variant."""
    lines = []
    for row in document["rows"]:
        for one in row["variants"]:
            size = f"{row['m']} x {row['n']} x {row['k']}"
            lines.append(
                [
                    size,
                    cells.us(row["default_us"]),
                    one["what"],
                    cells.us(one["us"]),
                    _tile(one["parameters"]),
                ]
            )
    heads = ["m x n x k", "default us", "what", "us", "fastest tile"]
    return (
        "## What feeding Hopper's tensor cores takes\n\nThe kernels of `tile-wgmma`, the fastest of the candidates that it "
        "lists first, whole and without some of what they do, in the same graphs over cold operands. Feeding and sums: "
        "tiles arrive in shared memory by TMA, with multicast, as in the whole kernel, slices' sums are added up through "
        "the cluster and D is stored, but nothing is multiplied; feeding: nor are sums added up, every block stores its "
        "own part; sums and storing: no tiles arrive. Feeding is what these copies would take of a product whose "
        f"multiplications took nothing.\n\n{cells.table(heads, lines)}\n{source(document)}\n"
    )


def inside(document: Mapping[str, Any]) -> str:
    """How far odd products can go by what is known of even ones."""
    tuned = {row["name"]: row for row in document["rows"]}
    lines = []
    for one in document["limits"]:
        odd, best = tuned[one["name"]], tuned[one["inner"]]
        lines.append(
            [_size(odd), cells.us(one["default_us"]), cells.us(one["best_us"]), odd["family"], _size(best),
             str(best["configurations"]), _uncompiled(best), cells.us(one["inner_us"]), best["family"], f"{one['limit']:.2f}x"]
        )  # fmt: skip
    heads = [
        "m x n x k",
        "default us",
        "tuned us",
        "by",
        "inside",
        "timed",
        "not compiled",
        "tuned us",
        "by",
        "limit",
    ]
    return (
        "## How far odd products can go by what is known of even ones\n\nWhoever multiplies an odd product has multiplied "
        "the one inside it, whose sizes are multiples of eight: all of its lines are aligned, which every kernel takes. Both "
        f"tuned in one run, alike, for {document['seconds']:g} s each, over the library's configurations, Triton's and ours (of "
        "which some were not compiled in time). Were no odd product slower than the fastest found of the even one inside, "
        "all would be at "
        f"**{document['limit_geometric_mean']:.2f}x** the default (geometric mean); they are at "
        f"{document['ratio_geometric_mean']:.2f}x. More takes kernels that are faster than the fastest found where nothing "
        f"is odd.\n\n{cells.table(heads, lines)}\n{source(document)}\n"
    )


def _uncompiled(row: Mapping[str, Any]) -> str:
    """How many candidates a search had to leave."""
    found = [note.split()[0] for note in row["notes"] if note.endswith("asked for and not compiled in time")]
    return found[0] if found else "0"


def _size(row: Mapping[str, Any]) -> str:
    return f"{row['m']} x {row['n']} x {row['k']}"


def _tile(values: Mapping[str, Any]) -> str:
    """A candidate of tile-wgmma: its tile of D, tiles of a cluster, and slices of k."""
    return (
        f"{values['tile_m']} x {values['tile_n']}, {values['stages']} stages, {values['share_b']} x {values['share']} "
        f"of a cluster, k in {values['splits']}"
    )
