"""Families of other distributions, found by their entry points; nothing is installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends import plugins, registry
from backends.cache import BinaryCache
from backends.outcome import Status
from backends.problem import from_mm
from backends.registry import find_device
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.policy import MeasurementPolicy

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "plugin"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with entry points on the path, also on that of child processes."""

    def put(value: str, name: str = "mine", text: str | None = None) -> None:
        folder = tmp_path / f"gemmtune_{name}-0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gemmtune-{name}\nVersion: 0.1\n")
        (folder / "entry_points.txt").write_text(f"[gemmtune.families]\n{name} = {value}\n")
        if text is not None:
            (tmp_path / f"plugin_{name}.py").write_text(text)
        plugins.forget()

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)
    yield put
    plugins.forget()
    for name in [name for name in sys.modules if name.startswith(("plugin_", "gemmtune_einsum"))]:
        del sys.modules[name]


def test_the_example_is_searched_like_our_own(install: Install, cache: BinaryCache) -> None:
    install("gemmtune_einsum:families")
    assert "einsum" in registry.backend("cpu").families()
    assert "einsum" not in registry.backend("cuda").families()
    with DeviceClient(find_device("cpu"), cache) as client:  # the device process finds it too
        task = Task(from_mm(12, 16, 8, "fp32"), MeasurementPolicy(cache="warm"), 0)
        space = client.space(task, ["einsum"])
        assert [one.parameters["optimize"] for one in space.candidates] == [True, False]
        client.open(task)
        outcomes = client.screen(list(space.candidates), None)
    assert {one.status for one in outcomes} <= {Status.OK, Status.UNSTABLE}


FAMILY = "from gemmtune_einsum import Einsum\nclass Mine(Einsum):\n    name = {!r}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("families = 3\n", "TypeError"),
        ("", "AttributeError"),
        ("def families(vendor):\n    return [object()]\n", "its name is None"),
        (FAMILY.format("packed"), "family 'packed' is left out: gemmtune has a family of this name"),
        (FAMILY.format("user.mine"), "those of judged kernels"),
        ("class Mine:\n    name = 'bare'\n", "it lacks unavailable, supports"),
    ],
)
def test_what_a_plugin_does_wrong_is_a_note(install: Install, text: str, words: str) -> None:
    made = "def families(vendor):\n    return [Mine()]\n" if "class Mine" in text else ""
    install("plugin_mine:families", text=text + made)
    before = registry.backend("cpu").families()
    found, notes = registry.devices("cpu")
    assert found
    (note,) = [one for one in notes if "plug-in" in one]
    assert "plug-in 'mine' (plugin_mine:families) of gemmtune-mine 0.1" in note
    assert words in note
    assert "mine" not in " ".join(before)


def test_of_two_plugins_with_one_name_the_first_is_taken(install: Install) -> None:
    install("gemmtune_einsum:families", "first")
    install("gemmtune_einsum:families", "second")
    assert "einsum" in registry.backend("cpu").families()
    _, notes = registry.devices("cpu")
    assert any("has one of this name" in note for note in notes)


def test_what_the_guide_quotes_is_in_the_example() -> None:
    guide = (EXAMPLE.parents[1] / "extending" / "plugin.md").read_text()
    sources = "".join(path.read_text() for path in sorted(EXAMPLE.iterdir()) if path.is_file())
    quotes = re.findall(r"^```(?:python|toml)\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert len(quotes) == 3
    for quote in quotes:
        assert quote in sources
