"""What a cuBLASLt algorithm can be set to, and the configurations that follow. No library, no device.

A configuration is the nine attributes of a cublasLtMatmulAlgo_t. An algorithm's capabilities list tiles and
stages, whether it splits k, the reduction schemes, and so on; which combinations it takes only the library's
check can tell (`Check`: bytes of workspace, or None for a refusal). Source: cublasLt.h, enums
cublasLtMatmulAlgoConfigAttributes_t and cublasLtMatmulAlgoCapAttributes_t.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from backends.cache import storage_error
from backends.family_space import Axis, ParameterGrid


class MatmulAlgoConfig(NamedTuple):
    """The nine attributes, named as a solution's parameters are."""

    algo_id: int
    tile_id: int = 0
    stages_id: int = 0
    splitk_num: int = 1
    reduction_scheme: int = 0
    cta_swizzling: int = 0
    custom_option: int = 0
    inner_shape_id: int = 0
    cluster_shape_id: int = 0


#: Workspace bytes of a legal configuration, None for one that the library refuses.
Check = Callable[[MatmulAlgoConfig], int | None]

#: Cluster shapes are numbered up to here (cublasLtClusterShape_t).
CLUSTERS = range(51)
AUTOMATIC = 0
#: Shares of k that are tried; the library takes any number.
SPLITS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
REDUCTIONS = (1, 2, 4)
INNER_SHAPES = range(5)
#: Custom options beyond this are not tried one by one.
MOST_OPTIONS = 32
#: Of an algorithm's tiles, so many stand for all when its clusters are looked for.
_PROBED = 96


@dataclass(frozen=True)
class Algorithm:
    """One algorithm's capabilities. Alignments are bytes of A, B, C and D; masks are bits of the enum."""

    algo_id: int
    tiles: tuple[int, ...]
    stages: tuple[int, ...]
    splits_k: bool
    reductions: int
    swizzles: bool
    custom_max: int
    epilogues: int
    batches: bool
    out_of_place: bool
    alignment: tuple[int, int, int, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Algorithm:
        """Raises TypeError for missing or unknown fields."""
        tuples = {name: tuple(values[name]) for name in ("tiles", "stages", "alignment")}
        return cls(**{**values, **tuples})

    def allows(self, alignment: Sequence[int]) -> bool:
        """Whether operands (A, B, C, D) aligned to so many bytes will do."""
        return all(least <= given for least, given in zip(self.alignment, alignment, strict=True))


#: Elements of k that a stage holds, of the stages that name no number (cublasLtMatmulStages_t, *xAUTO).
STAGE_K = {32: 8, 33: 16, 34: 32, 35: 64, 36: 128, 37: 256, 38: 768}
#: The algorithm that drops what is left of k (below), seen in cuBLAS 13.1 on sm_90.
DROPS_REMAINDER = 66


def drops_remainder(one: MatmulAlgoConfig, k: int) -> bool:
    """Whether a configuration is known to leave the last k mod splitk_num elements of k out of the product,
    although the library's check passes it: where k does not divide, and its rounded-down share is a whole
    number of stages. (benchmarks/cuda.py: trap; docs/cuda.md.)"""
    if one.algo_id != DROPS_REMAINDER or one.splitk_num < 2 or one.stages_id not in STAGE_K:
        return False
    share, rest = divmod(k, one.splitk_num)
    return rest != 0 and share > 0 and share % STAGE_K[one.stages_id] == 0


def base_configurations(algorithm: Algorithm, check: Check) -> Iterator[MatmulAlgoConfig]:
    """Every legal (tile, stages, cluster) of an algorithm without splitting k, the rest at its default; where
    there is none, with the first inner shape that has some."""
    for inner in INNER_SHAPES:
        found = list(_with_inner_shape(algorithm, inner, check))
        yield from found
        if found:
            return


def _with_inner_shape(algorithm: Algorithm, inner: int, check: Check) -> Iterator[MatmulAlgoConfig]:
    tiles, stages = algorithm.tiles or (0,), algorithm.stages or (0,)
    step = max(1, len(tiles) // _PROBED)

    def one(tile: int, stage: int, cluster: int) -> MatmulAlgoConfig:
        return MatmulAlgoConfig(algorithm.algo_id, tile, stage, 1, 0, 0, 0, inner, cluster)

    def takes(cluster: int) -> bool:
        return any(check(one(tile, stage, cluster)) is not None for stage in stages for tile in tiles[::step])

    # Who takes "automatic" takes every number, and heeds none.
    clusters = [AUTOMATIC] if takes(AUTOMATIC) else [c for c in CLUSTERS if c != AUTOMATIC and takes(c)]
    for cluster in clusters:
        for stage in stages:
            for tile in tiles:
                if check(one(tile, stage, cluster)) is not None:
                    yield one(tile, stage, cluster)


def keep_triples(found: Mapping[int, Sequence[MatmulAlgoConfig]], path: Path) -> None:
    """Writes the legal triples of each algorithm; kept_triples() is the inverse. Raises StorageError."""
    text = json.dumps({number: [list(one) for one in ones] for number, ones in found.items()})
    try:
        path.write_text(text)
    except OSError as error:
        raise storage_error(path, error) from error


def kept_triples(path: Path) -> dict[int, list[MatmulAlgoConfig]] | None:
    """The legal triples in a file; None if it is damaged, so that they are found again."""
    try:
        read = json.loads(path.read_text())
        return {
            int(number): [MatmulAlgoConfig(*map(int, one)) for one in ones] for number, ones in read.items()
        }
    except (ValueError, TypeError, AttributeError):
        return None


def neighbours(
    origin: MatmulAlgoConfig, algorithm: Algorithm, base: Iterable[MatmulAlgoConfig]
) -> list[MatmulAlgoConfig]:
    """Configurations that differ from `origin` in one choice; `base` are the algorithm's legal triples of
    tile, stages and cluster. A reduction scheme belongs to splitting k and changes with it."""
    found: list[MatmulAlgoConfig] = []
    if algorithm.splits_k:
        schemes = [scheme for scheme in REDUCTIONS if scheme & algorithm.reductions]
        if origin.splitk_num not in (0, 1):  # shares, or the library's own choice of them (-1)
            found.append(origin._replace(splitk_num=1, reduction_scheme=0))
            schemes = [origin.reduction_scheme, *(s for s in schemes if s != origin.reduction_scheme)]
        near = sorted(SPLITS, key=lambda count: abs(count - origin.splitk_num))
        found += [origin._replace(splitk_num=n, reduction_scheme=s) for s in schemes for n in near]
    triples = {(one.tile_id, one.stages_id, one.cluster_shape_id) for one in base}
    found += [
        origin._replace(cluster_shape_id=cluster)
        for tile, stages, cluster in sorted(triples)
        if (tile, stages) == (origin.tile_id, origin.stages_id)
    ]
    found += [
        origin._replace(custom_option=option) for option in range(min(algorithm.custom_max, MOST_OPTIONS) + 1)
    ]
    if algorithm.swizzles:
        found.append(origin._replace(cta_swizzling=1 - origin.cta_swizzling))
    found += [
        origin._replace(stages_id=stages)
        for tile, stages, cluster in sorted(triples)
        if (tile, cluster) == (origin.tile_id, origin.cluster_shape_id)
    ]
    found += [
        origin._replace(tile_id=tile)
        for tile, stages, cluster in sorted(triples)
        if (stages, cluster) == (origin.stages_id, origin.cluster_shape_id)
    ]
    found += [origin._replace(inner_shape_id=shape) for shape in INNER_SHAPES]
    return [one for one in dict.fromkeys(found) if one != origin]


#: The attributes that the library's check decides on together, and those that split k.
TRIPLE, SPLIT = ("tile_id", "stages_id", "cluster_shape_id"), ("splitk_num", "reduction_scheme")


def grid(
    algorithm: Algorithm, base: Iterable[MatmulAlgoConfig], answers: Sequence[MatmulAlgoConfig]
) -> ParameterGrid:
    """Every configuration of an algorithm: its legal triples of tile, stages and cluster (`base`) with every
    way of splitting k, swizzle, custom option and inner shape. Values that occur only in the heuristics'
    `answers` are among them. Which combinations are legal only the library's check can tell."""
    schemes = [scheme for scheme in REDUCTIONS if scheme & algorithm.reductions]
    splits = [(1, 0), *((count, scheme) for count in SPLITS for scheme in schemes)]
    base = [one for one in base if one.algo_id == algorithm.algo_id]
    own = [one for one in answers if one.algo_id == algorithm.algo_id]

    def axis(names: Sequence[str], known: Iterable[Sequence[int]]) -> Axis:
        seen = (tuple(getattr(one, name) for name in names) for one in own)
        return Axis(tuple(names), tuple(dict.fromkeys((*map(tuple, known), *seen))))

    return ParameterGrid(
        (
            axis(("algo_id",), [(algorithm.algo_id,)]),
            axis(TRIPLE, [[getattr(one, name) for name in TRIPLE] for one in base]),
            axis(("inner_shape_id",), [(shape,) for shape in INNER_SHAPES]),
            axis(SPLIT, splits if algorithm.splits_k else splits[:1]),
            axis(("custom_option",), [(one,) for one in range(min(algorithm.custom_max, MOST_OPTIONS) + 1)]),
            axis(("cta_swizzling",), [(0,), (1,)] if algorithm.swizzles else [(0,)]),
        )
    )


def by_cost(
    configurations: Iterable[MatmulAlgoConfig],
    sizes: tuple[int, int, int],
    units: int,
    tile_shapes: Mapping[int, tuple[int, int]],
) -> list[MatmulAlgoConfig]:
    """Ordered by a model of waves: each of `units` multiprocessors takes a tile at a time, and a tile costs
    its area and its edge (what it reads of A and B). `sizes`: m, n, batch."""
    m, n, batch = sizes

    def cost(one: MatmulAlgoConfig) -> tuple[float, int, int]:
        rows, columns = tile_shapes.get(one.tile_id, (128, 128))
        tiles = ceil(m / rows) * ceil(n / columns) * batch
        waves = ceil(tiles / units)
        return waves * (rows * columns / 64 + rows + columns), -rows * columns, one.cluster_shape_id

    return sorted(configurations, key=cost)


def spread(configurations: Sequence[MatmulAlgoConfig]) -> list[MatmulAlgoConfig]:
    """The same, each (algorithm, tile) once before any comes again: neighbours fill in the rest."""
    turns: dict[tuple[int, int], int] = {}
    keyed = []
    for place, one in enumerate(configurations):
        key = (one.algo_id, one.tile_id)
        turns[key] = turns.get(key, -1) + 1
        keyed.append((turns[key], place, one))
    return [one for _, _, one in sorted(keyed)]
