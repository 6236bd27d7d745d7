"""Compares the search strategies on GEMM spaces that others measured: CLBlast's Xgemm on four GPUs.

    python -m benchmarks.benchmark_hub FOLDER [--fetch] [--quick] [--record]

FOLDER holds the files of FILES, from the repository benchmark_hub of the AutoTuning Association (MIT licence);
`--fetch` downloads what is missing there. Each file has every legal configuration (on one GPU 10,000 of them)
of one kernel for one problem, 4096 x 4096 x 4096 in fp32, with 32 runs of each. A search sees the first 16 runs
and is judged by the other 16. It is given what the other GPUs' fastest configurations were, and nothing of its
own: no list, no portfolio, no model of the kernel. (`local` begins with a list, and is left out.) Figures as in
benchmarks/strategies.py.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.errors import ReadError
from backends.outcome import Status
from backends.problem import from_mm
from backends.solution import Solution
from benchmarks.report import write
from benchmarks.strategies import QUICK_SEEDS, REMEMBERED, SEEDS, Finding, figures_of, search
from tuners.policy import MeasurementPolicy
from tuners.recorded_table import RecordedProblem, RecordedTable, Row
from tuners.strategies import STRATEGIES, PriorKnowledge, PriorResult
from tuners.strategies.options import OptionValue

COMMIT = "8eeb99e7179e6838af95d392ac6c60cebfd8c434"
SOURCE = (
    f"https://raw.githubusercontent.com/AutoTuningAssociation/benchmark_hub/{COMMIT}"
    "/currently_unused/cachefiles/KernelTuner%20data/gemm"
)
PROBLEM = from_mm(4096, 4096, 4096, "fp32")
FAMILY = "clblast-xgemm"
#: What is compared, with the options that let a search do without a list.
COMPARED: Mapping[str, Mapping[str, OptionValue]] = {
    name: {"whole": True} if name == "random" else {} for name in STRATEGIES if name != "local"
}
#: CLBlast's default for devices that it does not know.
DEFAULT: Mapping[str, int] = {
    "MWG": 64, "NWG": 64, "KWG": 32, "MDIMC": 16, "NDIMC": 16, "MDIMA": 16, "NDIMB": 16, "KWI": 2,
    "VWM": 2, "VWN": 2, "STRM": 0, "STRN": 0, "SA": 1, "SB": 1, "PRECISION": 32,
}  # fmt: skip


@dataclass(frozen=True)
class HubFile:
    """A file of the repository, and the GPU that it was measured on."""

    sha256: str
    arch: str
    product: str
    units: int
    memory_bytes: int

    @property
    def environment(self) -> Environment:
        """The GPU; of the software the file says nothing."""
        return Environment(
            "cuda", self.arch, self.product, self.units, self.memory_bytes, "GPU-benchmark-hub"
        )


_GIB = 1 << 30
FILES: Mapping[str, HubFile] = {
    "RTX_2080_Ti.json.gz": HubFile(
        "8cd18f61f0c237ed5ca08002b6acd2d7ac665d4200f969aa5b42c181cea2e326",
        "sm_75", "NVIDIA GeForce RTX 2080 Ti", 68, 11 * _GIB,
    ),
    "RTX_3060_laptop.json.gz": HubFile(
        "e56896a5f098a6bc8751497b8b1a29a019a621e0edf342dc1b4cdc37f1cc786c",
        "sm_86", "NVIDIA GeForce RTX 3060 Laptop GPU", 30, 6 * _GIB,
    ),
    "RTX_3090.json.gz": HubFile(
        "a829d92217a8fc0477cb582a98df7496748b5b5d5bffb876db4112f3aff352c3",
        "sm_86", "NVIDIA GeForce RTX 3090", 82, 24 * _GIB,
    ),
    "RTX_Titan.json.gz": HubFile(
        "85d4f512f5f2abb541cc4d8c11aa05aa2157ef5562d79b702bd3caf63023c429",
        "sm_75", "NVIDIA TITAN RTX", 72, 24 * _GIB,
    ),
}  # fmt: skip


def fetch(folder: Path, source: str = SOURCE, files: Mapping[str, HubFile] = FILES) -> list[Path]:
    """Downloads the files that the folder lacks. Raises ReadError for one that is not what it should be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in files.items():
        path = folder / name
        if path.exists():
            continue
        with urllib.request.urlopen(f"{source}/{name}", timeout=60) as answer:
            content = answer.read()
        if (found := hashlib.sha256(content).hexdigest()) != one.sha256:
            raise ReadError(f"{source}/{name} has the SHA-256 {found}, not {one.sha256}: it is another file")
        path.write_bytes(content)
    return [folder / name for name in files]


def read(path: Path, environment: Environment) -> RecordedTable:
    """A file of Kernel Tuner's cache as a table of one problem. Raises ReadError."""
    try:
        with gzip.open(path) as file:
            content = json.load(file)
        rows = tuple(_row(content["tune_params_keys"], one) for one in content["cache"].values())
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReadError(f"cannot read {path} as a cache of Kernel Tuner: {error!r}") from error
    timed = [row for row in rows if row.seconds is not None]
    if not timed:
        raise ReadError(f"{path} has no configuration with a time")
    # A file with a part of the space may lack the default: then the one that differs in the fewest parameters.
    default = min(
        timed, key=lambda row: sum(row.solution.parameters[name] != DEFAULT[name] for name in DEFAULT)
    )
    recorded = RecordedProblem(PROBLEM, rows, (("CLBlast's default", default.solution.id),))
    rule = "every configuration of the file; its first 16 runs, and its other runs"
    return RecordedTable(environment, COMMIT, "", rule, MeasurementPolicy(), (recorded,))


def _row(names: Sequence[str], content: Mapping[str, Any]) -> Row:
    solution = Solution(FAMILY, 1, {name: content[name] for name in names})
    # Kernel Tuner writes the name of an error, or a huge number, in place of a time.
    if not isinstance(content["time"], int | float) or content["time"] > 1e9:
        return Row(solution, Status.LAUNCH_ERROR)
    seconds = [float(one) / 1e3 for one in content["times"]]
    half = len(seconds) // 2
    return Row(solution, Status.OK, tuple(seconds[:half]), tuple(seconds[half:]))


def fastest_elsewhere(tables: Sequence[RecordedTable], own: RecordedTable) -> tuple[PriorResult, ...]:
    """The fastest configurations of every other GPU."""
    found: list[PriorResult] = []
    for table in tables:
        if table is own:
            continue
        (recorded,) = table.problems
        times = {row.solution: row.seconds for row in recorded.rows if row.seconds is not None}
        default = next(time for one, time in times.items() if one.id == recorded.baselines[0][1])
        best = sorted(times.items(), key=lambda pair: (pair[1], pair[0].id))[:REMEMBERED]
        found += [
            PriorResult(recorded.problem, table.environment, one, Status.OK, seconds / default)
            for one, seconds in best
        ]
    return tuple(found)


def compare(
    tables: Sequence[RecordedTable], names: Sequence[str], seeds: int
) -> dict[str, dict[str, dict[str, object]]]:
    """GPU (and "all") -> strategy -> figures."""
    searched: dict[str, dict[str, list[list[Finding]]]] = {}
    for table in tables:
        prior = PriorKnowledge(fastest_elsewhere(tables, table))
        searched[table.environment.product] = {
            name: [
                search(table, table.problems[0], name, prior, seed, COMPARED[name]) for seed in range(seeds)
            ]
            for name in names
        }
    everywhere = {name: [one for found in searched.values() for one in found[name]] for name in names}
    return {
        gpu: {name: figures_of(found) for name, found in by_name.items()}
        for gpu, by_name in {"all": everywhere, **searched}.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the figures, and with --record writes them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.benchmark_hub")
    parser.add_argument("folder", type=Path, help="folder with the files")
    parser.add_argument("--fetch", action="store_true", help="download the files that are missing")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} searches a GPU, not {SEEDS}")
    parser.add_argument("--strategy", action="append", choices=list(COMPARED), help="default: all")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/benchmark-hub.json")
    given = parser.parse_args(arguments)
    missing = [name for name in FILES if not (given.folder / name).exists()]
    if missing and not given.fetch:
        parser.error(f"{given.folder} lacks {', '.join(missing)}; --fetch downloads them")
    paths = fetch(given.folder)
    tables = [read(path, FILES[path.name].environment) for path in paths]
    names = given.strategy or list(COMPARED)
    figures = compare(tables, names, QUICK_SEEDS if given.quick else SEEDS)
    if given.record:
        document = {
            "what": "replayed searches of CLBlast's Xgemm, one GPU left out of what is known at a time: regret "
            "after 20, 40 and 60 candidates",
            "source": SOURCE,
            "rows": {
                path.name: len(table.problems[0].rows) for path, table in zip(paths, tables, strict=True)
            },
            "strategies": figures,
        }
        write("benchmark-hub", [table.environment for table in tables], document)
    for gpu, by_name in figures.items():
        for name, found in by_name.items():
            print(f"{gpu:36} {name:14} mean {found['mean_regret']:.2%}, p95 {found['p95_regret']:.2%}")


if __name__ == "__main__":
    main()
