"""The process that queries NVIDIA's nvMatmulHeuristics once: a JSON request on standard input, a JSON answer
on standard output. nvidia_prior.py explains why it is a process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def asked(gpu: str, questions: Sequence[Mapping[str, Any]], most: int) -> list[list[dict[str, Any]]]:
    """The configurations of each question, in the library's order. Exceptions of the library pass through."""
    import nvMatmulHeuristics as library  # noqa: N813, PLC0415  (optional)

    # The class that never destroys its handle: destroying a handle that has been queried crashes (0.1.0.27).
    heuristics = library.NvMatmulHeuristicsInterfaceEx(
        library.NvMatmulHeuristicsTarget.TRITON,
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu],
    )
    found = []
    for one in questions:
        layout = library.NvMatmulHeuristicsMatmulLayout[one["layout"]]
        problem = heuristics.makeNvMatmulHeuristicsProblem(one["m"], one["n"], one["k"], layout, one["batch"])
        answers = heuristics.get(problem, most, one["precision"])
        found.append([_plain(answer["kernel"]) for answer in answers])
    return found


def _plain(kernel: Any) -> dict[str, Any]:
    def numbers(*names: str) -> list[int]:
        return [int(getattr(kernel, name)) for name in names]

    stages, split_k, swizzle, order = numbers("stages", "split_k", "swizzle_factor", "cta_order")
    return {
        "block": numbers("cta_tile_m", "cta_tile_n", "cta_tile_k"),
        "warp": numbers("warp_tile_m", "warp_tile_n", "warp_tile_k"),
        "cluster": numbers("cluster_m", "cluster_n"),
        "stages": stages,
        "split_k": split_k,
        "swizzle": swizzle,
        "order": order,
    }


def main() -> None:
    """Serves one request. The library's own output goes to standard error, never into the answer."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    json.dump(asked(request["gpu"], request["questions"], request["most"]), out)
    out.close()


if __name__ == "__main__":
    main()
