"""`--help` of a benchmark shows its options, and neither measures nor writes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import benchmarks

PROGRAMS = sorted(
    path.stem for path in Path(benchmarks.__path__[0]).glob("*.py") if "__main__" in path.read_text()
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_is_shown_and_nothing_is_done(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.startswith("client_torch"):
        pytest.importorskip("torch")

    def write(path: Path, *_: object, **__: object) -> int:
        raise AssertionError(f"{path} is written")

    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr("sys.argv", [f"benchmarks/{name}.py", "--help"])
    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: ")
    assert name in shown.splitlines()[0]
