"""gemmtune kernels, kernels check and kernels binary: tables, JSON and files, exit codes, words."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Done

from backends.archs import GpuArch
from backends.cache import BinaryCache
from backends.kernel_checks import disassembly
from backends.kernel_checks.candidates import GPU_FAMILIES
from backends.kernel_checks.check import Checked
from backends.kernels.families import FAMILIES
from backends.kernels.families.naive import Naive
from backends.kernels.family import KernelConfig
from backends.problem import GemmProblem
from backends.resources import Resources
from backends.toolchains import triton
from db.engine import writing
from service.cli import app, main
from service.commands import kernels as command
from service.commands.common import out
from service.settings import Settings
from service.startup import open_database
from tests.backends.packages.opened import opened
from tests.backends.packages.test_package import DECODE, GEMV
from tests.db.samples import BASELINE, start, store_session
from tests.service.http.filled import GPU


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled kernels are kept."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{home / 'gemmtune.sqlite'}")
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(home))
    monkeypatch.setattr(out, "width", 200)


def call(*arguments: str) -> Done:
    return CliRunner().invoke(app, ["kernels", *arguments])


def answer(*arguments: str) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


# ---- the list ------------------------------------------------------------------------------------


def test_every_family_is_listed() -> None:
    done = call()
    assert done.exit_code == 0
    for name in (*GPU_FAMILIES, "stream", "packed"):
        assert f" {name} " in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(" skinny-mma ")]
    for word in ("2 to 64 columns on tensor cores", " cuda ", "fp16 bf16", " 6 ", "960", "skinny_mma.h"):
        assert word in row
    found = answer()["families"]
    assert [family["name"] for family in found] == [*GPU_FAMILIES, "stream", "packed"]
    assert set(found[0]) == {
        "name", "description", "language", "files", "version", "vendors", "input_types", "parameters",
        "space", "missing",
    }  # fmt: skip


def test_a_family_that_cannot_be_compiled_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "triton_build", lambda: None)
    done = call()
    assert done.exit_code == 0
    assert (
        "not compiled here for cuda: triton-gemm, triton-split-k, triton-persistent, triton-block-fp8, "
        "triton-inductor-mm, triton-fused-moe, triton-dequant: Triton is not installed; "
        "pip install 'gemmtune[triton]'\n"
    ) in done.stdout
    found = {family["name"]: family["missing"] for family in answer()["families"]}
    assert found["gemv"]["cuda"] is None
    assert found["triton-gemm"]["cuda"].startswith("Triton is not installed")


# ---- spaces --------------------------------------------------------------------------------------

DECODE_SIZES = ("--m", "1", "--n", "256", "--k", "512", "--dtype", "bf16", "--trans-b")


def test_the_sizes_of_spaces_for_an_architecture() -> None:
    found = answer("space", *DECODE_SIZES, "--arch", "sm_90", "--seconds", "0.1")
    assert found["on"] == "sm_90"
    assert found["problem"] == {"m": 1, "n": 256, "k": 512, "dtype": "bf16", "trans_b": True}
    rows = {row["family"]: row for row in found["families"]}
    assert rows["gemv"]["combinations"] == 8000
    assert 0 < rows["skinny-short"]["listed"] <= rows["skinny-short"]["legal"] <= 228
    assert rows["warp-tile"]["legal"] is None, "too many to count in a tenth of a second"
    assert not {"tile-mfma", "triton-block-fp8"} & set(rows)
    done = call("space", *DECODE_SIZES, "--arch", "sm_90", "--seconds", "0")
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith(" gemv ")]
    assert row == ["gemv", "8,000", "not", "counted", str(rows["gemv"]["listed"])]


@pytest.mark.parametrize(
    ("options", "families"),
    [
        (("--dtype-b", "uint4", "--scale-b", "block_1x128"), {"dequant-gemv", "dequant-ring"}),
        (("--groups", "8", "--routing", "uniform"), {"grouped-ring", "grouped-wgmma"}),
        (("--epilogue", "bias_silu"), {"gemv", "gemv-persistent"}),
    ],
)
def test_the_sizes_of_spaces_of_quantised_weights_groups_and_epilogues(
    options: tuple[str, ...], families: set[str]
) -> None:
    found = answer("space", *DECODE_SIZES, *options, "--arch", "sm_90", "--seconds", "0")
    rows = {row["family"]: row for row in found["families"]}
    assert families <= rows.keys()
    assert all(rows[name]["listed"] > 0 for name in families)


@pytest.mark.process
def test_the_sizes_of_spaces_on_this_machine() -> None:
    found = answer("space", *DECODE_SIZES, "--device", "cpu", "--seconds", "0.1")
    rows = {row["family"]: row for row in found["families"]}
    assert rows["packed"]["combinations"] > 10**4
    library = rows["openblas_upcast"]
    assert library["combinations"] == library["legal"] == library["listed"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arch", "sm_1"), "architecture 'sm_1' is unknown; known: sm_"),
        (("--arch", "sm_90", "--device", "cpu"), "--arch is without a device"),
        (("--arch", "gfx942", "--dtype", "fp64"), "none of our families runs"),
    ],
)
def test_spaces_that_are_none_are_refused(
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["gemmtune", "kernels", "space", *DECODE_SIZES, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


# ---- the check -----------------------------------------------------------------------------------

NAIVE = ("check", "--arch", "sm_80", "--family", "naive", "--limit", "2")


def test_a_sample_is_compiled_and_summed_up() -> None:
    done = call(*NAIVE)
    assert done.exit_code == 0, done.stdout
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith(" sm_80 ")]
    assert row[1:4] == ["naive", "2", "0"]
    least = int(row[4].partition("/")[0])
    assert 8 < least < 255, "the least registers"
    assert row[6:8] == ["0", "0"], "nothing spills"
    assert row[9:] == (["none"] if disassembly.missing("sm_80") is None else ["not", "counted"])
    found = answer(*NAIVE)
    assert set(found) == {"samples", "families", "notes", "kept"}
    assert found["kept"] is None
    assert [sample["status"] for sample in found["samples"]] == ["compiled", "compiled"]
    assert {sample["arch"] for sample in found["samples"]} == {"sm_80"}
    (family,) = found["families"]
    assert (family["compiled"], family["failed"]) == (2, 0)
    assert family["registers"][0] == least
    assert row[8] == "/".join(f"{waves:.10g}" for waves in family["waves_per_simd"])


def test_verbose_shows_every_kernel() -> None:
    lines = call(*NAIVE, "--verbose").stdout.splitlines()
    for sample in answer(*NAIVE)["samples"]:
        (row,) = [line for line in lines if f" {sample['solution']} " in line]
        numbers = [str(sample[name]) for name in ("threads", "registers", "shared_bytes", "spill_bytes")]
        waves = [f"{sample['waves_per_simd']:.10g}", f"({sample['occupancy_limit']})"]
        assert " ".join([*numbers, *waves]) in " ".join(row.split())


@pytest.mark.clang
def test_amds_registers_lds_scratch_and_matrix_instructions_are_shown() -> None:
    arguments = ("check", "--arch", "gfx942", "--family", "tile-mfma", "--limit", "1")
    done = call(*arguments, "--verbose")
    assert done.exit_code == 0, done.stdout
    words = " ".join(done.stdout.split())
    for head in ("VGPRs", "AGPRs", "SGPRs", "LDS", "scratch", "waves per SIMD"):
        assert head in words
    (sample,) = answer(*arguments)["samples"]
    ((name, count),) = sample["matrix_instructions"].items()
    assert name == "v_mfma_f32_16x16x16_bf16"
    assert f"{count} {name}" in words
    (family,) = answer(*arguments)["families"]
    assert family["matrix_instructions"] == [name]
    figures = ("registers", "accumulation_registers", "scalar_registers")
    row = [family[figure][0] for figure in figures]
    assert row == [sample[figure] for figure in figures]
    assert " ".join(f"{value}/{value}/{value}" for value in row) in words


def test_kernels_are_kept_on_request(tmp_path: Path) -> None:
    done = call(*NAIVE, "--keep", str(tmp_path / "kept"))
    assert done.exit_code == 0, done.stdout
    assert f"{tmp_path / 'kept'}: 2 kernels" in done.stdout.replace("\n", "")
    folder = tmp_path / "kept" / "sm_80"
    names = [f"naive-00{number}.{suffix}" for number in (0, 1) for suffix in ("cubin", "json")]
    assert sorted(path.name for path in folder.iterdir()) == names
    found = answer(*NAIVE, "--keep", str(tmp_path / "kept"))
    assert found["kept"] == [str(folder / name) for name in names if name.endswith("json")]
    document = json.loads((folder / "naive-001.json").read_bytes())
    assert document["solution"]["id"] == found["samples"][1]["solution"]
    assert [launch["file"] for launch in document["launches"]] == ["naive-001.cubin"]


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "kept"
    monkeypatch.setattr(sys, "argv", ["gemmtune", "kernels", *NAIVE, "--keep", str(place)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    words = f"cannot write {place}/sm_80/naive-000.json: Not a directory"
    assert words in capsys.readouterr().err.replace("\n", "")


def test_architectures_are_checked_one_after_another_each_once(home: Path) -> None:
    found = answer(*NAIVE, "--arch", "sm_86", "--arch", "sm_80")
    assert [sample["arch"] for sample in found["samples"]] == ["sm_80", "sm_80", "sm_86", "sm_86"]
    assert [row["arch"] for row in found["families"]] == ["sm_80", "sm_86"]
    assert len(list(home.rglob("*.cubin"))) >= 4, "kept with the user's compiled kernels"


def test_families_that_cannot_be_compiled_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "triton_build", lambda: None)
    arguments = ("check", "--arch", "sm_80", "--family", "naive", "--family", "triton-gemm", "--limit", "1")
    done = call(*arguments)
    assert done.exit_code == 0
    assert "note: sm_80: nothing of triton-gemm is compiled: Triton is not installed;" in done.stdout
    assert len(answer(*arguments)["notes"]) == 1


class Broken(Naive):
    """Its header has no such class."""

    name, header = "broken", "families/naive.h"

    def config(self, problem: GemmProblem, values: Any, arch: GpuArch) -> KernelConfig:
        found = super().config(problem, values, arch)
        return replace(found, instantiation=found.instantiation.replace("Naive<", "Nobody<"))


def test_a_kernel_that_does_not_compile_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GPU_FAMILIES, "broken", Broken())
    arguments = ("check", "--arch", "sm_80", "--family", "broken", "--family", "naive", "--limit", "2")
    done = call(*arguments)
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("failed: sm_80 broken-")]
    assert "NVRTC refuses unit.cu: unit.cu(2): error:" in line
    assert "error detected" not in done.stdout
    assert "errors detected in the compilation" in call(*arguments, "--verbose").stdout
    done = call(*arguments, "--json")
    assert done.exit_code == 1
    assert [sample["status"] for sample in json.loads(done.stdout)["samples"]] == ["failed", "compiled"]


def test_what_cannot_be_launched_is_said_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        command,
        "check",
        lambda candidates, cache: iter([Checked(candidates[0], Resources(None, 2**20, None))]),
    )
    place = str(tmp_path / "kept")
    done = call("check", "--arch", "sm_80", "--family", "naive", "--limit", "1", "--verbose", "--keep", place)
    assert done.exit_code == 0, "it compiles"
    assert f"{place}: 0 kernels" in done.stdout.replace("\n", "")
    assert "cannot be launched: sm_80 naive-" in done.stdout
    assert "it takes 1048576 bytes of shared memory; a block has 166912" in done.stdout
    assert "unknown" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arch", "sm_1"), "arch 'sm_1' is unknown; known: sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100"),
        (("--arch", "sm_80", "--arch", "gfx9"), "arch 'gfx9' is unknown; known: "),
        (
            ("--arch", "sm_80", "--family", "nobody"),
            "family 'nobody' is unknown; known: gemv-persistent, ",
        ),
        (("--arch", "gfx942", "--family", "skinny-mma"), "skinny-mma has kernels for cuda alone"),
        (("--arch", "sm_80", "--limit", "1"), "limit 1 is less than a compile for each of"),
        ((), "--arch"),
        (("--arch", "sm_80", "--limit", "0"), "--limit"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gemmtune", "kernels", "check", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_all_of_ours_are_asked_for_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "triton_build", lambda: None)
    asked: list[str] = []

    def record(candidates: Any, cache: BinaryCache) -> Any:
        asked.extend(one.family for one in candidates)
        return iter(())

    monkeypatch.setattr(command, "check", record)
    assert call("check", "--arch", "sm_90a").exit_code == 0
    assert len(asked) == 100
    assert set(asked) == {name for name, family in FAMILIES.items() if "cuda" in family.vendors}


# ---- a binary ------------------------------------------------------------------------------------


@pytest.fixture
def stored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solution of our own that won, over a library's."""
    engine = open_database(Settings())
    with writing(engine) as connection:
        store_session(connection, start(DECODE, environment=GPU), GEMV)
    engine.dispose()


def test_a_binary_is_written(
    stored: None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("binary", GEMV.id)
    assert done.exit_code == 0, done.stderr
    path = tmp_path / f"{GEMV.id}-sm_90.zip"
    assert f"{path.name}: {path.stat().st_size} bytes, sm_90, for {DECODE.id}" in done.stdout
    document, files = opened(path.read_bytes())
    assert (document["solution"]["id"], list(files)) == (GEMV.id, ["kernel.cubin"])
    wanted = {"arch": "sm_80", "problem": DECODE.id}
    options = [text for name, value in wanted.items() for text in (f"--{name}", value)]
    found = answer("binary", GEMV.id, *options, "--output", "other.zip")
    assert found == {**wanted, "file": "other.zip", "bytes": Path("other.zip").stat().st_size}
    assert opened(Path("other.zip").read_bytes())[0]["arch"] == "sm_80"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gemv-nobody",), "there is no solution 'gemv-nobody'"),
        ((BASELINE.id,), "a solution of numpy is a library's call: there is no binary"),
        ((GEMV.id, "--arch", "sm_1"), "'sm_1' is no architecture of ours; known: sm_80, "),
        ((GEMV.id, "--problem", "nobody"), "there is no problem 'nobody'"),
        ((GEMV.id, "--output", "/nowhere/file.zip"), "cannot write /nowhere/file.zip: No such file"),
    ],
)
def test_a_binary_that_is_not_to_be_had(
    arguments: tuple[str, ...],
    words: str,
    stored: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gemmtune", "kernels", "binary", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())
