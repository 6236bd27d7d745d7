"""gemmtune lint aiter, as a script meets it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.service.formats.aiter.test_lint import OLDER, older, table
from tests.service.formats.aiter.test_reader import ROW, changed
from tests.service.loaded import Loaded, loaded


@pytest.fixture(scope="module")
def command() -> Loaded:
    return loaded(os.environ)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two tables with one key in both."""
    paths = (tmp_path / "a.csv", tmp_path / "b.csv")
    paths[0].write_text(table(changed(us="9.0"), changed(M="1")))
    paths[1].write_text(table(older(changed(us="8.0")), header=OLDER))
    return str(paths[0]), str(paths[1])


def test_findings_have_their_lines_and_the_exit_code_says_so(command: Loaded, files: tuple[str, str]) -> None:
    code, out, err = command.run("lint", "aiter", *files)
    assert code == 1
    assert f"{files[1]}:2: duplicate: another row of this key is in {files[0]}, line 2: gfx=gfx950" in out
    assert "3 rows: 1 columns, 1 duplicate" in err
    code, out, err = command.run("lint", "aiter", files[0], "--device", "gfx950:256")
    assert (code, out) == (0, "")
    assert "2 rows: nothing found" in err


def test_a_merge_mends_duplicates_and_loses_nothing(
    command: Loaded, files: tuple[str, str], tmp_path: Path
) -> None:
    merged = tmp_path / "merged.csv"
    code, out, _ = command.run("lint", "aiter", *files, "--merge", str(merged), "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["merged"] == {"path": str(merged), "rows": 2}
    assert merged.read_text() == table(changed(us="8.0"), changed(M="1"))
    assert command.run("lint", "aiter", str(merged))[0] == 0
    assert command.run("lint", "aiter", files[0], "--merged", str(merged))[0] == 0
    merged.write_text(table(ROW))
    code, out, _ = command.run("lint", "aiter", files[0], "--merged", str(merged))
    assert code == 1
    assert f"{files[0]}:3: lost: the merged table has no gfx=gfx950 cu_num=256 M=1" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            table(ROW, "broken"),
            "1 line of the tables cannot be read, and would be lost",
        ),
        ("cu_num,B,M,N,K,kernelId,splitK,us\n256,4,16,16,16,1,0,9\n", "the tables are of several operators"),
        (table(older(changed(cu_num="64")), header=OLDER), "nothing says the arch of 1 row, the first in"),
    ],
    ids=["malformed", "operators", "arch"],
)
def test_a_merge_that_would_lose_or_invent_something_is_refused(
    command: Loaded, files: tuple[str, str], tmp_path: Path, text: str, words: str
) -> None:
    other, merged = tmp_path / "other.csv", tmp_path / "merged.csv"
    other.write_text(text)
    code, _, err = command.run("lint", "aiter", files[0], str(other), "--merge", str(merged))
    assert code == 2
    assert words in " ".join(err.split())
    assert not merged.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such-file",), "no-such-file does not exist"),
        (("/",), "/ is a directory; name a file in it"),
        (("/etc/hostname", "--device", "cuda:sm_90"), "'cuda:sm_90' must be such as gfx942 or gfx942:304"),
    ],
)
def test_bad_input_is_one_clear_line(command: Loaded, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = command.run("lint", "aiter", *arguments)
    assert words in " ".join((out + err).split())
    assert "Traceback" not in err
    assert code == 2
