"""An output: one kind of file that a model's process can load, how it is asked for, and what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from backends.environment import DeviceClass, Environment
from backends.errors import StorageError
from service.bundles import Workshop
from service.formats.core.export import ExportRow
from service.model.gain import ModelReport
from service.model.plan import ModelPlan

#: Writes a service's bundle of problems: (path, architecture of the binaries, ids of the problems).
Fetch = Callable[[Path, str, frozenset[str]], None]


@dataclass(frozen=True)
class Request:
    """What is to be written: the model, the device class, and what is known of the reader. `workshop`
    compiles the binaries of files that have some. `target` names a torch build, or an architecture for
    binaries; `workspace_limit` is in bytes, None for the reader's own. `environments`: those of the device
    class that are known before anything is tuned, the current one first. `fetch`: where rows are a service's,
    which compiles bundles itself."""

    plan: ModelPlan
    device: DeviceClass
    folder: Path
    workshop: Workshop
    target: str | None = None
    validators: Mapping[str, str] = field(default_factory=dict)
    workspace_limit: int | None = None
    environments: tuple[Environment, ...] = ()
    fetch: Fetch | None = None


@dataclass(frozen=True)
class Written:
    """The files, the lines to paste, and what the user must know. `report` knows the written rows."""

    files: tuple[Path, ...]
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    report: ModelReport


@dataclass(frozen=True)
class Output:
    """One kind of file. `vendors`: of the devices whose programs load it. `check` raises ExportRefused for a
    request that cannot be met, before anything is tuned; `write` writes the rows. `language` is that of the
    lines to paste. `format_name`: the export format whose keys are written back, if it is one. `by_torch`: a
    torch build loads the file, so the request must name it. `layers`: how the program runs a model's layers
    (ReadOptions). `merging`: it computes split layers as one GEMM where that is faster. `products`: those of
    the model that the file has (ModelPlan.of). `packs`: the program can pack quantised weights at load."""

    name: str
    what: str
    vendors: tuple[str, ...]
    check: Callable[[Request], None]
    write: Callable[[Request, Sequence[ExportRow]], Written]
    language: str = "sh"
    format_name: str | None = None
    by_torch: bool = False
    layers: str = "fused"
    merging: bool = False
    products: str = "linear"
    packs: bool = False


def check_nothing(_: Request) -> None:
    """Every request can be met."""


def check_folder(folder: Path) -> None:
    """Makes the folder. Raises StorageError if a file cannot be written there."""
    probe = folder / ".gemmtune.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"cannot write to {folder}: {reason}; name another folder with -o") from error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
