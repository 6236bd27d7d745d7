"""The client is a distribution of its own: it imports Python's standard library and itself alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import gemmtune
import pytest

from tests.test_imports import _circle as circle
from tests.test_imports import _imports as imports

CLIENT = Path(__file__).parents[2] / "client"
PACKAGE = CLIENT / "gemmtune"
#: Modules of Triton's kernels.
_TRITON = ("glue_kernels.py", "few_tokens_kernels.py", "few_tokens_packed_kernels.py")


def _imported(path: Path) -> set[str]:
    """The top-level names of every module that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found.add((node.module or "").partition(".")[0])
    return found


def _below(path: Path, folder: str) -> bool:
    return path.is_relative_to(PACKAGE / folder)


def test_only_gemmtune_torch_imports_torch() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 15
    for path in paths:
        foreign = _imported(path) - set(sys.stdlib_module_names) - {"gemmtune"}
        # torch needs typing_extensions itself.
        allowed = {"torch", "typing_extensions"} if _below(path, "torch") else set()
        # A module that is imported where Triton is installed.
        allowed |= {"triton"} if path.name in _TRITON else set()
        # A function that is called with a model of that library.
        allowed |= {"transformers"} if path.name == "transformers_experts.py" else set()
        assert foreign <= allowed, f"{path} imports {foreign - allowed}"


def test_only_gemmtune_torch_imports_gemmtune_torch() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if _below(path, "torch"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""] + [f"{node.module}.{alias.name}" for alias in node.names]
            assert not any(name.startswith("gemmtune.torch") for name in names), path


def test_no_modules_import_one_another() -> None:
    paths = {path: path.relative_to(CLIENT).with_suffix("") for path in PACKAGE.rglob("*.py")}
    names = {path: ".".join(one.parts).removesuffix(".__init__") for path, one in paths.items()}
    modules = {name: ast.parse(path.read_text()) for path, name in names.items() if not _below(path, "torch")}
    assert circle({name: imports(one, set(modules)) - {name} for name, one in modules.items()}) == []


def test_the_distribution_needs_python_alone() -> None:
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("gemmtune-client", [])
    assert project["requires-python"] == ">=3.10"
    assert (CLIENT / "LICENSE").read_text() == (CLIENT.parent / "LICENSE").read_text()


@pytest.mark.process
def test_it_is_imported_without_any_other_package() -> None:
    """In a Python without site-packages, and without the folder of the service."""
    code = "import gemmtune, sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(CLIENT)}, cwd="/",
    )  # fmt: skip
    assert "'gemmtune'" in done.stdout
    for name in ("backends", "service", "db", "tuners", "numpy", "torch"):
        assert f"'{name}'" not in done.stdout


def test_the_public_names() -> None:
    assert gemmtune.__all__ == [
        "BundleError", "DeviceClass", "GemmtuneError", "Kernel", "LaunchError", "OpenTable", "PreparedLaunch",
        "ProblemError", "Row", "Table", "load", "problem",
    ]  # fmt: skip
    assert all(hasattr(gemmtune, name) for name in gemmtune.__all__)
