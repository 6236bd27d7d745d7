"""Export targets: who can name what, and that the families are those that the backends have."""

from __future__ import annotations

import pytest

from backends.cpu.families import NativeFamily
from backends.export_targets import BUNDLE, EXPORT_TARGETS, LIBRARY_FAMILIES, ExportTarget, targets_of
from backends.gpu.compiled_family import CompiledFamily
from backends.gpu.null_backend import NullBackend
from backends.gpu.padded_family import PaddedFamily
from backends.gpu.triton_family import CompiledTritonFamily
from backends.registry import BACKENDS, backend
from backends.solution import Solution

OURS = (NativeFamily, CompiledFamily, CompiledTritonFamily, PaddedFamily)


def test_names() -> None:
    assert all(name == target.name for name, target in EXPORT_TARGETS.items())
    assert all(target.reader.isprintable() for target in EXPORT_TARGETS.values())


@pytest.mark.parametrize("vendor", [*BACKENDS, "null"])
def test_a_bundle_names_every_kernel_of_ours_and_no_library(vendor: str) -> None:
    families = (NullBackend() if vendor == "null" else backend(vendor)).families()
    assert BUNDLE in targets_of(vendor)
    for name, family in families.items():
        assert BUNDLE.names_family(name) == isinstance(family, OURS), name
        assert (name in LIBRARY_FAMILIES) != isinstance(family, OURS), name


def test_every_library_family_is_some_backends() -> None:
    known = {name for vendor in BACKENDS for name in backend(vendor).families()}
    assert known >= LIBRARY_FAMILIES


@pytest.mark.parametrize(
    ("vendor", "names"),
    [
        ("cuda", ["cublaslt", "cublaslt-1mib", "inductor", "block-fp8", "fused-moe", "bundle"]),
        ("hip", ["hipblaslt", "rocblas", "inductor", "block-fp8", "fused-moe", "bundle"]),
        ("cpu", ["openblas", "bundle"]),
        ("null", ["bundle"]),
    ],
)
def test_the_targets_of_a_vendor(vendor: str, names: list[str]) -> None:
    assert [target.name for target in targets_of(vendor)] == names


def test_a_framework_s_targets_take_verdicts_against_what_it_runs() -> None:
    for name, target in EXPORT_TARGETS.items():
        if name in ("openblas", "bundle"):
            assert target.replaces("openblas"), "no framework's: any verdict says what is gained"
            continue
        assert target.replaces("torch"), name
        assert not target.replaces("openblas_upcast"), name
        assert set(target.defaults) <= LIBRARY_FAMILIES | {"triton-block-fp8", "triton-fused-moe"}
    assert EXPORT_TARGETS["cublaslt"].replaces("cublaslt-heuristic")
    assert not EXPORT_TARGETS["cublaslt"].replaces("rocblas-default")
    assert EXPORT_TARGETS["rocblas"].replaces("rocblas-default")


def test_workspace_and_family_decide() -> None:
    small, large = (Solution("cublaslt", 1, {"algo_id": 1}, "130200", size) for size in (2**20, 2**20 + 1))
    limited, free = EXPORT_TARGETS["cublaslt-1mib"], EXPORT_TARGETS["cublaslt"]
    assert (limited.names(small), limited.names(large)) == (True, False)
    assert (free.names(small), free.names(large)) == (True, True)
    assert not free.names(Solution("tile-wgmma", 1, {}))
    assert BUNDLE.names(Solution("a-family-of-tomorrow", 1, {}))
    assert not ExportTarget("mine", "a test", families=("naive",)).names_family("packed")
