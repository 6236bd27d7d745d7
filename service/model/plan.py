"""A model as it is run: its distinct problems, by the number of tokens of a forward pass."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backends.errors import ReadError
from backends.problem import GemmProblem
from service.formats import ReadOptions, read_file
from service.formats.core.base import Imported, ImportedProblem, printable
from service.formats.model.config import Merge, merges_of
from service.formats.vllm.experts import KeyedCall
from service.gated_products import gated_products
from service.prepacking import prepack, prepacked

#: What a model is called on a hub: OWNER/NAME.
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

#: The format of a model's description.
FORMAT = "model-config"


@dataclass(frozen=True)
class ModelPlan:
    """The GEMMs of a model's linear layers on one of `devices` devices that share it. A problem's count is
    how often one forward pass calls it. A row-parallel layer with a bias is two problems there, with and
    without it, because the first device alone adds the bias; both count.

    `layers` is ReadOptions.layers. With "both" the problems are those of two ways to run the model, and a
    forward pass has either: `ways` are the plans of each, by name. `merges`: the layers of "split" that
    "fused" has as one."""

    name: str
    devices: int
    read: Imported
    layers: str
    ways: Mapping[str, ModelPlan]
    merges: Sequence[Merge] = ()

    @property
    def problems(self) -> Sequence[ImportedProblem]:
        """The distinct problems with their counts."""
        return self.read.problems

    @property
    def counts(self) -> Mapping[str, int]:
        """Problem id -> calls in one forward pass; with "both", in either."""
        return {item.problem.id: item.count for item in self.problems}

    def by_tokens(self) -> dict[int, list[ImportedProblem]]:
        """Number of tokens -> the problems of such a forward pass, the fewest tokens first."""
        found: dict[int, list[ImportedProblem]] = {}
        for item in self.problems:
            for tokens in tokens_of(item):
                found.setdefault(tokens, []).append(item)
        return dict(sorted(found.items()))

    def of(self, products: str) -> ModelPlan:
        """The plan with a kind of its products only: "linear", "experts" or "all"."""
        if products == "all":
            return self
        kept = [item for item in self.problems if bool(item.problem.groups) == (products == "experts")]
        ways = {way: plan.of(products) for way, plan in self.ways.items()}
        return replace(self, read=replace(self.read, problems=kept), ways=ways)

    def prepacked(self) -> ModelPlan:
        """The plan of a program that packs the model's quantised weights. Raises InvalidProblem where there
        is none."""
        ways = {way: plan.prepacked() for way, plan in self.ways.items()}
        merges = [
            replace(one, fused=prepacked(one.fused), parts=tuple(map(prepacked, one.parts)))
            for one in self.merges
        ]
        return replace(self, read=prepack(self.read, self.name), ways=ways, merges=merges)

    def gated(self) -> ModelPlan:
        """The plan with the activation in the first products of experts beside those without it, of 16-bit
        floats. A forward pass has either: the client's moe() runs the former, a program that calls
        torch._grouped_mm itself the latter, whose calls count."""
        problems = [*self.problems, *gated_products(self.problems)]
        return replace(self, read=replace(self.read, problems=problems))

    def some(self, problems: Sequence[GemmProblem]) -> Imported:
        """The file with these of its problems only, as a tuning takes it."""
        wanted = {problem.id for problem in problems}
        kept = [item for item in self.problems if item.problem.id in wanted]
        return Imported(self.read.format, kept, [], self.read.lines)


def tokens_of(item: ImportedProblem) -> tuple[int, ...]:
    """The numbers of tokens of a forward pass that has the problem. Those of routed experts are in the names
    that the reader gives them: devices that share experts may have as many rows for several."""
    named = [call.tokens for key in item.keys if (call := KeyedCall.of(key)) is not None]
    # Column-major, the output of F.linear has a column for each token.
    return tuple(dict.fromkeys(named)) or (item.problem.n,)


def read_model(path: Path, options: ReadOptions) -> ModelPlan:
    """The model of a config.json, or of the folder that holds one. Raises ReadError for a file that is none,
    for an architecture or a quantisation that is not supported, and for devices that do not divide it."""
    check_not_hub(path)
    file = path / "config.json" if path.is_dir() else path
    read = read_file(file, FORMAT, options)
    if not read.problems:
        reason = read.rejected[0].reason if read.rejected else "the file is empty"
        raise ReadError(f"{printable(str(file))} describes no model: {reason}")
    name = file.parent.name if file.name == "config.json" else file.stem
    ways: dict[str, ModelPlan] = {}
    merges: Sequence[Merge] = ()
    if options.layers == "both":
        ways = {way: read_model(path, replace(options, layers=way)) for way in ("fused", "split")}
        merges = merges_of(json.loads(file.read_bytes()), options)
    return ModelPlan(name or "model", options.tensor_parallel, read, options.layers, ways, merges)


def check_not_hub(path: Path) -> None:
    """Raises ReadError for a model's name on a hub, such as meta-llama/Llama-3-8B, in place of a file."""
    name = str(path)
    if path.suffix == ".json" or not _HUB_NAME.fullmatch(name) or path.exists():
        return
    folder = name.rpartition("/")[2]
    raise ReadError(
        f"there is no file or folder {name}. If it is a model's name on a hub: gemmtune uses no network. "
        f"Download the model's config.json, a few kB without weights (hf download {name} config.json "
        f"--local-dir {folder}), and name its folder: gemmtune model {folder} --for ..."
    )
