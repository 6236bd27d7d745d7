"""Files of portfolios: what comes back, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.environment import Environment
from backends.errors import ReadError
from backends.problem import from_mm
from backends.solution import Solution
from tuners.portfolio import file
from tuners.portfolio.values import Group, Member

HERE = Environment("cpu", "x86_64", "Some CPU", 2, 2**30, "uuid", "x86-64-v3")
PACKED = Solution(
    "packed", 1,
    {"dot": "upcast", "kc": 384, "mc": 192, "mr": 16, "nc": 4096, "nr": 6, "threads": 1}, None, 0, True,
)  # fmt: skip
OTHER = Solution("openblas", 1, {"routine": "matmul", "threads": 1}, "1")
NEAR, FAR = from_mm(16, 64, 64), from_mm(4096, 4096, 4096)
TYPES = "fp32 -> fp32 -> fp32"
MADE = {"release": "1", "commit": "abc", "made_at": "now"}


def group(*members: Member) -> Group:
    return Group("cpu", "x86-64-v3", TYPES, members, 2, 0.01, ("a test",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "portfolio.json"
    file.write(found, [group(Member(PACKED, (FAR,)), Member(OTHER, (NEAR,)))], MADE)
    return found


def test_what_is_written_is_read(path: Path) -> None:
    found = file.read(path)
    assert found.provenance == MADE
    assert found.groups == [group(Member(PACKED, (FAR,)), Member(OTHER, (NEAR,)))]
    assert found.notes == ()


def test_members_that_serve_near_problems_come_first(path: Path) -> None:
    found = file.read(path)
    assert found.solutions(from_mm(8, 64, 64), HERE) == [OTHER, PACKED]
    assert found.solutions(from_mm(4096, 4096, 2048), HERE) == [PACKED, OTHER]
    assert found.solutions(from_mm(8, 64, 64, "fp64"), HERE) == []


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_another_version_is_refused_by_name(path: Path) -> None:
    changed(path, lambda content: content.update(version=2))
    with pytest.raises(ReadError, match=r"portfolio.json is a portfolio of version 2; this gemmtune reads 1"):
        file.read(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_that_is_cut_short_is_refused(path: Path, share: float) -> None:
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(ReadError, match=r"portfolio.json is no portfolio or is cut short"):
        file.read(path)


def test_an_unknown_family_is_refused_by_name(path: Path) -> None:
    def rename(content: dict[str, Any]) -> None:
        solution = content["groups"][0]["members"][0]["solution"]
        del solution["id"]
        solution["family"] = "mystery"

    changed(path, rename)
    with pytest.raises(ReadError, match=r"family 'mystery' is unknown to cpu; known: .*packed"):
        file.read(path)


def test_a_member_of_an_older_version_is_left_out_with_a_note(path: Path) -> None:
    def age(content: dict[str, Any]) -> None:
        solution = content["groups"][0]["members"][0]["solution"]
        del solution["id"]
        solution["version"] = 99

    changed(path, age)
    found = file.read(path)
    assert [member.solution for member in found.groups[0].members] == [OTHER]
    assert found.notes == ("members of packed version 99 are left out: this is 1",)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("groups"),
        lambda content: content["groups"][0].pop("members"),
        lambda content: content["groups"][0]["members"][0].update(serves=[7]),
        lambda content: content["groups"][0].update(vendor="abacus"),
        lambda content: content.update(groups=3),
    ],
)
def test_a_file_with_something_missing_is_refused(
    path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    changed(path, change)
    with pytest.raises(ReadError, match="no whole portfolio"):
        file.read(path)


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    path.write_text("[]")
    with pytest.raises(ReadError, match="is no portfolio, which `gemmtune portfolio build` writes"):
        file.read(path)
    with pytest.raises(ReadError, match="cannot read"):
        file.read(tmp_path / "nowhere.json")


def test_the_shipped_portfolio_is_whole() -> None:
    found = file.shipped()
    assert found.notes == (), "a family's version rose: build the portfolio again"
    assert {group.target for group in found.groups} >= {"sm_90"}
    for one in found.groups:
        assert one.members
        assert one.sources
        assert all(member.problems for member in one.members)
