"""Sibling modules whose weights apply(fuse=True) merged, as the table in use knows them."""

from __future__ import annotations

from typing import Any, Protocol

from gemmtune.torch.tuned_row import TunedRow


class MergedModules(Protocol):
    """Sibling modules whose weights are one tensor (fuse.py). `sizes`: outputs of each; `k`: inputs."""

    sizes: list[int]
    k: int
    weight: Any
    bias: Any

    def row(self, m: int) -> TunedRow | None:
        """The row of the product of all for M; None where the siblings compute alone."""


class MergedWeights(Protocol):
    """Sibling modules whose quantised weights are one tensor (quantised/fuse.py). `forms`: of the weights of
    each."""

    forms: list[Any]

    @property
    def has_bias(self) -> bool:
        """Whether the modules have biases."""

    @property
    def device_type(self) -> str:
        """Of the weights."""

    @property
    def joined(self) -> bool:
        """Whether the modules' packed copies lie behind each other and are together that of the product."""

    def row(self, m: int, dtype: Any, copy: bool = True) -> TunedRow | None:
        """The row of the product of all for M rows of a type; None where the siblings compute alone. `copy`:
        whether it may read the packed copy."""
