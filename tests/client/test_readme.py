"""The example of client/README.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.problem import from_linear
from tests.client import native

README = Path(__file__).parents[2] / "client" / "README.md"


@pytest.mark.compiler
def test_the_launch_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    problem = from_linear(3, 128, 64, "fp32")
    rows = [(problem, native.solution("stream", problem))]
    native.write(tmp_path / "bundle.gtb", BinaryCache(tmp_path / "cache"), rows)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(README), "exec"), {})
    printed = re.findall(r"# ([\d. ]+)$", example, re.MULTILINE)
    assert capsys.readouterr().out.split() == printed[0].split() == ["2016.0", "6112.0"]
