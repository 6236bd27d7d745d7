"""Candidates of the fixed shapes are what they were, in their order: stored results name them."""

from __future__ import annotations

import json

import pytest

from tests.golden import access, candidates

RECORDED = json.loads(candidates.RECORD.read_text())
#: Every how many-th problem the quick test lists: of decode, prefill and odd sizes alike.
_STEP = 25


def _same(arch: str, step: int) -> None:
    with candidates.own_order():
        for name, problem in candidates.problems()[::step]:
            assert candidates.listed(arch, problem) == RECORDED[arch][name], (arch, name)


@pytest.mark.parametrize("arch", candidates.ARCHS)
def test_a_sample_of_the_lists_is_as_recorded(arch: str) -> None:
    _same(arch, _STEP)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", candidates.ARCHS)
def test_every_list_is_as_recorded(arch: str) -> None:
    _same(arch, 1)


def test_the_record_is_of_the_128_fixed_shapes_on_every_architecture() -> None:
    names = [name for name, _ in candidates.problems()]
    assert len(names) == 128
    assert {arch: list(rows) for arch, rows in RECORDED.items()} == dict.fromkeys(candidates.ARCHS, names)


def test_an_order_that_changes_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    name, problem = candidates.problems()[0]
    found = access.families_of("cpu")["stream"]
    listed = list(found.solutions(problem, access.CPU))
    monkeypatch.setattr(type(found), "solutions", lambda *_: [listed[1], listed[0], *listed[2:]])
    now, then = candidates.listed("cpu", problem)["stream"], RECORDED["cpu"][name]["stream"]
    assert now[0] == then[0]
    assert now[1] != then[1]
