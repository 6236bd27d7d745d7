"""Solution: one way to run a GEMM, with an id that is stable across processes and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from backends.canonical import short_hash, slug

#: No floats: 1 and 1.0 would be equal values with different ids.
Parameter = str | int | bool | None
_PARAMETER = (str, int, bool, type(None))  # made once: searches make solutions by the thousand


@dataclass(frozen=True, eq=False)
class Solution:
    """A family of kernels (or a library routine) with its parameters.

    `version` is the family's version, which rises whenever the same parameters yield a different kernel.
    `build` is the library's build (None for other families), since an algorithm index is meaningless in
    another build. Workspace (bytes) and determinism are not part of the id; deterministic=None means "not
    known".
    """

    family: str
    version: int
    parameters: Mapping[str, Parameter]
    build: str | None = None
    workspace_bytes: int = 0
    deterministic: bool | None = None

    def __post_init__(self) -> None:
        if not self.family or self.family != slug(self.family):
            raise ValueError(f"family {self.family!r} may hold letters, digits, '.', '_' and '-' only")
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:
            raise ValueError(f"version must be an integer from 1, not {self.version!r}")
        if self.workspace_bytes < 0:
            raise ValueError(f"workspace_bytes must not be negative, not {self.workspace_bytes}")
        for name, value in self.parameters.items():
            if not isinstance(name, str) or not isinstance(value, _PARAMETER):
                raise ValueError(
                    f"parameter {name} must be a name with a string, an integer or a bool, not {value!r}"
                )
        object.__setattr__(self, "parameters", MappingProxyType(dict(sorted(self.parameters.items()))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Solution) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __getstate__(self) -> dict[str, Any]:  # a mapping proxy does not pickle
        return {**vars(self), "parameters": dict(self.parameters)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Thousands are passed between processes for a problem, all of them checked when they were made.
        vars(self).update(state, parameters=MappingProxyType(state["parameters"]))

    @cached_property
    def id(self) -> str:
        """The slug and 12 hex digits of a SHA-256 over family, version, parameters and build."""
        identity = [self.family, self.version, dict(self.parameters), self.build]
        return f"{self.slug}-{short_hash(identity)}"

    @property
    def slug(self) -> str:
        """family-name1_value1-..., truncated to 80 characters; not unique."""
        parts = [f"{name}_{value}" for name, value in self.parameters.items()]
        return slug("-".join([self.family, *parts]))[:80].rstrip("-")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return {
            "id": self.id,
            "family": self.family,
            "version": self.version,
            "parameters": dict(self.parameters),
            "build": self.build,
            "workspace_bytes": self.workspace_bytes,
            "deterministic": self.deterministic,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Solution:
        """Raises ValueError if a stored id does not match the stored content."""
        rest = {name: value for name, value in values.items() if name != "id"}
        solution = cls(**rest)
        if "id" in values and values["id"] != solution.id:
            raise ValueError(
                f"stored solution id {values['id']!r} does not match its content ({solution.id!r})"
            )
        return solution
