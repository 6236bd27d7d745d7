"""The measured ceilings of a device, stored per environment: read, copy, and compute by input type."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from backends.cache import storage_error
from backends.canonical import short_hash
from backends.environment import Environment


@dataclass(frozen=True)
class Ceilings:
    """Bytes/s of reading and of copying (read + written), and FLOP/s of a large GEMM by input type. `method`
    says how each was measured."""

    read_bytes_per_second: float
    copy_bytes_per_second: float
    flops_per_second: Mapping[str, float]
    method: Mapping[str, str] = field(default_factory=dict)

    def merged(self, other: Ceilings) -> Ceilings:
        """The union of both measurements. The higher of two figures is kept, since a ceiling is the highest
        rate reached."""
        flops = dict(self.flops_per_second)
        method = {**self.method}
        for name in ("read", "copy"):
            rate = f"{name}_bytes_per_second"
            if name in other.method and getattr(other, rate) > getattr(self, rate):
                method[name] = other.method[name]
        for kind, flop_rate in other.flops_per_second.items():
            if flop_rate > flops.get(kind, 0.0):
                flops[kind], method[kind] = flop_rate, other.method[kind]
        return replace(
            self,
            read_bytes_per_second=max(self.read_bytes_per_second, other.read_bytes_per_second),
            copy_bytes_per_second=max(self.copy_bytes_per_second, other.copy_bytes_per_second),
            flops_per_second=flops,
            method=method,
        )


class CeilingsOf(Protocol):
    """Gives a device's measured ceilings."""

    def __call__(self, dtypes: Sequence[str], beaten: bool = False) -> Ceilings:
        """The ceilings of input types ("tf32" among them). `beaten`: something was faster than they allow;
        they are measured again. Raises GemmtuneError."""


class CeilingStore:
    """A folder with one JSON file per environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Environment and type whose ceilings this store has measured again.
        self._again: set[tuple[str, str]] = set()

    def get(self, environment: Environment) -> Ceilings | None:
        """The ceilings measured in this environment; None if there are none or the file is damaged."""
        try:
            values: dict[str, Any] = json.loads(self._path(environment).read_text())
            return Ceilings(**values["ceilings"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, environment: Environment, ceilings: Ceilings) -> None:
        """Stores an environment's ceilings. Raises StorageError."""
        path = self._path(environment)
        text = json.dumps({"environment": environment.to_dict(), "ceilings": asdict(ceilings)}, indent=1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                fresh = Path(folder) / path.name
                fresh.write_text(text)
                fresh.replace(path)
        except OSError as error:
            raise storage_error(path, error) from error

    def obtain(
        self,
        environment: Environment,
        dtypes: Sequence[str],
        measure: Callable[[Sequence[str]], Ceilings],
        beaten: bool = False,
    ) -> Ceilings:
        """The stored ceilings, after measuring and storing the missing ones of `dtypes`. `beaten`: something
        was faster than they allow, so those of `dtypes` are measured again, by each store once."""
        known = self.get(environment)
        missing = [name for name in dtypes if known is None or name not in known.flops_per_second]
        if beaten:
            missing = [name for name in dtypes if (environment.id, name) not in self._again]
            self._again |= {(environment.id, name) for name in missing}
        if known is not None and not missing:
            return known
        fresh = measure(missing)
        together = fresh if known is None else known.merged(fresh)
        self.put(environment, together)
        return together

    def of(self, environment: Environment, measure: Callable[[Sequence[str]], Ceilings]) -> CeilingsOf:
        """obtain() for one environment."""

        def found(dtypes: Sequence[str], beaten: bool = False) -> Ceilings:
            return self.obtain(environment, dtypes, measure, beaten)

        return found

    def _path(self, environment: Environment) -> Path:
        return self.root / f"{short_hash(environment.to_dict())}.json"
