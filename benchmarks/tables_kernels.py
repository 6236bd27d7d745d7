"""Generates the figures between the marks of docs/kernels.md from the results that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cells import source, table

DOCUMENT = Path(__file__).parent.parent / "docs" / "kernels.md"
#: The worklog's GFLOP/s at 4092^3 on an A6000, by the family that is the step here; None if it has no figure.
WORKLOG: Mapping[str, float | None] = {
    "naive": 300, "coalesced": 2000, "shared-tile": 2200, "block-tile-1d": 8600, "block-tile-2d": 16000,
    "vectorized": 19000, "warp-tile": 21700, "double-buffered": None, "async-copy": None,
}  # fmt: skip
_MARKS = "<!-- figures: {} -->\n(.*?)<!-- end -->\n"


def ladder(document: Mapping[str, Any]) -> str:
    """Every step's best GFLOP/s, one row per step and one column per size (those at which every family was
    timed), beside the worklog's."""
    rows = [row for row in document["rows"] if row.get("gflops") is not None]
    missed = {(row["m"], row["n"], row["k"]) for row in document["rows"] if row.get("gflops") is None}
    sizes = sorted({(row["m"], row["n"], row["k"]) for row in rows} - missed)
    rows = [row for row in rows if (row["m"], row["n"], row["k"]) in sizes]
    found = {(row["family"], (row["m"], row["n"], row["k"])): row for row in rows}
    known = [name for name in WORKLOG if any(name == family for family, _ in found)]
    others = sorted({family for family, _ in found} - set(WORKLOG))
    names = ["{} x {} x {}".format(*size) for size in sizes]
    lines = [
        f"| step | {' | '.join(f'{name}: GFLOP/s (over the framework)' for name in names)} | worklog, A6000 |",
        f"|---|{'---|' * len(sizes)}---|",
    ]
    for family in [*known, *others]:
        cells = [_cell(found.get((family, size))) for size in sizes]
        told = WORKLOG.get(family)
        lines.append(f"| `{family}` | {' | '.join(cells)} | {'' if told is None else f'{told:,.0f}'} |")
    base = {row["baseline"] for row in rows}
    return (
        "\n".join(lines)
        + f"\n\nThe best of each family's candidates, verified; in parentheses the time of {' / '.join(sorted(base))} over "
        f"its time.\n{source(document)}\n"
    )


def _cell(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{row['gflops']:,.0f} ({row['ratio']:.2f}x)"


def families(document: Mapping[str, Any]) -> str:
    """Every problem's families, the fastest first, over the framework's call and over the best library."""
    lines = [
        "| m x n x k | family | us | TFLOP/s | GB/s | over the framework | over the library | of the bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    timed = [row for row in document["rows"] if row.get("best_us") is not None]
    base = sorted({row["baseline"] for row in timed})
    for problem in dict.fromkeys(row["problem"] for row in timed):
        rows = sorted((row for row in timed if row["problem"] == problem), key=lambda row: -row["ratio"])
        # Both ratios are over the framework's call, interleaved with each: absolute times drift on a hot GPU.
        library = max((row["ratio"] for row in rows if row["family"] in LIBRARIES), default=None)
        for row in rows:
            over = "" if library is None else f"{row['ratio'] / library:.2f}x"
            share = f"{row['share']:.0%}" if "share" in row else ""
            lines.append(
                f"| {_product(row)} | `{row['family']}` | {row['best_us']:.2f} | {row['gflops'] / 1e3:.1f} | "
                f"{row['gbytes']:,.0f} | {row['ratio']:.2f}x | {over} | {share} |"
            )
    return (
        "\n".join(lines)
        + "\n\nThe best of each family's candidates, verified, on cold operands; the framework's call is "
        f"{' / '.join(base)}, the library's the best of {' and '.join(LIBRARIES)} when tuned (by "
        f"the ratios of both to the framework's, which was timed interleaved with each).\n{source(document)}\n"
    )


def _product(row: Mapping[str, Any]) -> str:
    """The sizes in row-major terms; stored problems are column-major."""
    size = f"{row['n']} x {row['m']} x {row['k']}"
    return size if row["batch"] == 1 else f"{row['batch']} of {size}"


def sanitizer(document: Mapping[str, Any]) -> str:
    """The result of each tool of compute-sanitizer for each family: 0 if clean, else its verdict."""
    tools = document["tools"]
    lines = [f"| family | pairs | {' | '.join(tools)} |", f"|---|---|{'---|' * len(tools)}"]
    for row in document["rows"]:
        said = [row["tools"][tool]["verdict"] for tool in tools]
        cells = ["0" if verdict == "clean" else verdict for verdict in said]
        launched = min(row["tools"][tool]["launched"] for tool in tools)
        lines.append(f"| `{row['family']}` | {launched} | {' | '.join(cells)} |")
    return (
        "\n".join(lines) + "\n\nPairs that were launched, and errors and warnings of compute-sanitizer "
        f"{document['version']}.\n{source(document)}\n"
    )


def amd(document: Mapping[str, Any]) -> str:
    """What the default candidate of every family takes on AMD's architectures, as compilers and disassemblers
    report it, and how many kernels of its sample spill; one row per family and architecture."""
    rows = document["rows"]
    families = dict.fromkeys(row["family"] for row in rows)
    made = table(
        ("family", "arch", "VGPRs", "AGPRs", "SGPRs", "LDS, bytes", "scratch, bytes", "waves per SIMD",
         "matrix instructions", "sample: compiled", "spilling (most, bytes)"),
        [_amd_row(row) for family in families for row in rows if row["family"] == family],
    )  # fmt: skip
    compilers: dict[str, list[str]] = {}
    for arch, of in document["compilers"].items():
        compilers.setdefault(f"{of['clang']}, Triton {of['triton']}", []).append(arch)
    versions = "; ".join(f"{', '.join(archs)}: {names}" for names, archs in compilers.items())
    return (
        f"{made}\nOf each family's default candidate: registers (VGPRs include AGPRs), LDS and scratch as the "
        "compiler reports them; resident waves per SIMD and the resource that limits them; matrix instructions "
        "in the disassembled kernel. The last two columns are of a sample of the family's whole space. None of "
        f"these figures needs, or comes from, an AMD GPU. {versions}. {document['kernels']} kernels were compiled in "
        f"{document['seconds']:.0f} s on {document['processors']} processors.\n"
        f"`{document['command']}`, {document['measured_at'][:10]}, commit {document['commit'][:12]}\n"
    )


def _amd_row(row: Mapping[str, Any]) -> list[str]:
    one = row["default"]
    spilling = f"{row['spilling']} ({row['worst_spill_bytes']})" if row["spilling"] else "0"
    sample = [f"{row['compiled']} of {row['compiled'] + row['failed']}", spilling]
    if one["status"] == "failed":
        return [f"`{row['family']}`", row["arch"], "failed", *[""] * 6, *sample]
    numbers = (
        one["registers"], one["accumulation_registers"], one["scalar_registers"], one["shared_bytes"],
        one["scratch_bytes"],
    )  # fmt: skip
    counted = one["matrix_instructions"]
    found = ", ".join(f"{count} `{name}`" for name, count in (counted or {}).items()) or "none"
    waves = f"{one['waves_per_simd']:.3g} ({one['occupancy_limit']})"
    return [
        f"`{row['family']}`", row["arch"], *("-" if value is None else f"{value:,}" for value in numbers),
        waves, "not counted" if counted is None else found, *sample,
    ]  # fmt: skip


#: Families that are a library's calls.
LIBRARIES = ("cublaslt", "cublas")
#: Mark -> (the result's name, its table).
BLOCKS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "ladder": ("cuda-own-ladder", ladder),
    "squares": ("cuda-own-squares", families),
    "batched": ("cuda-own-batched", families),
    "sanitizer": ("cuda-sanitizer", sanitizer),
    "sanitizer-hopper": ("cuda-sanitizer-hopper", sanitizer),
    "sanitizer-weights": ("cuda-sanitizer-weights", sanitizer),
    "sanitizer-tile": ("cuda-sanitizer-tile", sanitizer),
    "sanitizer-packed": ("cuda-sanitizer-packed", sanitizer),
    "sanitizer-packed-imma": ("cuda-sanitizer-packed-imma", sanitizer),
    "sanitizer-scales": ("cuda-sanitizer-scales", sanitizer),
    "sanitizer-grouped-wgmma": ("cuda-sanitizer-grouped-wgmma", sanitizer),
    "amd": ("kernels-check-amd", amd),
}


def filled(text: str, folder: Path) -> str:
    """The page with every block regenerated; a block without a result is empty. Raises ValueError for a page
    that lacks a mark."""
    for mark, (name, make) in BLOCKS.items():
        path, marks = folder / f"{name}.json", re.compile(_MARKS.format(re.escape(mark)), re.DOTALL)
        found = marks.search(text)
        if found is None:
            raise ValueError(f"{DOCUMENT.name} has no block of the figures {mark!r}")
        made = make(json.loads(path.read_text())) if path.exists() else ""
        text = text[: found.start(1)] + made + text[found.end(1) :]
    return text
