"""Follows each guide of docs/extending in a copy of the project: copies the files, applies the diffs, runs
the commands, and compares the files that changed with those that the guide lists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUIDES = ("family", "strategy", "format", "backend")
#: Large, and not needed in a copy.
_LEFT_OUT = ("benchmarks/results/",)
#: Compiles every family for four architectures, which takes about a minute.
RECORD = "python -m tests.golden.record code"
#: Folders whose bytecode is copied too: compiling it again takes seconds.
_CODE = ("backends", "db", "service", "tests", "tuners")
_PROGRAMS = {
    "gemmtune": [sys.executable, "-m", "service.entry"],
    "pytest": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
    "python": [sys.executable],
    "cp": ["cp"],
}


@dataclass(frozen=True)
class Guide:
    """A page of docs/extending."""

    name: str

    @cached_property
    def text(self) -> str:
        return (ROOT / "docs" / "extending" / f"{self.name}.md").read_text()

    def blocks(self, *languages: str) -> list[str]:
        """The fenced blocks of these languages."""
        found = re.findall(r"^```(\w+)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)
        return [text for language, text in found if language in languages]

    @property
    def commands(self) -> list[str]:
        return "".join(self.blocks("sh")).splitlines()

    @property
    def counts(self) -> tuple[int, int]:
        """Its numbers of files that are written or edited by hand, and of files that commands generate."""
        found = re.search(r"^\*\*(\d+) files by hand, (\d+) generated\.\*\*$", self.text, re.MULTILINE)
        assert found is not None
        return int(found[1]), int(found[2])

    @property
    def files(self) -> tuple[set[str], set[str]]:
        """The same files by name, from its table."""
        rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", self.text, re.MULTILINE)
        made = {name for name, change in rows if change.startswith("generated")}
        return {name for name, _ in rows} - made, made


class Copy:
    """A copy of the project: the files that a commit would hold, and their bytecode."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if listed.returncode:
            pytest.skip("the project is no git checkout here")
        for name in dict.fromkeys(listed.stdout.split("\0")):
            if name and (ROOT / name).is_file() and not name.startswith(_LEFT_OUT):
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)  # with its time, by which bytecode is valid
        for cache in (path for top in _CODE for path in (ROOT / top).rglob("__pycache__")):
            shutil.copytree(cache, self.folder / cache.relative_to(ROOT), dirs_exist_ok=True)
        self._environment = {
            **os.environ,
            "GEMMTUNE_CACHE_DIR": str(folder / "cache"),
            "GEMMTUNE_DATABASE_URL": f"sqlite:///{folder / 'gemmtune.sqlite'}",
            "PYTEST_ADDOPTS": "-rp",
            "PYTHONDONTWRITEBYTECODE": "",
        }

    def run(self, command: str) -> str:
        """Runs a command of a guide and returns what it printed. Of a test run, some tests pass and none is
        skipped."""
        program, *arguments = shlex.split(command)
        done = subprocess.run(
            [*_PROGRAMS[program], *arguments],
            cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}\n{said[-3000:]}"
        if program == "pytest":
            passed = re.search(r"^(\d+) passed(?:, \d+ deselected)? in", said, re.MULTILINE)
            assert passed is not None, said[-3000:]
            assert int(passed[1]) > 0
        return said

    def edit(self, diff: str) -> None:
        """Applies a diff block of a guide. A hunk replaces the first lines that match it."""
        for part in re.split(r"^\+\+\+ ", diff, flags=re.MULTILINE)[1:]:
            name, _, body = part.partition("\n")
            text = (self.folder / name).read_text()
            for hunk in re.split(r"^@@\n", body, flags=re.MULTILINE)[1:]:
                lines = hunk.splitlines(keepends=True)
                old = "".join(line[1:] for line in lines if line[0] in " -")
                new = "".join(line[1:] for line in lines if line[0] in " +")
                where = text.find(old)
                assert where >= 0, f"{name} has no lines\n{old}"
                text = text[:where] + new + text[where + len(old) :]
            (self.folder / name).write_text(text)

    def contents(self) -> dict[str, str]:
        """Every file's digest."""
        paths = (
            path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
        )
        return {
            path.relative_to(self.folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths
        }

    def changed(self, before: dict[str, str]) -> set[str]:
        """The files that are new or changed. None is gone."""
        now = self.contents()
        assert before.keys() <= now.keys()
        return {name for name, digest in now.items() if before.get(name) != digest}


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def apply(guide: Guide, copy: Copy) -> set[str]:
    """Makes the changes that a guide describes. Returns the files that changed."""
    before = copy.contents()
    for command in guide.commands:
        if command.startswith("cp "):
            copy.run(command)
    for diff in guide.blocks("diff"):
        copy.edit(diff)
    changed = copy.changed(before)
    python = [str(copy.folder / name) for name in sorted(changed) if name.endswith(".py")]
    for check in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, *python],
            cwd=copy.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    return changed


def follow(guide: Guide, copy: Copy, *skipped: str) -> dict[str, str]:
    """Follows a guide from beginning to end. Returns what each command printed."""
    by_hand, generated = guide.files
    assert (len(by_hand), len(generated)) == guide.counts
    assert apply(guide, copy) == by_hand
    before = copy.contents()
    said = run(guide, copy, *skipped)
    assert copy.changed(before) == (set() if RECORD in skipped else generated)
    return said


def run(guide: Guide, copy: Copy, *skipped: str) -> dict[str, str]:
    """Runs the commands of a guide, without those that are skipped. Returns what each printed."""
    commands = [one for one in guide.commands if not one.startswith("cp ")]
    assert set(skipped) <= set(commands)
    return {command: copy.run(command) for command in commands if command not in skipped}


FAMILY = "row-strip"
CHECK_AMD = f"gemmtune kernels check --arch gfx942 --family {FAMILY} --limit 4"


@pytest.mark.process
@pytest.mark.compiler
def test_a_kernel_family_is_added_as_the_guide_says(copy: Copy) -> None:
    said = follow(Guide("family"), copy, RECORD, CHECK_AMD)
    assert FAMILY in said["gemmtune kernels"]
    checked = said[f"gemmtune kernels check --arch sm_90 --family {FAMILY} --limit 4"]
    assert re.search(rf"^ sm_90 +{FAMILY} +4 +0 ", checked, re.MULTILINE)
    tests = said[f"pytest tests/backends/kernels -k {FAMILY}"]
    for name in (
        "emulator/test_families.py::test_a_family_computes_every_problem_right",
        "test_compile.py::test_python_and_the_header_agree_over_the_whole_legal_space",
        "test_compile.py::test_every_launch_waits_before_it_touches_memory",
        "test_family.py::test_near_is_legal_and_a_step_away",
        "test_sampling.py::test_candidates_are_legal_and_the_same_every_time",
    ):
        assert f"PASSED tests/backends/kernels/{name}[{FAMILY}" in tests


@pytest.mark.process
@pytest.mark.compiler
@pytest.mark.clang
def test_the_family_compiles_for_amds_gpus(copy: Copy) -> None:
    guide = Guide("family")
    assert CHECK_AMD in guide.commands
    apply(guide, copy)
    assert re.search(rf"^ gfx942 +{FAMILY} +4 +0 ", copy.run(CHECK_AMD), re.MULTILINE)


@pytest.mark.process
def test_a_search_strategy_is_added_as_the_guide_says(copy: Copy) -> None:
    follow(Guide("strategy"), copy)


@pytest.mark.process
def test_a_file_format_is_added_as_the_guide_says(copy: Copy) -> None:
    follow(Guide("format"), copy)


@pytest.mark.process
def test_a_backend_is_registered_as_the_guide_says(copy: Copy) -> None:
    """The null backend's contract suite runs in every test run (tests/backends/test_contract.py)."""
    guide = Guide("backend")
    changed = apply(guide, copy)
    assert f"three entries in {len(changed)} files" in guide.text
    listed = {
        row for row in re.findall(r"^\| `([^`]+)` \|", guide.text, re.MULTILINE) if not row.endswith("/")
    }
    assert f"**1 folder and {len(listed)} files by hand.**" in guide.text
    assert changed <= listed
    said = run(guide, copy, "pytest tests/backends/test_contract.py -k null")
    assert "null:sm_90:null:3" in said["gemmtune devices"]


# ---- what the guides quote and name --------------------------------------------------------------

EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.parametrize("name", GUIDES)
def test_what_a_guide_quotes_is_in_the_source(name: str) -> None:
    folder = EXAMPLES / name if name != "backend" else ROOT / "backends" / "gpu"
    sources = "\0".join(path.read_text() for path in folder.rglob("*.*") if path.suffix in (".h", ".py"))
    quotes = Guide(name).blocks("cpp", "python")
    assert quotes
    for quote in quotes:
        assert quote in sources, quote


@pytest.mark.parametrize("name", GUIDES)
def test_what_a_guide_names_exists(name: str) -> None:
    guide = Guide(name)
    for target in re.findall(r"\]\(([^)]+)\)", guide.text):
        assert (ROOT / "docs" / "extending" / target).exists(), target
    made = guide.files[0]
    for path in re.findall(r"`((?:backends|benchmarks|db|docs|service|tests|tuners)/[\w./-]*)`", guide.text):
        assert path in made or (ROOT / path).exists(), path


@pytest.mark.parametrize("name", GUIDES)
def test_contributing_links_to_the_guide_and_has_its_counts(name: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (said,) = re.findall(r"^\*\*(.+ by hand.*)\.\*\*$", Guide(name).text, re.MULTILINE)
    (section,) = [
        part for part in re.split(r"^## ", text, flags=re.MULTILINE) if f"extending/{name}.md" in part
    ]
    assert f"{said}." in section.replace("\n", " ")
