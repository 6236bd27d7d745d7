"""Nsight Compute's figures of a launch: the default's call and the tuned winner.

    python -m benchmarks.profile llama3-8b/4096x4096/m1 odd/1000x1000x1000
    python -m benchmarks.profile odd/3x1000x777 --keep    keeps the stored rows of other shapes
    python -m benchmarks.profile w4a16/4096x4096/m8 --lists benchmarks/results/lowbit-decode.json
    python -m benchmarks.profile launch --pairs F         the process under ncu: launches the pairs in F

Takes shapes of the published lists, named as in shapes.json, and others that the winners' document has. For
each, the default's call and the winner in cuda-lists-bf16.json (or in --lists FILE:
cuda-lists-bf16-libraries.json gives cuda-profile-libraries.json, and cuda-inside.json gives
cuda-profile-inside.json) are launched twice under `ncu`, each in its own process; the second launch's kernels
are kept. With the documents of benchmarks.lowbit as --lists (one or several) rows are named KIND/NxK/mM, the
winners alone are launched, and the result is cuda-profile-lowbit.json, which has what warps wait for, too.
Caches are flushed before each kernel; clocks are left alone. With --keep, the rows of shapes that
are not named come from the existing document, in --output or else in benchmarks/results, each with the commit
that it was measured at.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import GemmtuneError
from backends.kernels.prepacked import PACK
from backends.problem import GemmProblem, from_linear
from backends.registry import FoundDevice, backend
from backends.solution import Solution
from benchmarks.cuda_tuned import Shape, kernel_cache, machine, read_shapes, say
from benchmarks.lowbit import KINDS
from benchmarks.report import RESULTS, commit, write
from benchmarks.sanitizer import heard
from benchmarks.sanitizer_pairs import Pair, launch_file, to_json

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "Occupancy", "LaunchStats")
#: What warps wait for, and how many could issue: of low-bit winners, which no one unit of the GPU limits.
STALLS = ("SchedulerStats", "WarpStateStats", "InstructionStats")
#: Where the CUDA toolkit installs ncu, tried if it is not on PATH.
ELSEWHERE = "/usr/local/cuda/bin/ncu"
#: Family versions to try: an id depends on the version, and the lists' rows have only the id.
_VERSIONS = range(1, 10)
_COLUMNS = ("ID", "Kernel Name", "Block Size", "Grid Size", "Section Name", "Metric Name", "Metric Unit",
            "Metric Value")  # fmt: skip


@dataclass(frozen=True)
class LowBitShape:
    """A row of a document of benchmarks.lowbit: y[m,n] of weights of its kind."""

    name: str
    kind: str
    m: int
    n: int
    k: int

    def problem(self, dtype: str) -> GemmProblem:
        """The product; its types are the kind's."""
        return from_linear(self.m, self.n, self.k, **KINDS[self.kind])


def located() -> str:
    """ncu's path. Raises SystemExit if it is not installed."""
    path = shutil.which("ncu") or shutil.which(ELSEWHERE)
    if path is None:
        raise SystemExit("ncu (Nsight Compute, of CUDA's toolkit) is not installed: nothing was profiled")
    return path


def command(ncu: str, pairs: Path, more: Sequence[str] = ()) -> list[str]:
    """ncu's command line, with `more` sections. Figures come in base units: ns, bytes per second, percent."""
    sections = [word for name in (*SECTIONS, *more) for word in ("--section", name)]
    options = ["--csv", "--page", "details", "--print-units", "base", "--clock-control", "none"]
    child = [sys.executable, "-m", "benchmarks.profile", "launch", "--pairs", str(pairs)]
    return [ncu, *options, "--cache-control", "all", *sections, *child]


def kernels(output: str) -> list[dict[str, Any]]:
    """Every kernel of ncu's table in order: name, block, grid, and figures, "Section: Metric" -> [value,
    unit]. Text around the table is skipped. Raises ValueError if there is no table."""
    lines = output.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith('"ID",')), None)
    if begin is None:
        raise ValueError("ncu printed no table")
    found: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(line for line in lines[begin:] if line.startswith('"')):
        number, name, block, grid, section, metric, unit, value = (row.get(key) or "" for key in _COLUMNS)
        one = found.setdefault(number, {"kernel": name, "block": block, "grid": grid, "figures": {}})
        if metric:
            one["figures"][f"{section}: {metric}"] = [_number(value), unit]
    return list(found.values())


def _number(text: str) -> float | str:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def winner(row: Mapping[str, Any]) -> Solution:
    """A row's winner as a solution. Raises ValueError if no version of its family gives the row's id."""
    for version in _VERSIONS:
        found = Solution(row["family"], version, row["parameters"], row["build"], row["workspace_bytes"])
        if found.id == row["winner"]:
            return found
    raise ValueError(f"{row['name']}: no version of {row['family']} gives the id {row['winner']}")


def profiled(
    ncu: str, found: FoundDevice, problem: GemmProblem, solution: Solution, cache: BinaryCache, timeout: float,
    more: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The kernels of one launch, or the error."""
    family = backend(found.backend).families()[solution.family]
    try:
        binary = family.compile(problem, solution, found.environment, cache)
    except GemmtuneError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pairs.json")
        pair = Pair(problem, solution, None if binary is None else binary.resolve())
        path.write_text(to_json([pair], found.environment))
        status, output = heard(command(ncu, path, more), timeout)
    if status is None:
        return {"error": f"timed out after {timeout:g} s"}
    try:
        seen = kernels(output)
    except ValueError as error:
        return {"error": f"{error}, exit status {status}", "report": output.splitlines()[-20:]}
    if f"launched {problem.slug} {solution.id}" not in output:
        return {"error": "it was not launched", "report": output.splitlines()[-20:]}
    # Weights are packed before both launches.
    seen = [one for one in seen if one["kernel"].split("(")[0] != PACK]
    return {"kernels": seen[len(seen) // 2 :]}


def rows(
    ncu: str,
    found: FoundDevice,
    shapes: Sequence[Shape | LowBitShape],
    tuned: Mapping[str, Mapping[str, Any]],
    timeout: float,
) -> list[dict[str, Any]]:
    """One or two rows per shape: the default's call, and the winner of the lists if it is another solution. Of
    low-bit products the winner alone."""
    cache, made = kernel_cache(), []
    for shape in shapes:
        problem, low = shape.problem("bf16"), isinstance(shape, LowBitShape)
        default = backend(found.backend).baselines(problem, found.environment)[0]
        asked = {} if low else {"default": default.solution}
        if (row := tuned.get(shape.name)) is not None and "winner" in row:
            asked["tuned"] = winner(row)
        for which, solution in asked.items():
            if which == "tuned" and solution.id == default.solution.id:
                continue
            figures = profiled(ncu, found, problem, solution, cache, timeout, STALLS if low else ())
            say(f"{shape.name} {which} {solution.id}: {figures.get('error') or len(figures['kernels'])}")
            made.append({"name": shape.name, "m": shape.m, "n": shape.n, "k": shape.k, "which": which,
                         "family": solution.family, "solution": solution.id, **figures})  # fmt: skip
    return made


def earlier(name: str, folder: Path, found: FoundDevice) -> dict[str, Any]:
    """The document NAME.json, from the folder or else from benchmarks/results; without rows if there is none.
    Every row has its commit and time of measurement. Raises SystemExit for a document of another kind of GPU:
    shares are of the hardware's own peaks."""
    path = next((at for one in (folder, RESULTS) if (at := one / f"{name}.json").exists()), None)
    if path is None:
        return {"environments": [], "rows": []}
    held = json.loads(path.read_text())
    environments = held.get("environments") or [held["environment"]]
    for field in ("product", "arch", "units"):
        here = getattr(found.environment, field)
        if other := {one[field] for one in environments} - {here}:
            raise SystemExit(f"{path} is of {other.pop()}, not {here}: its rows cannot be kept")
    own = {"commit": held["commit"], "measured_at": held["measured_at"]}
    return {"environments": environments, "rows": [{**own, **row} for row in held["rows"]]}


def document(
    found: FoundDevice, made: Sequence[dict[str, Any]], kept: Mapping[str, Any], order: Sequence[str]
) -> tuple[list[Environment], dict[str, Any]]:
    """The environments of the rows, this one first, and the figures: the new rows and the kept rows of other
    shapes, in the order of the names in `order`."""
    new, here = {row["name"] for row in made}, commit()
    old = [row for row in kept["rows"] if row["name"] not in new]
    places = {name: place for place, name in enumerate(order)}
    every = sorted([*made, *old], key=lambda row: places.get(row["name"], len(places)))
    environments = [found.environment]
    for one in kept["environments"] if old else ():
        if (earlier_one := Environment.from_dict(one)) not in environments:
            environments.append(earlier_one)
    return environments, {
        "what": "Nsight Compute's figures of a launch's kernels, caches flushed before each",
        "commits": sorted({row.get("commit", here) for row in every}), "rows": every,
    }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("shapes", nargs="+", help="names of the published lists' shapes, or: launch")
    made.add_argument("--pairs", type=Path, help=argparse.SUPPRESS)
    made.add_argument(
        "--lists", type=Path, nargs="+", default=[RESULTS / "cuda-lists-bf16.json"],
        help="the document with the winners, or several of low-bit products",
    )  # fmt: skip
    made.add_argument("--keep", action="store_true", help="keep the rows of shapes that are not named")
    made.add_argument("--timeout", type=float, default=120.0, help="seconds of a process (120)")
    made.add_argument(
        "--output", type=Path, default=RESULTS, help="folder of the result (benchmarks/results)"
    )
    return made


def winners(paths: Sequence[Path]) -> tuple[dict[str, Shape | LowBitShape], dict[str, dict[str, Any]]]:
    """The shapes that are known, and the rows that have their winners, by name."""
    known: dict[str, Shape | LowBitShape] = {shape.name: shape for shape in read_shapes()}
    tuned: dict[str, dict[str, Any]] = {}
    for row in (one for path in paths if path.exists() for one in json.loads(path.read_text())["rows"]):
        if "kind" in row:
            name = f"{row['kind']}/{row['n']}x{row['k']}/m{row['m']}"
            known[name] = LowBitShape(name, *(row[word] for word in ("kind", "m", "n", "k")))
            tuned[name] = row | {"name": name}
            continue
        tuned[row["name"]] = row
        if all(one.name in row for one in fields(Shape)):
            known.setdefault(row["name"], Shape(**{one.name: row[one.name] for one in fields(Shape)}))
    return known, tuned


def main(arguments: Sequence[str] | None = None) -> None:
    """Profiles the shapes; exits with 1 if one could not be profiled."""
    options = parser().parse_args(arguments)
    if options.shapes == ["launch"]:
        launch_file(options.pairs)
        return
    known, tuned = winners(options.lists)
    unknown = [name for name in options.shapes if name not in known]
    if unknown:
        raise SystemExit(f"no shape {unknown[0]!r} in the lists; one of them is {next(iter(known))}")
    ncu, found = located(), machine("cuda", 1)[0]
    of = options.lists[0].stem.removeprefix("cuda").removeprefix("-lists-bf16")
    name = "cuda-profile" + ("-lowbit" if of.startswith("lowbit") else of)
    kept: dict[str, Any] = {"environments": [], "rows": []}
    if options.keep:
        kept = earlier(name, options.output, found)
    made = rows(ncu, found, [known[name] for name in options.shapes], tuned, options.timeout)
    write(name, *document(found, made, kept, list(known)), options.output)
    if any("error" in row for row in made):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
