"""The figures within the page of our kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kernel_checks, tables_kernels
from benchmarks.report import RESULTS
from tests.benchmarks.gpus import gpu

OTHERS = "".join(
    f"<!-- figures: {mark} -->\n<!-- end -->\n" for mark in tables_kernels.BLOCKS if mark != "ladder"
)
PAGE = f"before\n<!-- figures: ladder -->\nold\n<!-- end -->\nafter\n{OTHERS}"


def row(family: str, size: int, **figures: Any) -> dict[str, Any]:
    return {"family": family, "m": size, "n": size, "k": size, "baseline": "torch 1", **figures}


def _write(folder: Path, *rows: dict[str, Any]) -> None:
    document = {
        "rows": rows, "environment": gpu(0).environment.to_dict(), "command": "the command",
        "measured_at": "2026-01-02T03:04:05+00:00", "commit": "0123456789abcdef",
    }  # fmt: skip
    (folder / "cuda-own-ladder.json").write_text(json.dumps(document))


def test_the_kept_page_is_what_the_results_give() -> None:
    kept = tables_kernels.DOCUMENT.read_text()
    assert tables_kernels.filled(kept, RESULTS) == kept


def test_every_family_of_the_ladder_has_a_section() -> None:
    kept = tables_kernels.DOCUMENT.read_text()
    for family in tables_kernels.WORKLOG:
        assert f"\n### {family}\n" in kept


def test_steps_in_the_ladders_order_beside_the_worklogs(tmp_path: Path) -> None:
    _write(
        tmp_path,
        row("cublaslt", 64, gflops=52000.4, ratio=1.04), row("coalesced", 64, gflops=5000.0, ratio=0.1),
        row("naive", 64, gflops=900.0, ratio=0.02), row("naive", 32, gflops=800.0, ratio=0.03),
        row("naive", 16, gflops=700.0, ratio=0.03), row("gemv", 16, gflops=None, ratio=None),
    )  # fmt: skip
    page = tables_kernels.filled(PAGE, tmp_path)
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert table[0].startswith("| step | 32 x 32 x 32: GFLOP/s (over the framework) | 64 x 64 x 64: ")
    assert table[2:] == [
        "| `naive` | 800 (0.03x) | 900 (0.02x) | 300 |",
        "| `coalesced` |  | 5,000 (0.10x) | 2,000 |",
        "| `cublaslt` |  | 52,000 (1.04x) |  |",
    ]
    assert page.startswith("before\n<!-- figures: ladder -->\n|")
    assert "old" not in page
    assert "commit 0123456789ab" in page
    assert page.endswith(f"<!-- end -->\nafter\n{OTHERS}")
    assert tables_kernels.filled(page, tmp_path) == page


def test_without_the_result_the_block_is_empty_and_without_marks_it_is_told(tmp_path: Path) -> None:
    assert tables_kernels.filled(PAGE, tmp_path) == PAGE.replace("old\n", "")
    with pytest.raises(ValueError, match="no block of the figures 'ladder'"):
        tables_kernels.filled("nothing", tmp_path)


def test_a_products_families_over_the_best_of_the_libraries(tmp_path: Path) -> None:
    product = {"problem": "one", "m": 512, "n": 8, "k": 256, "batch": 1, "baseline": "torch 1"}
    others = {"gflops": 2000.0, "gbytes": 1500.4}
    rows = [
        {**product, **others, "family": "cublaslt", "best_us": 4.0, "ratio": 1.5, "share": 0.5},
        {**product, **others, "family": "gemv", "best_us": 2.0, "ratio": 3.0},
        {**product, "family": "naive", "best_us": None},
        {**product, **others, "problem": "two", "batch": 7, "family": "gemv", "best_us": 1.0, "ratio": 1.0},
    ]
    _write(tmp_path, *rows)
    (tmp_path / "cuda-own-ladder.json").rename(tmp_path / "cuda-own-squares.json")
    page = tables_kernels.filled(PAGE, tmp_path)
    assert [line for line in page.splitlines() if line.startswith("|")][2:] == [
        "| 8 x 512 x 256 | `gemv` | 2.00 | 2.0 | 1,500 | 3.00x | 2.00x |  |",
        "| 8 x 512 x 256 | `cublaslt` | 4.00 | 2.0 | 1,500 | 1.50x | 1.00x | 50% |",
        "| 7 of 8 x 512 x 256 | `gemv` | 1.00 | 2.0 | 1,500 | 1.00x |  |  |",
    ]
    assert tables_kernels.filled(page, tmp_path) == page


def test_what_the_sanitizer_said_of_each_family(tmp_path: Path) -> None:
    def said(memcheck: str, racecheck: str, launched: int) -> dict[str, Any]:
        verdicts = {"memcheck": memcheck, "racecheck": racecheck}
        return {tool: {"verdict": verdict, "launched": launched} for tool, verdict in verdicts.items()}

    rows = [
        {"family": "gemv", "tools": said("clean", "clean", 14)},
        {"family": "naive", "tools": said("timed out", "2 errors, 1 warnings", 5)},
    ]
    rows[1]["tools"]["memcheck"]["launched"] = 3  # type: ignore[index]
    _write(tmp_path, *rows)
    document = json.loads((tmp_path / "cuda-own-ladder.json").read_text())
    document |= {"version": "2025.3", "tools": ["memcheck", "racecheck"]}
    (tmp_path / "cuda-own-ladder.json").unlink()
    (tmp_path / "cuda-sanitizer.json").write_text(json.dumps(document))
    page = tables_kernels.filled(PAGE, tmp_path)
    assert [line for line in page.splitlines() if line.startswith("|")] == [
        "| family | pairs | memcheck | racecheck |",
        "|---|---|---|---|",
        "| `gemv` | 14 | 0 | 0 |",
        "| `naive` | 3 | timed out | 2 errors, 1 warnings |",
    ]
    assert "compute-sanitizer 2025.3" in page


def test_what_amds_compilers_report_of_each_family(tmp_path: Path) -> None:
    compiled = {
        "solution": "one", "status": "compiled", "threads": 256, "registers": 212, "shared_bytes": 40960,
        "accumulation_registers": 64, "scalar_registers": 102, "scratch_bytes": 0, "spill_bytes": 0,
        "waves_per_simd": 1.5, "occupancy_limit": "registers", "matrix_instructions": {"v_a": 64, "v_b": 2},
    }  # fmt: skip
    sample = {"compiled": 6, "failed": 0, "spilling": 0, "worst_spill_bytes": 0}
    rows: list[dict[str, Any]] = [
        {"arch": "gfx942", "family": "tile-mfma", "default": compiled, **sample},
        {"arch": "gfx942", "family": "naive", "default": {**compiled, "matrix_instructions": {}}, **sample},
        {
            "arch": "gfx950", "family": "tile-mfma", "default": {**compiled, "matrix_instructions": None},
            **sample, "spilling": 2, "worst_spill_bytes": 96,
        },
        {
            "arch": "gfx950", "family": "naive", "default": {**compiled, "status": "failed"},
            **sample, "compiled": 0, "failed": 1,
        },
    ]  # fmt: skip
    _write(tmp_path, *rows)
    document = json.loads((tmp_path / "cuda-own-ladder.json").read_text())
    of = {"clang": "clang 19", "triton": "3.6.0"}
    document |= {
        "compilers": {"gfx942": of, "gfx950": {**of, "clang": "clang 22"}}, "kernels": 24, "seconds": 12.3,
        "processors": 2,
    }  # fmt: skip
    (tmp_path / "cuda-own-ladder.json").unlink()
    (tmp_path / "kernels-check-amd.json").write_text(json.dumps(document))
    page = tables_kernels.filled(PAGE, tmp_path)
    figures = "212 | 64 | 102 | 40,960 | 0 | 1.5 (registers)"
    assert [line for line in page.splitlines() if line.startswith("| `")] == [
        f"| `tile-mfma` | gfx942 | {figures} | 64 `v_a`, 2 `v_b` | 6 of 6 | 0 |",
        f"| `tile-mfma` | gfx950 | {figures} | not counted | 6 of 6 | 2 (96) |",
        f"| `naive` | gfx942 | {figures} | none | 6 of 6 | 0 |",
        "| `naive` | gfx950 | failed |  |  |  |  |  |  | 0 of 1 | 0 |",
    ]
    assert "gfx942: clang 19, Triton 3.6.0; gfx950: clang 22, Triton 3.6.0" in page
    assert "24 kernels were compiled in 12 s on 2 processors" in page


def test_a_rows_default_is_the_first_sample_of_its_family() -> None:
    sample = {**dict.fromkeys(kernel_checks.KEPT), "log": "long", "arch": "gfx942", "family": "naive"}
    checked = {
        "samples": [{**sample, "solution": "first"}, {**sample, "solution": "second"},
                    {**sample, "arch": "gfx950", "solution": "third"}],
        "families": [{"arch": arch, "family": "naive", "compiled": 1} for arch in ("gfx942", "gfx950")],
    }  # fmt: skip
    first, second = kernel_checks.rows_of(checked)
    assert (first["default"]["solution"], second["default"]["solution"]) == ("first", "third")
    assert set(first["default"]) == set(kernel_checks.KEPT)
    assert first["compiled"] == 1
