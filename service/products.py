"""The kinds of products in a list of problems, and their rows: what tells lists of one device apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from backends.problem import GemmProblem


def product_text(problem: GemmProblem) -> str:
    """What the problem multiplies, without its sizes: bf16, fp8_e4m3 outer, bf16 b:uint4 block_1x128
    prepacked, bf16 groups. The types and scales are those of the row-major call; a scale of both operands is
    named once."""
    words = [_types(problem)]
    scales = [scale for scale in (problem.scale_b, problem.scale_a) if scale != "none"]
    if scales:
        words.append("+".join(dict.fromkeys(scales)))
    words += ["groups"] * bool(problem.groups)
    words += ["prepacked"] * problem.prepacked
    return " ".join(words)


def products_of(problems: Sequence[GemmProblem]) -> dict[str, Any]:
    """Of the problems, as plain JSON values: their types, each once; the kinds of products with how many
    problems are of each, the most frequent first; the least and the most rows (M of the row-major call), null
    without a problem."""
    counts = Counter(map(product_text, problems))
    rows = [problem.n for problem in problems]
    return {
        "types": sorted(set(map(_types, problems))),
        "products": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "m": {"least": min(rows), "most": max(rows)} if rows else None,
    }


def _types(problem: GemmProblem) -> str:
    """The types of A and, where it differs, of B."""
    of_a = "tf32" if problem.compute == "tf32" else problem.dtype_b
    return of_a if problem.dtype_a == problem.dtype_b else f"{of_a} b:{problem.dtype_a}"
