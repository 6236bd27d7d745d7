"""What every format keeps to, read or written."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backends.environment import Environment
from backends.errors import GemmtuneError, ReadError
from backends.export_targets import targets_of
from backends.problem import from_linear
from backends.solution import Solution
from service.formats import (
    FORMATS,
    READERS,
    WRITERS,
    Entry,
    ExportOptions,
    ExportRefused,
    ExportReport,
    ExportRow,
    Found,
    Rejected,
    read_file,
    read_stream,
    reading,
)
from service.formats.core import base
from service.formats.core.export import TargetRow
from service.formats.page import page
from tests.service.formats import contract_inputs
from tests.service.formats.made import (
    ATTRIBUTES,
    BASELINE,
    CPU,
    CUBLASLT,
    H200,
    HIPBLASLT,
    LINEAR,
    MI300X,
    ROCBLAS,
    on_mi300x,
    outcomes,
    row,
    written,
)
from tests.service.formats.mutate import WrongAnswer, fuzz

INPUTS = contract_inputs.written()
#: Written for one kind of program, which gemmtune has no reader for; their suites read them back.
WRITE_ONLY = tuple(name for name in WRITERS if name not in READERS)
STREAMED = tuple(name for name, one in INPUTS.items() if one.streamed)
GOOD = {name: fmt.example.encode().rstrip(b"\n") for name, fmt in READERS.items()}


def test_the_registries() -> None:
    assert FORMATS is READERS
    lacking = set(WRITERS) ^ set(INPUTS)
    assert not lacking, f"tests/service/formats/TOOL/contract.py must have the input of {sorted(lacking)}"
    for name, reader in READERS.items():
        assert reader.name == name
        assert reader.description.isprintable()
    for name, writer in WRITERS.items():
        assert writer.name == name
        assert writer.description.isprintable()


# ---- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
def test_every_format_reads_and_detects_its_own_example(name: str) -> None:
    fmt = READERS[name]
    assert [other for other, f in READERS.items() if f.detect(GOOD[name])] == [name]
    found = outcomes(fmt, fmt.example)
    assert any(isinstance(part, Entry) for part in found)
    assert not any(isinstance(part, Rejected) for part in found)
    imported = read_stream(io.BytesIO(fmt.example.encode()), "example")
    assert imported.format == name
    assert imported.problems
    assert imported.rejected == []


#: Every line of these is bad for every format, also where a document's first line is meant.
BAD_LINES = [
    b"GemmTunableOp_Half_TN,tn_1_2",
    b"{'m': 1}",
    b'{"m":1,"n":2}',
    b"\xff\xfe",
    b"GemmTunableOp_Half_TN,tn_1_2_3\0",
    b"x" * (base.MAX_LINE + 1),
    b'{"m":1,"n":2,"k":99999999999999999999999999,"dtype":"fp32"}',
    b'{"m":NaN,"n":2,"k":3,"dtype":"fp32"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize(
    "name", ["tunableop", "tunableop-untuned", "cublaslt-log", "journal", "jsonl", "csv"]
)
def test_every_bad_line_is_reported_by_number_with_a_reason(name: str) -> None:
    good = GOOD[name].split(b"\n")
    head, line = good[:-1], good[-1]
    if name == "tunableop":
        line = line.replace(b"nn_1024_", b"nn_%d_")
    lines, bad = [*head], []
    for number, wrong in enumerate(BAD_LINES):
        lines.append(line % (1000 + number) if b"%d" in line else line)
        lines.append(wrong)
        bad.append(len(lines))
    found = outcomes(READERS[name], b"\r\n".join(lines) + b"\r\n")
    rejected = [part for part in found if isinstance(part, Rejected)]
    assert [part.line for part in rejected] == bad
    for part in rejected:
        assert part.reason
        assert part.reason.isprintable()
        assert len(part.reason) <= base.MAX_REASON
        assert part.text.isprintable()
        assert len(part.text) <= base.MAX_TEXT
    entries = [part for part in found if isinstance(part, Entry)]
    assert len(entries) == (1 if name == "journal" else len(BAD_LINES))


@pytest.mark.parametrize("name", READERS)
def test_no_mistake_in_a_file_makes_a_reader_fail_or_invent_a_problem(name: str) -> None:
    seen = fuzz(name, 1000)
    assert sum(seen.values()) == 1000
    assert seen["rejected"] + seen["unreadable"] > 300, "mistakes are seen"
    assert seen["accepted"] > 3, "and not everything is one"


def test_an_invented_problem_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def inventing(_: object, lines: object) -> Iterator[Found]:
        yield Entry(1, from_linear(1, 2, 3), "")

    monkeypatch.setattr(type(READERS["csv"]), "read", inventing)
    with pytest.raises(WrongAnswer, match="not all among the file's numbers"):
        fuzz("csv", 1)


@pytest.mark.parametrize("name", READERS)
def test_files_that_are_none_of_ours(name: str) -> None:
    for raw, message in (
        (b"", "is empty"),
        (gzip.compress(GOOD[name]), "compressed with gzip; decompress it first"),
    ):
        with pytest.raises(ReadError, match=message):
            read_stream(io.BytesIO(raw), "upload", name)
    assert not READERS[name].detect(b"")
    assert not READERS[name].detect(b"\0" * 1000)
    assert not READERS[name].detect(b"\x1b[31m")
    assert not READERS[name].detect(GOOD[name].decode().encode("utf-16"))


class _Endless:
    """A stream of one line that never ends, for 100 MB."""

    def __init__(self, start: bytes) -> None:
        self._start, self._left = start, 100_000_000

    def read(self, size: int, /) -> bytes:
        if self._start:
            out, self._start = self._start[:size], self._start[size:]
            return out
        size = min(size, self._left)
        self._left -= size
        return b"7" * size


@pytest.mark.parametrize("name", READERS)
def test_100_mb_in_one_line_take_bounded_memory(name: str) -> None:
    start = b"m,n,k,dtype" if name == "csv" else b'[{"m":' if name == "json" else b'{"m":'
    tracemalloc.start()
    try:
        if name in ("json", "csv"):  # the one line is the document, or its header
            with pytest.raises(ReadError, match="longer than"):
                read_stream(_Endless(start), "upload", name)
        else:
            imported = read_stream(_Endless(start), "upload", name)
            assert "longer than" in imported.rejected[0].reason
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A document may be on one line, so the limit of its lines is the document's.
    assert peak < (200_000_000 if name == "json" else 8_000_000)


def test_rejected_lines_beyond_a_limit_are_counted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_REJECTED", 10)
    imported = read_stream(io.BytesIO(b"bad\n" * 25), "upload", "tunableop-untuned")
    assert (len(imported.rejected), imported.rejected_more, imported.lines) == (10, 15, 25)


def test_a_stream_is_read_as_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(GOOD["jsonl"])
    imported = read_file(path)
    assert imported == read_stream(io.BytesIO(GOOD["jsonl"]), "upload")
    with pytest.raises(ReadError, match="unknown format 'nope'; known: tunableop, tunableop-untuned"):
        read_stream(io.BytesIO(b"x"), "upload", "nope")
    with pytest.raises(ReadError, match=r"the format of up\\x1bload is not recognised"):
        read_stream(io.BytesIO(b"x"), "up\x1bload")

    class Failing:
        def read(self, _: int, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(ReadError, match="upload cannot be read: Input/output error"):
        read_stream(Failing(), "upload")


#: Files of the formats; the others are programs.
EXAMPLES = sorted(
    one
    for one in (Path(__file__).parents[3] / "docs" / "examples").iterdir()
    if one.is_file() and one.suffix != ".py"
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_the_documents_examples_are_read(example: Path) -> None:
    imported = read_file(example)
    assert imported.problems
    assert imported.rejected == []


# ---- writing -------------------------------------------------------------------------------------


READ_BACK = [name for name in WRITERS if name not in WRITE_ONLY]


def rows_of(name: str, count: int) -> list[ExportRow]:
    """Rows that the format can write."""
    one = INPUTS[name]
    environment, winner, problems = one.environment, one.winner, one.problems
    return [row(p, environment=environment, solution=winner) for p in problems(count)]


@pytest.mark.parametrize("name", READ_BACK)
def test_what_is_written_is_read_back(name: str) -> None:
    environment, target = INPUTS[name].environment, INPUTS[name].target
    made = rows_of(name, 600)
    text, report = written(name, made, target, environments=(environment,))
    assert report.to_dict() == {"written": len(made), "omitted": {}}
    assert text.endswith("\n")
    assert "\r" not in text
    imported = read_stream(io.BytesIO(text.encode()), "export")
    assert imported.format == name
    assert imported.rejected == []
    assert [item.problem for item in imported.problems] == [item.problem for item in made]
    # An AITER table does not say of which build its indices are.
    solutions = [replace(r.solution, build=None) if name == "aiter" else r.solution for r in made]
    assert [c.claim.solution for c in imported.claims] == solutions
    told = [c.claim.seconds for c in imported.claims]
    if name != "rocblas":  # whose file has no room for a time
        assert told == pytest.approx([item.seconds for item in made], rel=1e-4)


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_has_an_example_and_says_what_it_needs(name: str) -> None:
    writer = WRITERS[name]
    assert writer.example
    assert writer.suffix.startswith(".")
    assert "/" in writer.media_type
    assert (writer.targets == ()) == (INPUTS[name].target is None)
    assert set(writer.key_formats) <= set(READERS)


@pytest.mark.parametrize("name", STREAMED)
def test_it_streams_and_asks_for_one_row_at_a_time(name: str) -> None:
    taken = 0

    def endless() -> Iterator[ExportRow]:
        nonlocal taken
        while True:
            taken += 1
            yield row(from_linear(taken, 64, 32, "bf16"))

    report = ExportReport()
    options = ExportOptions(H200.device_class, INPUTS[name].target, environments=(H200,))
    pieces = WRITERS[name].write(endless(), options, report)
    assert taken == 0
    for _ in range(5):
        assert len(next(pieces)) < 2_000_000
    assert 0 < taken < 5_000
    assert report.written <= taken


@pytest.mark.parametrize("name", READ_BACK)
def test_no_rows_make_a_whole_file(name: str) -> None:
    environment, target = INPUTS[name].environment, INPUTS[name].target
    text, report = written(name, [], target, device=environment.device_class, environments=(environment,))
    assert report.to_dict() == {"written": 0, "omitted": {}}
    imported = read_stream(io.BytesIO(text.encode()), "export", name)
    assert (imported.problems, imported.claims, imported.rejected) == ([], [], [])


@pytest.mark.parametrize("name", ["json", "jsonl", "csv"])
def test_our_own_formats_take_no_target(name: str) -> None:
    for wrong in ({"target": "torch-2.15+cuda"}, {"validators": {"PT_VERSION": "2.15.0"}}):
        with pytest.raises(ExportRefused, match="own format for any stack: leave out target and validators"):
            WRITERS[name].write([], replace(ExportOptions(H200.device_class), **wrong), ExportReport())
    text, report = written(name, [row(judgement="TIE"), row(seconds=float("nan"))])
    assert report.to_dict() == {
        "written": 1,
        "omitted": {"one of its figures is not finite": {"count": 1, "examples": [LINEAR.slug]}},
    }
    assert "NaN" not in text


@pytest.mark.parametrize("environment", [H200, MI300X, CPU])
def test_options_are_checked(environment: Environment) -> None:
    device = environment.device_class
    with pytest.raises(ExportRefused, match="ties 'yes' is unknown; known: omit, default"):
        ExportOptions(device, ties="yes")
    with pytest.raises(ExportRefused, match="workspace_limit must be bytes from 0, not -1"):
        ExportOptions(device, workspace_limit=-1)
    assert issubclass(ExportRefused, GemmtuneError)


def test_a_report_keeps_a_few_examples_and_reasons() -> None:
    report = ExportReport()
    for number in range(1, 301):
        report.omit(f"reason {number % 150}", from_linear(number, 8, 8, "bf16"))
    assert len(report.omitted) == 101
    assert sum(report.omitted.values()) == 300
    assert report.omitted["other reasons"] == 100
    assert all(len(slugs) <= 3 for slugs in report.examples.values())


def test_the_page_of_formats_is_the_registrys() -> None:
    committed = Path(__file__).parents[3] / "docs" / "formats.md"
    assert committed.read_text() == page(), "python -m service.formats.page docs/formats.md"
    for name in (*READERS, *WRITERS):
        assert f"\n## {name}\n" in page()


# ---- the best that a target can name -------------------------------------------------------------


OURS = Solution("tile-wgmma", 4, {"tile_m": 64})
OVERRIDES = [name for name, one in INPUTS.items() if not (one.every_family or one.of_candidates)]


def target_row(solution: Solution, judgement: str = "WIN", **changed: object) -> TargetRow:
    """A target's best candidate, 1.25 times as fast as the baseline."""
    made = TargetRow(
        solution, judgement, 2e-05, 2.5e-05, (1.2, 1.25, 1.3), 10, "0123456789abcdef", "2026-10-04T12:00:00Z",
        proven=True,
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


def judged_rows(name: str, count: int, judgement: str = "WIN") -> list[ExportRow]:
    """Rows that a kernel of ours won, twice as fast as the baseline, with the best that the format can name
    judged too."""
    one = INPUTS[name]
    winner = one.winner
    targets = {
        target.name: target_row(winner, judgement)
        for target in targets_of(one.environment.vendor)
        if target.names(winner)
    }
    targets["bundle"] = target_row(OURS, speedup=(1.9, 2.0, 2.1))
    return [
        row(p, environment=one.environment, solution=OURS, targets=targets, targets_judged=True)
        for p in one.problems(count)
    ]


@pytest.mark.parametrize("name", OVERRIDES)
def test_the_best_that_a_target_can_name_is_written_where_the_winner_has_no_name(name: str) -> None:
    one = INPUTS[name]
    winner = one.winner
    as_winner = [
        row(p, environment=one.environment, solution=winner, seconds=2e-05, speedup=(1.2, 1.25, 1.3))
        for p in one.problems(20)
    ]
    environments = (one.environment,)
    expected, _ = written(name, as_winner, one.target, environments=environments)
    text, report = written(name, judged_rows(name, 20), one.target, environments=environments)
    assert text == expected
    assert report.to_dict() == {"written": 20, "omitted": {}}
    assert (report.tune_again, report.one_seed) == (0, 0)


@pytest.mark.parametrize("name", OVERRIDES)
@pytest.mark.parametrize("judgement", ["TIE", "LOSS"])
def test_what_a_target_can_name_is_left_out_if_it_won_nothing(name: str, judgement: str) -> None:
    one = INPUTS[name]
    rows = judged_rows(name, 3, judgement)
    _, report = written(name, rows, one.target, environments=(one.environment,))
    ((reason, count),) = report.omitted.items()
    assert (report.written, count, report.tune_again) == (0, 3, 0)
    assert reason.startswith("its winner has no name there; of the best that has one: ")
    assert judgement in reason


@pytest.mark.parametrize("name", OVERRIDES)
def test_rows_of_sessions_that_judged_no_targets_are_to_be_tuned_again(name: str) -> None:
    one = INPUTS[name]
    rows = [replace(made, targets={}, targets_judged=False) for made in judged_rows(name, 3)]
    _, report = written(name, rows, one.target, environments=(one.environment,))
    assert (report.written, report.tune_again) == (0, 3)
    ((reason, count),) = report.omitted.items()
    assert count == 3
    assert "its winner" not in reason, "as before there were targets"
    known = [replace(made, targets={}) for made in judged_rows(name, 3)]
    _, report = written(name, known, one.target, environments=(one.environment,))
    assert (report.written, report.tune_again) == (0, 0), "no candidate of theirs was in the final"


def test_of_two_targets_the_faster_one_is_written() -> None:
    targets = {
        "rocblas": target_row(ROCBLAS, speedup=(1.3, 1.4, 1.5), seconds=1.8e-05),
        "hipblaslt": target_row(HIPBLASLT),
    }
    best = on_mi300x(solution=OURS, targets=targets)
    validators = {"PT_VERSION": "2.15.0"}
    text, _ = written("tunableop", [best], "torch-2.15+rocm", validators=validators)
    assert "Gemm_Rocblas_-621294427,0.018" in text
    swapped = {
        "rocblas": target_row(ROCBLAS),
        "hipblaslt": target_row(HIPBLASLT, speedup=(1.3, 1.4, 1.5), seconds=1.8e-05),
    }
    text, _ = written("tunableop", [replace(best, targets=swapped)], "torch-2.15+rocm", validators=validators)
    assert "Gemm_Hipblaslt_477479,0.018" in text
    lost = {**targets, "rocblas": target_row(ROCBLAS, "TIE", speedup=(0.9, 1.5, 1.6))}
    text, _ = written("tunableop", [replace(best, targets=lost)], "torch-2.15+rocm", validators=validators)
    assert "Gemm_Hipblaslt_477479,0.02" in text


def test_a_winner_beyond_the_targets_workspace_gives_way_to_one_within_it() -> None:
    large = replace(CUBLASLT, workspace_bytes=2**21)
    small = Solution("cublaslt", 1, {**ATTRIBUTES, "algo_id": 67}, "130200", 2**19)
    targets = {"cublaslt": target_row(large, speedup=(1.9, 2.0, 2.1)), "cublaslt-1mib": target_row(small)}
    asked = [row(solution=large, targets=targets)]
    text, report = written("tunableop", asked, "torch-2.15+cuda")
    assert "Gemm_Cublaslt_id_67_" in text
    assert report.written == 1
    text, _ = written("tunableop", asked, "torch-2.15+cuda", workspace_limit=2**25)
    assert "Gemm_Cublaslt_id_66_" in text


def test_the_gain_of_a_file() -> None:
    report = ExportReport()
    targets = {"cublaslt": target_row(CUBLASLT), "bundle": target_row(OURS, speedup=(1.9, 2.0, 2.1))}
    rows = [
        row(solution=OURS, speedup=(1.9, 2.0, 2.1), targets=targets),  # 1.25 without a bundle
        row(speedup=(1.4, 1.5, 1.6), targets={"cublaslt": target_row(CUBLASLT)}),
        row(solution=OURS, speedup=(2.9, 3.0, 3.1)),  # of an older session: 1 without a bundle
        row(judgement="TIE", solution=BASELINE, speedup=(1.0, 1.0, 1.0), targets={}),
    ]
    rows = [replace(one, problem=from_linear(m, 512, 512, "bf16")) for m, one in enumerate(rows, 1)]
    assert report.gain() is None
    for one in rows:
        report.measured(one)
    options = ExportOptions(H200.device_class, "torch-2.15+cuda", environments=(H200,))
    "".join(WRITERS["tunableop"].write(rows, options, report))
    assert report.figures() == {
        **report.to_dict(),
        "gain": {
            "rows": 2,
            "geometric_mean": pytest.approx((1.25 * 1.5) ** 0.5),
            "problems": 4,
            "all_problems": pytest.approx((1.25 * 1.5) ** 0.25),
            "with_bundle": pytest.approx((2.0 * 1.5 * 3.0) ** 0.25),
        },
        "tune_again": 1,
        "one_seed": 0,
        "rests_on": {},
        "stale": {},
    }


def test_rows_of_imported_files_and_of_one_seed_are_told_apart() -> None:
    imported = row(judgement="", provenance="imported", speedup=None)
    once = row(from_linear(1, 64, 64, "bf16"), solution=OURS,
               targets={"cublaslt": target_row(CUBLASLT, proven=False)})  # fmt: skip
    _, report = written("tunableop", [imported, once], "torch-2.15+cuda")
    assert (report.written, report.one_seed) == (2, 1)
    gain = report.gain()
    assert gain is not None
    assert gain["rows"] == 1


def test_targets_are_written_and_read_back_as_json() -> None:
    (one,) = judged_rows("tunableop", 1)
    for name in ("json", "jsonl"):
        text, _ = written(
            name, [one, replace(one, problem=from_linear(1, 2, 3, "bf16"), targets={}, targets_judged=False)]
        )
        imported = read_stream(io.BytesIO(text.encode()), "export")
        first, second = (claim.claim.row for claim in imported.claims)
        assert first == one
        assert second is not None
        assert (second.targets, second.targets_judged) == ({}, False)
        assert text.count('"targets"') == 1
        for wrong in ('"proven":1', '"proven":true,"rounds":"x"'):
            broken = read_stream(io.BytesIO(text.replace('"proven":true', wrong).encode()), "export")
            assert len(broken.rejected) == 1
