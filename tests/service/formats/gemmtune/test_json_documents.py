"""Our own JSON: problems as people write them, and exports that come back whole."""

from __future__ import annotations

import io
import json
import time
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import ReadError
from backends.problem import GemmProblem, from_linear
from backends.wire import problem_to_wire
from service.formats import READERS, Entry, ExportRow, Found, Header, Imported, Rejected, read_stream
from service.formats.core.json_text import MAX_ITEM
from service.formats.core.row_text import problem_fields, problem_text, problem_wire
from tests.backends.weight_samples import every_kind
from tests.service.formats.made import (
    CPU,
    CUBLASLT,
    H200,
    LINEAR,
    outcomes,
    problems,
    row,
    rows,
    sorted_out,
    written,
)

WIRE = {"m": 16, "n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True}
PROBLEM = from_linear(16, 4096, 4096, "bf16")


def read(text: str | bytes, name: str | None = None) -> Imported:
    raw = text.encode() if isinstance(text, str) else text
    return read_stream(io.BytesIO(raw), "upload", name)


def same(a: ExportRow, b: ExportRow) -> bool:
    """Equal in every field, also those that equality of solutions leaves out."""
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(ExportRow)]
    for x, y in ((a.solution, b.solution), (a.baseline, b.baseline)):
        pairs.append((x and x.to_dict(), y and y.to_dict()))
    return all(x == y and type(x) is type(y) for x, y in pairs)


@pytest.mark.parametrize("name", ["json", "jsonl"])
def test_a_baseline_that_is_only_a_name_comes_back_as_that(name: str) -> None:
    known = row(baseline=None, baseline_name="numpy", judgement="", provenance="imported")
    text, report = written(name, [known], ties="default")
    assert (report.written, report.omitted) == (1, {})
    (claim,) = read(text, name).claims
    assert claim.claim.row is not None
    assert same(claim.claim.row, known)
    assert '"baseline":null,' in text
    (lost,) = read(text.replace('"baseline":null,', ""), name).rejected
    assert "baseline" in lost.reason


# ---- problems ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        (json.dumps(WIRE), "jsonl", [(1, 1)]),
        (json.dumps({**WIRE, "count": 7}) + "\n\n" + json.dumps(WIRE), "jsonl", [(1, 7), (3, 1)]),
        (json.dumps(WIRE, indent=2), "json", [(7, 1)]),
        (json.dumps([WIRE, {**WIRE, "count": 2}]), "json", [(1, 1), (1, 2)]),
        (json.dumps([WIRE, WIRE], indent=1), "json", [(8, 1), (15, 1)]),
        (json.dumps({"problems": [WIRE]}), "json", [(1, 1)]),
        ("\ufeff[\r\n" + json.dumps(WIRE) + "\r\n]", "json", [(2, 1)]),
        ("[]", "json", []),
        ('{"problems":[]}', "json", []),
    ],
)
def test_every_form_of_a_list_of_problems(text: str, name: str, found: list[tuple[int, int]]) -> None:
    imported = read(text)
    assert imported.format == name
    assert imported.rejected == []
    entries, _, _ = sorted_out(outcomes(READERS[name], text))
    assert [(entry.line, entry.count) for entry in entries] == found
    assert {entry.problem for entry in entries} <= {PROBLEM}
    assert [entry.key for entry in entries] == [""] * len(found)
    assert [item.keys for item in imported.problems] == [()] * len(imported.problems)


def test_what_the_problems_command_prints() -> None:
    printed = {
        "format": "tunableop-untuned",
        "problems": [{**problem_to_wire(PROBLEM), "id": PROBLEM.id, "count": 32}],
        "rejected": [{"line": 2, "reason": "no operator signature"}],
    }
    imported = read(json.dumps(printed, indent=1))
    assert (imported.format, dict(imported.header)) == ("json", {"format": "tunableop-untuned"})
    assert [(item.problem, item.count) for item in imported.problems] == [(PROBLEM, 32)]
    wrong = {**printed["problems"][0], "id": "tn_1x1x1_bf16-000000000000"}  # type: ignore[dict-item]
    imported = read(json.dumps([wrong]))
    assert "is not the problem's (tn_4096x16x4096_bf16-" in imported.rejected[0].reason


def test_the_named_document_format_reads_lines_too() -> None:
    text = json.dumps(WIRE) + "\n" + json.dumps(WIRE)
    assert read(text, "json").problems == read(text, "jsonl").problems


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("5", "an item must be an object such as"),
        ("null", "an item must be an object"),
        ("[]", "an item must be an object"),
        ('{"m":1,"n":2}', "k is missing"),
        ('{"m":1,"n":2,"k":3,"kk":4}', "unknown field 'kk'"),
        ('{"m":1,"n":2,"k":3,"count":0}', "count must be an integer from 1, not 0"),
        ('{"m":1,"n":2,"k":3,"count":true}', "count must be an integer from 1, not True"),
        ('{"m":1,"n":2,"k":3,"count":1.5}', "count must be an integer from 1"),
        ('{"m":1,"m":1,"n":2,"k":3}', "the name 'm' stands twice in one object"),
        ('{"m":NaN,"n":2,"k":3}', "NaN is no JSON number"),
        ('{"m":-Infinity,"n":2,"k":3}', "-Infinity is no JSON number"),
        ('{"m":18446744073709551616,"n":2,"k":3}', "does not fit 64 bits"),
        ('{"m":' + "9" * 5000 + ',"n":2,"k":3}', "does not fit 64 bits"),
        ('{"m":1,"n":2,"k":3,"alpha":1e999}', "is beyond every double"),
        ('{"m":1,"n":2,"k":3,"alpha":"\\ud800"}', "alpha must be a finite number"),
        ('{"m":1,"n":2,"k":3,"strides":' + "[" * 500 + "]" * 500 + "}", ""),
    ],
)
def test_bad_items_have_a_reason_and_the_next_is_read(item: str, why: str) -> None:
    good = json.dumps(WIRE)
    imported = read(f"{good}\n{item}\n{good}", "jsonl")
    assert [r.line for r in imported.rejected] == [2]
    assert why in imported.rejected[0].reason
    assert [p.count for p in imported.problems] == [2]
    imported = read(f"[{good},\n{item}\n,\n{good}]")
    assert [r.line for r in imported.rejected] == [2]
    assert why in imported.rejected[0].reason
    assert imported.rejected[0].reason.isprintable()
    assert [p.count for p in imported.problems] == [2]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('[\n{"m":1,"n":1,"k":1},\n{"m":1,', 3, "the document is cut short; nothing after it was read"),
        ('[\n{"m":1,"n":1,"k":1}', 3, "expected , or ], but the document ends"),
        ('[\n{"m":1,"n":1,"k":1}\n{"m":1}]', 3, "expected , or ], but found '{'"),
        ('[\n{"m":1,"n":1,"k":1},\n]', 3, "no JSON"),
        ('[{"m":1,"n":1,"k":1}]\n5', 2, "something follows the end of the document"),
        ('[\n{"m":1,"n":1,"k":1},\n{m:1}\n]', 3, "no JSON: Expecting property name"),
        ('[{"m":1,"n":1,"k":1},' + "[" * 100_000, 1, "nested too deeply"),
        ('[{"m":1,"n":1,"k":1},\n"\0"]', 2, "NUL byte"),
        ('{"problems":[{"m":1,"n":1,"k":1}],\n"problems":[]}', 2, "the name 'problems' stands twice"),
        ('{"problems":[{"m":1,"n":1,"k":1}],\n"a":1,"a":2}', 2, "the name 'a' stands twice"),
        ('{"problems":[{"m":1,"n":1,"k":1}],\n"a":NaN}', 2, "a: NaN is no JSON number"),
        ('{"problems":[{"m":1,"n":1,"k":1}],\n}', 2, "a comma before the end of an object"),
        ('{"problems":[{"m":1,"n":1,"k":1}],\n5:6}', 2, "expected \", but found '5'"),
        ('{"problems":[{"m":1,"n":1,"k":1}]', 2, "expected , or }, but the document ends"),
    ],
)
def test_a_broken_document_keeps_what_came_before(text: str, line: int, why: str) -> None:
    imported = read(text, "json")
    assert [item.count for item in imported.problems] == [1]
    assert [r.line for r in imported.rejected] == [line]
    assert why in imported.rejected[0].reason


def test_what_else_a_document_holds_is_skipped() -> None:
    results = [{"verdict": "x" * 1000}] * 3000
    imported = read(
        json.dumps({"problems": [WIRE], "environment": {"a": 1}, "results": results, "skipped": []})
    )
    assert imported.rejected == []
    assert [item.problem for item in imported.problems] == [PROBLEM]
    assert "unknown field 'foo'" in read(json.dumps({**WIRE, "foo": []}, indent=1)).rejected[0].reason
    many = {str(number): number for number in range(10_000)}
    assert "over 256 names" in read(json.dumps(many, indent=1)).rejected[0].reason


def test_an_item_that_never_ends_is_not_held() -> None:
    text = '[{"m":1,"n":1,"k":1},\n{"m":[' + "1,\n" * MAX_ITEM
    imported = read(text, "json")
    assert [item.count for item in imported.problems] == [1]
    assert f"over {MAX_ITEM} characters" in imported.rejected[0].reason


def test_a_document_of_any_length_is_read_item_by_item() -> None:
    items = [json.dumps({**WIRE, "m": 1 + number % 100}) for number in range(20_000)]
    imported = read("[\n" + ",\n".join(items) + "\n]")
    assert imported.rejected == []
    assert len(imported.problems) == 100
    assert {item.count for item in imported.problems} == {200}


VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**63, 1.5, -0.0, "", "x", "fp32", "N", [], [1], {}, {"a": 1}, "\ud800", "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_any_value_in_any_field_is_read_or_rejected(value: object) -> None:
    wire = {**WIRE, "batch": 2, "lda": 1, "ldb": 1, "ldc": 1, "ldd": 1, "dtype_a": None, "dtype_b": None}
    names = [
        *wire, "dtype_c", "dtype_d", "compute", "alpha", "beta", "alignment", "fast_accumulation",
        "epilogue", "scaling", "strides", "layout", "count", "id", "problem", "solution", "gemmtune",
    ]  # fmt: skip
    for name in names:
        for odd in ({**WIRE, name: value}, {**WIRE, name: {"a": value, "b": value}}):
            try:
                (found,) = outcomes(READERS["jsonl"], json.dumps(odd))
            except ReadError as error:
                assert name == "gemmtune", error  # noqa: PT017
                continue
            assert isinstance(found, Entry | Rejected)
            if isinstance(found, Rejected):
                assert found.reason.isprintable()
                assert len(found.reason) <= 480


# ---- exports -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), max_size=4), st.sampled_from(["json", "jsonl"]))
def test_an_export_comes_back_equal(made: list[ExportRow], name: str) -> None:
    distinct = list({(r.problem, r.environment.id, r.policy.id): r for r in made}.values())
    text, report = written(name, distinct)
    assert (report.written, report.omitted) == (len(distinct), {})
    imported = read(text)
    assert (imported.format, imported.rejected) == (name, [])
    assert imported.header["gemmtune"] == "export"
    back = [claim.claim.row for claim in imported.claims]
    assert all(b is not None and same(a, b) for a, b in zip(distinct, back, strict=True))
    assert [c.claim.seconds for c in imported.claims] == [r.seconds for r in distinct]


def test_the_shape_of_an_export() -> None:
    text, _ = written("json", [row()])
    whole = json.loads(text)
    assert list(whole) == ["gemmtune", "version", "device", "rows", "report"]
    assert (whole["gemmtune"], whole["version"]) == ("export", 1)
    assert whole["device"] == "cuda:sm_90:NVIDIA-H200:132"
    assert whole["report"] == {"written": 1, "omitted": {}}
    (found,) = whole["rows"]
    assert found["problem"] == LINEAR.to_dict()
    assert found["problem_id"] == LINEAR.id
    assert found["wire"] == problem_to_wire(LINEAR)
    assert found["environment_id"] == H200.id
    assert found["solution"] == row().solution.to_dict()
    assert found["speedup"] == {"low": 1.9, "mid": 2.0, "high": None}
    assert text.count("\n") == 3
    lines = written("jsonl", [row(), row(from_linear(1, 1, 1, "fp32"))])[0].splitlines()
    names = [next(iter(json.loads(line))) for line in lines]
    assert names == ["gemmtune", "problem_id", "problem_id", "report"]


def _changed(**values: Any) -> str:
    found = json.loads(written("json", [row()])[0])["rows"][0]
    for path, value in values.items():
        *outer, last = path.split("__")
        place = found
        for part in outer:
            place = place[part]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"problem_id": "x"}, "problem_id 'x' does not belong to its content"),
        ({"environment_id": "x"}, "environment_id 'x' does not belong"),
        ({"policy_id": "x"}, "policy_id 'x' does not belong"),
        ({"solution__id": "x"}, "stored solution id 'x' does not match"),
        ({"problem__m": 0}, "m must be between 1"),
        ({"problem__m": ...}, "canonical problem lacks m"),
        ({"problem__extra": 1}, "unknown field 'extra' in a canonical problem"),
        ({"environment": ...}, "environment is missing, or no object"),
        ({"environment__units": "132"}, "environment: units and memory_bytes must be integers"),
        ({"environment__units": 0}, "environment: units must be at least 1"),
        ({"environment__vendor": "intel"}, "environment: vendor 'intel' is unknown"),
        ({"environment__arch": 5}, "environment: one of its texts is none"),
        ({"environment__libraries": {"torch": 2}}, "environment: libraries must be an object of texts"),
        ({"environment__libraries": []}, "environment: libraries must be an object of texts"),
        ({"environment__more": 1}, "environment: "),
        ({"policy__mode": "x"}, "policy: mode 'x' is unknown"),
        ({"solution__version": 0}, "solution: version must be an integer from 1"),
        ({"solution__parameters": 5}, "solution: "),
        ({"solution__parameters": {"a": []}}, "solution: parameter a must be"),
        ({"solution__workspace_bytes": 1.5}, "solution: workspace_bytes must be an integer"),
        ({"solution__workspace_bytes": "1"}, "solution: "),
        ({"solution__build": 5, "solution__id": ...}, "solution: build must be a text"),
        ({"solution__family": None, "solution__id": ...}, "solution: "),
        ({"judgement": "DRAW"}, "judgement 'DRAW' is unknown; known: WIN, TIE, LOSS"),
        ({"provenance": "guessed"}, "provenance 'guessed' is unknown; known: measured, imported"),
        ({"seconds": 0}, "seconds must be a number above 0, not 0"),
        ({"seconds": "1"}, "seconds must be a number above 0"),
        ({"speedup": 2.0}, "speedup must be an object with low, mid and high"),
        ({"speedup__mid": None}, "speedup mid is missing"),
        ({"speedup__low": -1}, "speedup low must be a number above 0"),
        ({"rounds": -1}, "rounds must be an integer from 0"),
        ({"count": True}, "count must be an integer from 0"),
        ({"keys": "x"}, "keys must be a list of texts"),
        ({"source": None}, "source must be a text, not None"),
        ({"source": "\ud800"}, "holds half a surrogate pair"),
    ],
)
def test_rows_are_checked(change: dict[str, Any], why: str) -> None:
    (found,) = outcomes(READERS["jsonl"], _changed(**change))
    assert isinstance(found, Rejected), found
    assert why in found.reason


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_any_value_in_any_part_of_a_row_is_read_or_rejected(value: object) -> None:
    whole = json.loads(_changed())
    paths = list(whole)
    for name in ("problem", "environment", "policy", "solution", "baseline", "speedup"):
        paths += [f"{name}__{part}" for part in whole[name]]
    for path in paths:
        (found,) = outcomes(READERS["jsonl"], _changed(**{path: value}))
        assert isinstance(found, Entry | Rejected)


def test_a_row_twice_is_reported_and_the_first_wins() -> None:
    elsewhere = row(environment=CPU)
    text, _ = written("jsonl", [row(), elsewhere, row(seconds=1.0)])
    imported = read(text)
    assert [c.line for c in imported.claims] == [2, 3]
    assert [(r.line, r.reason) for r in imported.rejected] == [
        (4, "line 2 has the same problem, environment and policy, and comes first")
    ]
    assert [(p.problem, p.count) for p in imported.problems] == [(LINEAR, 6)]


@pytest.mark.parametrize("name", ["json", "jsonl"])
def test_another_version_is_refused(name: str) -> None:
    text = written(name, [row()])[0].replace('"version":1,', '"version":2,', 1)
    with pytest.raises(
        ReadError, match="this is 'export', version 2; this gemmtune reads its own 'export', version 1"
    ):
        read(text)
    with pytest.raises(ReadError, match="this is 'diary', version 1"):
        read(text.replace('"export","version":2', '"diary","version":1', 1))


def test_a_file_name_that_is_no_utf8_is_written() -> None:
    text, report = written("jsonl", [row(source="caf\udce9.csv")])
    assert report.written == 1
    assert json.loads(text.splitlines()[1])["source"] == "caf\udce9.csv"
    assert "half a surrogate pair" in read(text).rejected[0].reason


# ---- the fast ways agree with the plain ones -----------------------------------------------------


PREPACKED = every_kind(3, 64, 256, prepacked=True)


@settings(max_examples=250, deadline=None)
@given(problems() | st.sampled_from(PREPACKED))
def test_a_problem_in_plain_values(problem: GemmProblem) -> None:
    assert problem_fields(problem) == problem.to_dict()
    fresh = replace(problem)
    assert problem_text(fresh)[0] == problem.id
    assert json.loads(problem_text(fresh)[1]) == problem.to_dict()
    wire = problem_wire(problem)
    expected = problem_to_wire(problem)
    assert wire == expected
    assert {name: type(value) for name, value in wire.items()} == {n: type(v) for n, v in expected.items()}


@pytest.mark.parametrize("name", ["json", "jsonl"])
def test_rows_of_prepacked_weights_come_back(name: str) -> None:
    known = [row(one) for one in (PREPACKED[0], replace(PREPACKED[0], prepacked=False))]
    text, report = written(name, known)
    assert (report.written, report.omitted) == (2, {})
    found = read(text, name)
    assert [one.problem for one in found.claims] == [one.problem for one in known]
    assert text.count('"prepacked":true') == 2, "in the wire form and in the canonical one"


def test_headers_hold_plain_values_only() -> None:
    found: list[Found] = outcomes(READERS["json"], '{"a":"x","b":1,"c":[1],"d":null,"problems":[]}')
    assert found == [Header({"a": "x", "b": "1"})]


def test_many_names_are_checked_at_once() -> None:
    text = "[{" + ",".join(f'"n{i}":0' for i in range(50_000)) + ',"n49999":1}]'
    begun = time.process_time()
    (found,) = outcomes(READERS["json"], text)
    assert isinstance(found, Rejected)
    assert "'n49999' stands twice" in found.reason
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("name", ["json", "jsonl", "csv"])
def test_rows_that_need_more_workspace_are_left_out(name: str) -> None:
    made = [row(), row(from_linear(1, 8, 8, "bf16"), solution=replace(CUBLASLT, workspace_bytes=64))]
    text, report = written(name, made, workspace_limit=64)
    assert (report.written, report.omitted) == (
        1,
        {"needs more workspace than the 64 bytes that it may use": 1},
    )
    assert [c.problem for c in read_stream(io.BytesIO(text.encode()), "upload", name).claims] == [
        made[1].problem
    ]
