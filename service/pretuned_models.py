"""The models that the rows of a pre-tuned table are layers of, by the models' config.json.

A database cannot say it: it counts the calls of the machine that tuned, which a table leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backends.errors import ReadError
from backends.problem import GemmProblem
from service.formats.core.base import Entry, ReadOptions
from service.formats.core.export import ExportRow, ModelLayer
from service.formats.model.config import ModelConfig


@dataclass
class ModelLayers:
    """The layers of models, fused and one by one, on each number of devices that shares them. A model's name
    is that of its file, or of its folder for a config.json. `dtype`: that of the layers, if not the
    checkpoint's."""

    configs: Sequence[Path]
    devices: Sequence[int] = (1,)
    dtype: str | None = None
    _tokens: set[int] = field(default_factory=set)
    #: Rows of a token in products of experts, as many as a model chooses for it.
    _chosen: set[int] = field(default_factory=set)
    _layers: dict[GemmProblem, list[ModelLayer]] = field(default_factory=dict)

    def of(self, problem: GemmProblem) -> tuple[ModelLayer, ...]:
        """The layers that are this problem, with stored weights or prepacked ones. Raises ReadError for
        a file that describes no known model, and for a model that none of the numbers of devices divides."""
        rows = problem.n  # column-major: the rows of the activations
        if problem.groups:
            self._read_all(1)
            for chosen in sorted(self._chosen):
                if rows % chosen == 0:
                    self._read_all(rows // chosen)
        else:
            self._read_all(rows)
        # Whether a program packs its weights beforehand, no checkpoint says: it is the same layer.
        return tuple(self._layers.get(replace(problem, prepacked=False), ()))

    def told(self, row: ExportRow) -> ExportRow:
        """The row with its layers, and their calls as its count. Raises ReadError."""
        found = self.of(row.problem)
        return replace(row, models=found, count=sum(layer.calls for layer in found))

    def _read_all(self, tokens: int) -> None:
        """Reads every model's layers for so many tokens, once."""
        if tokens not in self._tokens:
            for path in self.configs:
                self._read(path, tokens)
            self._tokens.add(tokens)

    def _read(self, path: Path, tokens: int) -> None:
        faults: list[ReadError] = []
        lines = path.read_bytes().splitlines(keepends=True)
        name = path.parent.name if path.name == "config.json" else path.stem
        for devices in self.devices:
            options = ReadOptions(path.name, devices, (tokens,), self.dtype, "both")
            try:
                found = [one for one in ModelConfig().read_told(lines, options) if isinstance(one, Entry)]
            except ReadError as error:
                faults.append(error)
                continue
            if not found:
                raise ReadError(f"{path} describes no model: give a config.json of transformers")
            for entry in found:
                layer = ModelLayer(name, devices, entry.key, entry.count)
                self._layers.setdefault(entry.problem, []).append(layer)
                if tokens == 1 and entry.problem.groups:
                    self._chosen.add(entry.problem.n)
        if len(faults) == len(self.devices):
            raise ReadError(f"{path}: {faults[0]}")
