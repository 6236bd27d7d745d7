"""The process that queries NVIDIA's nvMatmulHeuristics: a JSON request a line on standard input, an answer
likewise on standard output. It ends with its input. nvidia_prior.py explains why it is a process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any


@lru_cache
def _heuristics(gpu: str) -> Any:
    import nvMatmulHeuristics as library  # noqa: N813, PLC0415  (optional)

    # The class that never destroys its handle: destroying a handle that has been queried crashes (0.1.0.27).
    return library.NvMatmulHeuristicsInterfaceEx(
        library.NvMatmulHeuristicsTarget.TRITON,
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu],
    )


def asked(gpu: str, questions: Sequence[Mapping[str, Any]], most: int) -> list[list[dict[str, Any]]]:
    """The configurations of each question, in the library's order. Exceptions of the library pass through."""
    import nvMatmulHeuristics as library  # noqa: N813, PLC0415  (optional)

    heuristics = _heuristics(gpu)
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
    """Serves requests. The library's own output goes to standard error, never into an answer."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        out.write(json.dumps(asked(request["gpu"], request["questions"], request["most"])) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
