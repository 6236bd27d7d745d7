"""No modules of the product import one another: two files that do are one idea, or have an arrow too many."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _modules() -> dict[str, ast.Module]:
    found = {}
    roots = dict.fromkeys(("backends", "tuners", "db", "service"), ROOT) | {"gemmtune": ROOT / "client"}
    for folder, root in roots.items():
        for path in (root / folder).rglob("*.py"):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text())
    return found


def _imports(module: ast.Module, known: set[str]) -> set[str]:
    """The product's modules that a module imports, wherever in it, for types alone too."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= below & known or {node.module}
    return found & known


def _circle(arrows: dict[str, set[str]]) -> list[str]:
    """A path along the arrows that ends where it began; empty where there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(arrows[name]):
            circle = walk(other, [*path, name])
            if circle:
                return circle
        done.add(name)
        return []

    for name in sorted(arrows):
        circle = walk(name, [])
        if circle:
            return circle
    return []


def test_no_modules_import_one_another() -> None:
    modules = _modules()
    assert len(modules) > 200
    assert _circle({name: _imports(tree, set(modules)) - {name} for name, tree in modules.items()}) == []


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert _circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
