"""Writes the compiled kernels of a check into a folder, one by one, for programs that inspect or emulate
machine code: each binary beside a JSON file that describes its launches, as launch.json does in a package.

The launches are for a small problem that the same machine code serves, so that an emulator can run them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from backends.cache import BinaryCache
from backends.errors import InvalidProblem, StorageError
from backends.kernel_checks.candidates import Candidate, environment_of, same_code
from backends.packages.package import describe, follows_units, to_json
from backends.problem import GemmProblem
from backends.wire import problem_from_wire, problem_to_wire

#: Sizes along m and n, and along k, in the order of preference: ragged ones of more than one tile of most
#: kernels, with rows that are multiples of 16 bytes or not; whole tiles, for kernels of those alone.
_SIDES = (80, 144, 73, 128, 256, 40, 24)
_DEPTHS = (272, 265, 256, 512, 1024, 2048, 40, 33)


def keep(folder: Path, candidates: Sequence[Candidate], cache: BinaryCache) -> Iterator[Path]:
    """Writes FOLDER/ARCH/FAMILY-NUMBER.* for every candidate, numbered in order, and yields the paths of the
    descriptions. The candidates are known to compile. Raises StorageError if the folder cannot be written."""
    numbers: dict[tuple[str, str], int] = {}
    for candidate in candidates:
        of = candidate.arch, candidate.family
        numbers[of] = numbers.get(of, -1) + 1
        name = f"{candidate.family}-{numbers[of]:03}"
        yield _keep(folder / candidate.arch, name, smaller(candidate), cache)


def _keep(folder: Path, name: str, candidate: Candidate, cache: BinaryCache) -> Path:
    solution, arch = candidate.solution, candidate.arch
    units = environment_of(arch).units if follows_units(solution) else None
    document, files = describe(candidate.problem, solution, arch, units, cache)
    # kernel.hsaco of a C++ family is NAME.hsaco; gemm.hsaco of Triton is NAME.gemm.hsaco.
    names = {file: f"{name}.{file.removeprefix('kernel.')}" for file in files}
    packing = [document["packing"]["launch"]] if "packing" in document else []
    for launch in [*document["launches"], *packing]:
        launch["file"] = names[launch["file"]]
    description = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / names[file]).write_bytes(data)
        description.write_bytes(to_json(document))
    except OSError as error:
        raise StorageError(f"cannot write {description}: {error.strerror or error}") from error
    return description


def smaller(candidate: Candidate) -> Candidate:
    """The candidate for a smaller problem that the same code serves, or itself if none of those tried is."""
    for problem in _smaller(candidate.problem):
        if (found := same_code(candidate, problem)) is not None:
            return found
    return candidate


def _smaller(problem: GemmProblem) -> Iterator[GemmProblem]:
    """The problem with other sizes, no larger along any dimension, the preferred ones first. Its leading
    dimensions shrink with it unless they are given."""
    wire = problem_to_wire(problem)
    m, n = ([*(one for one in _SIDES if one < wire[name]), wire[name]] for name in ("m", "n"))
    k = [*(one for one in _DEPTHS if one < wire["k"]), wire["k"]]
    ranked = sorted(product(enumerate(m), enumerate(n), enumerate(k)), key=lambda one: sum(i for i, _ in one))
    for sizes in ranked:
        with suppress(InvalidProblem):
            values = (size for _, size in sizes)
            yield problem_from_wire({**wire, **dict(zip(("m", "n", "k"), values, strict=True))})
