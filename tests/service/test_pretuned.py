"""Pre-tuned tables: written, installed, served as what they are, and tried early by a tuning."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from backends.cache import BinaryCache
from backends.environment import DeviceClass, Environment
from backends.errors import InvalidProblem, ReadError
from backends.packages.bundle_file import BundleFile
from backends.packages.host import CPU_FAMILIES
from backends.problem import from_linear
from backends.toolchains.registry import TOOLCHAINS
from db import calls, models
from db.engine import open_engine, reading
from db.values import table
from service import best, pretuned
from service.bundles import Workshop
from service.demo import running
from service.formats.core.base import ReadOptions
from service.formats.core.export import IMPORTED, ModelLayer, TargetRow
from service.formats.core.row_text import RowTexts
from service.formats.model.config import ModelConfig
from service.imports import import_file
from service.pretuned_models import ModelLayers
from service.settings import Settings
from service.store import DirectStore
from tests.backends.weight_samples import weights
from tests.golden.texts import unpacked
from tests.service.formats import made
from tests.service.test_commands import Home
from tests.service.wins import HERE, SMALL, first_candidate
from tuners.policy import MeasurementPolicy
from tuners.session_store import SessionSpec
from tuners.tuning_settings import TuningSettings

NOT_SHIPPED = "neither a shipped table nor a file; shipped: h100-bf16, h100-lowbit, h200-bf16-decode"
CPU = Path(__file__).parents[1] / "data" / "pretuned" / "cpu-small.jsonl"


@pytest.fixture
def engine(tmp_path: Path, sqlite_template: Path) -> Iterator[Engine]:
    path = tmp_path / "gemmtune.sqlite"
    shutil.copyfile(sqlite_template, path)
    opened = open_engine(Settings(database_url=f"sqlite:///{path}").database_url)
    yield opened
    opened.dispose()


def count(engine: Engine, model: type[Any]) -> int:
    with reading(engine) as connection:
        return connection.execute(select(func.count()).select_from(table(model))).scalar() or 0


def test_a_table_says_where_with_what_and_when() -> None:
    found = pretuned.read_table(CPU)
    assert (found.name, str(found.device)) == ("cpu-small", "cpu:x86_64:AMD-EPYC:2")
    assert found.header["commit"]
    assert found.header["made_at"]
    assert "openblas" in found.libraries
    assert (len(found.rows), found.rejected) == (5, [])
    assert found.to_dict()["wins"] == found.wins > 0
    for row in found.rows:
        assert row.environment.uuid == ""
        assert row.session
        assert row.decided_at
        best_of_ours = row.of_target("bundle")
        assert best_of_ours is not None, "a bundle can be built from it"
        assert best_of_ours.solution.parameters


def test_rows_are_small(tmp_path: Path) -> None:
    lines = CPU.read_bytes().splitlines()
    assert max(map(len, lines)) < 4096


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rows = [
        made.row(count=41), made.row(from_linear(1, 64, 64, "bf16"), keys=("its own",)),
        made.row(from_linear(2, 64, 64, "bf16"), provenance=IMPORTED),
    ]  # fmt: skip
    path = tmp_path / "h200.jsonl"
    path.write_text("".join(pretuned.write_table("h200", made.H200.device_class, rows)))
    found = pretuned.read_table(path)
    assert [row.problem for row in found.rows] == [row.problem for row in rows[:2]], "measured rows only"
    anywhere = replace(made.H200, uuid="")
    assert list(found.rows) == [replace(row, keys=(), environment=anywhere, count=0) for row in rows[:2]]
    with pytest.raises(InvalidProblem, match="'a/b' may hold letters"):
        pretuned.write_table("a/b", made.H200.device_class, rows)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text.replace('"pretuned":"cpu-small",', ""), "is no pre-tuned table"),
        (lambda text: text.splitlines()[0] + "\n", "is no pre-tuned table"),
        (
            lambda text: text.splitlines()[0].replace('"commit"', '"row_count":5,"commit"') + "\n",
            "is no pre-tuned table.*; line 1: the export .* says that it has 5 rows, and 0 rows came",
        ),
        (
            lambda text: text.replace("AMD-EPYC:2", "AMD-EPYC:4", 1),
            "AMD-EPYC:4, but has rows of",
        ),
        (lambda text: text.replace("cpu:x86_64", "abacus:x86_64", 1), "names no device class"),
    ],
    ids=["an export", "no row", "cut to its header", "another class", "no class"],
)
def test_what_is_no_table_is_refused(tmp_path: Path, engine: Engine, edit: Any, words: str) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text(edit(CPU.read_text()))
    with pytest.raises(ReadError, match=words):
        pretuned.install(engine, path)
    assert count(engine, models.Provenance) == 0


def test_shipped_tables_are_found_by_name(tmp_path: Path) -> None:
    shutil.copy(CPU, tmp_path / "cpu-small.jsonl")
    assert [one.name for one in pretuned.shipped(tmp_path)] == ["cpu-small"]
    assert pretuned.named("cpu-small", tmp_path) == tmp_path / "cpu-small.jsonl"
    assert pretuned.named(str(CPU), tmp_path) == CPU
    with pytest.raises(ReadError, match="neither a shipped table nor a file; shipped: cpu-small"):
        pretuned.named("cpu-large", tmp_path)


def test_every_shipped_table_can_be_read_and_says_what_was_searched() -> None:
    paths = pretuned.shipped_files()
    assert [path.stem for path in paths] == ["h100-bf16", "h100-lowbit", "h200-bf16-decode"]
    for path in paths:
        found = pretuned.read_table(path)
        assert (found.name, found.rejected) == (path.stem, [])
        assert found.to_dict()["note"]
        assert int(found.header["row_count"]) == len(found.rows)
        assert len(found.header["commit"]) == 40
        assert {row.environment.uuid for row in found.rows} == {""}
    assert sum(path.stat().st_size for path in paths) < 6_000_000, "every installation has them"


def test_a_note_is_one_line(tmp_path: Path) -> None:
    pieces = pretuned.write_table("h200", made.H200.device_class, [made.row()], "2 s a problem")
    path = tmp_path / "h200.jsonl"
    path.write_text("".join(pieces))
    assert pretuned.read_table(path).to_dict()["note"] == "2 s a problem"
    for note in ("two\nlines", "x" * 1001):
        with pytest.raises(InvalidProblem, match="--note must be one line"):
            pretuned.write_table("h200", made.H200.device_class, [made.row()], note)


def test_shipped_tables_are_installed_once(engine: Engine, tmp_path: Path) -> None:
    shutil.copy(CPU, tmp_path / "cpu-small.jsonl")
    assert pretuned.install_shipped(engine, tmp_path) == ["cpu-small"]
    rows = len(pretuned.read_table(CPU).rows)
    assert count(engine, models.Claim) == rows
    assert pretuned.install_shipped(engine, tmp_path) == []
    with engine.begin() as connection:  # as one that was interrupted leaves it
        claim = table(models.Claim)
        last = connection.scalar(select(func.max(claim.c.number)))
        connection.execute(claim.delete().where(claim.c.number == last))
    assert pretuned.install_shipped(engine, tmp_path) == ["cpu-small"]
    assert count(engine, models.Claim) == rows
    (tmp_path / "cpu-small.jsonl").write_text(CPU.read_text().replace('"made_at":"2026', '"made_at":"2027'))
    assert pretuned.install_shipped(engine, tmp_path) == ["cpu-small"], "another edition"
    assert pretuned.install_shipped(engine, tmp_path / "none") == []


def test_a_table_of_before_is_not_installed_again_for_the_number_of_its_rows(
    engine: Engine, tmp_path: Path
) -> None:
    rows = pretuned.read_table(CPU).rows
    now = "".join(pretuned.write_table("mine", rows[0].environment.device_class, rows))
    before = now.replace(f'"row_count":{len(rows)},', "")
    assert before != now
    path = tmp_path / "mine.jsonl"
    path.write_text(before)
    assert pretuned.install_shipped(engine, tmp_path) == ["mine"]
    path.write_text(now)
    assert pretuned.install_shipped(engine, tmp_path) == []
    path.write_text(now.replace('"row_count"', '"note":"another edition","row_count"'))
    assert pretuned.install_shipped(engine, tmp_path) == ["mine"]


def test_every_shipped_row_is_known_elsewhere(engine: Engine) -> None:
    assert pretuned.install_shipped(engine) == [path.stem for path in pretuned.shipped_files()]
    rows = [row for found in pretuned.shipped() for row in found.rows]
    assert count(engine, models.Claim) == len(rows)
    assert count(engine, models.Best) == 0
    assert pretuned.install_shipped(engine) == []


@pytest.mark.parametrize("setting", ["1", "0"])
def test_an_upgrade_installs_them_unless_a_setting_forbids_it(
    tmp_path: Path, cache: BinaryCache, setting: str
) -> None:
    home = Home(tmp_path, cache.root.parent)
    home.environment["GEMMTUNE_PRETUNED"] = setting
    for _ in range(2):
        code, _, err = home.run("db", "upgrade")
        assert code == 0, err
    installed = [one["name"] for one in home.json("pretuned", "list")["installed"]]
    assert installed == ([path.stem for path in pretuned.shipped_files()] if setting == "1" else [])


# ---- bundles ---------------------------------------------------------------------------------------


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("h200-bf16-decode", "cuda:sm_90:NVIDIA-H200:132"),
        ("h100-bf16", "cuda:sm_90:NVIDIA-H100-80GB-HBM3:132"),
    ],
)
def test_a_shipped_table_becomes_a_bundle_without_a_device(
    tmp_path: Path, cache: BinaryCache, name: str, device: str
) -> None:
    missing = TOOLCHAINS["cuda"].missing("sm_90")
    if missing is not None:
        pytest.skip(missing)
    (path,) = [path for path in pretuned.shipped_files() if path.stem == name]
    found = pretuned.read_table(path)
    of = [row for row in found.rows if row.solution.family in ("gemv-persistent", "skinny-ring")]
    asked = {of[0].problem.id, of[-1].problem.id}
    output = tmp_path / f"{name}.gtb"
    built = pretuned.build_bundle(found, output, Workshop(cache), 10, problem_ids=frozenset(asked))
    assert (built.report["written"], built.report["omitted"]) == (2, {})
    bundle = BundleFile(output)
    bundle.verify()
    assert set(bundle.problem_ids) == asked
    assert bundle.manifest["device"]["class"] == device
    assert bundle.manifest["policy"]["id"] == of[0].policy.id


@pytest.mark.compiler
def test_a_bundle_of_a_table_by_the_command(tmp_path: Path, cache: BinaryCache) -> None:
    home = Home(tmp_path, cache.root.parent)
    mine, output = tmp_path / "mine.jsonl", str(tmp_path / "mine.gtb")
    rows = []
    for problem, family in zip(SMALL, CPU_FAMILIES, strict=True):
        found = first_candidate(problem, family)
        ours = TargetRow(found, "WIN", 1e-6, 2e-6, (1.5, 2.0, 2.5), 8, "s", "2026", True)
        made_here = made.row(problem, environment=HERE, policy=MeasurementPolicy.of("cpu"))
        rows.append(replace(made_here, targets={"bundle": ours}, targets_judged=True))
    mine.write_text("".join(pretuned.write_table("mine", HERE.device_class, rows)))
    code, out, err = home.run("bundle", "--pretuned", str(mine), "-o", output)
    assert code == 0, err
    assert f"2 rows of {HERE.device_class}, geometric mean 2.000x" in out
    assert set(BundleFile(Path(output)).problem_ids) == {problem.id for problem in SMALL}
    cut = tmp_path / "cut.jsonl"
    cut.write_text(mine.read_text()[:-20])
    code, out, err = home.run("bundle", "--pretuned", str(cut), "-o", output)
    assert code == 0, err
    assert "1 row of" in out
    assert "line 3: no JSON" in err
    assert f"1 line of {cut} rejected" in "".join(err.split("\n"))
    refused = (
        (("no-such-table",), NOT_SHIPPED),
        ((str(mine), "--device", "cuda"), "no device matches 'cuda'"),
        ((str(mine), "--server", "http://127.0.0.1:9"), "both name the rows: give one"),
        ((str(mine), "--policy", "another"), "the table mine has no such row under the policy another"),
    )
    for arguments, words in refused:
        code, _, err = home.run("bundle", "--pretuned", *arguments, "-o", output)
        assert code == 2
        assert words in " ".join(err.split())
    assert not (tmp_path / "gemmtune.sqlite").exists(), "no database is opened"


def test_installed_rows_are_claims_and_never_measurements(engine: Engine) -> None:
    answer = pretuned.install(engine, CPU)
    rows = pretuned.read_table(CPU).rows
    assert answer.claims.stored == len(rows) == count(engine, models.Claim)
    assert answer.provenance["kind"] == "pretuned"
    assert count(engine, models.Verdict) == count(engine, models.Best) == 0
    again = pretuned.install(engine, CPU)
    assert (again.claims.stored, again.provenance["new"]) == (0, False)
    with reading(engine) as connection:
        (one,) = pretuned.installed(connection)
    assert (one["name"], one["device_class"], one["rows"]) == (
        "cpu-small",
        "cpu:x86_64:AMD-EPYC:2",
        len(rows),
    )


def test_an_answer_says_that_it_was_measured_elsewhere(engine: Engine) -> None:
    pretuned.install(engine, CPU)
    row = pretuned.read_table(CPU).rows[0]
    with reading(engine) as connection:
        asked = best.Asked(row.environment.device_class, row.policy.id)
        unasked = json.loads(best.answer(connection, asked, row.problem, None))
        told = json.loads(best.answer(connection, replace(asked, imported=True), row.problem, None))
        other = json.loads(best.answer(connection, asked, made.LINEAR, None))
    assert (unasked["match"], unasked["solution"]) == ("default", None)
    asked_for = "(imported=true, or --imported on the command line)"
    assert f"known elsewhere: the pre-tuned table cpu-small has it {asked_for}" in unasked["notes"]
    assert not any("elsewhere" in note for note in other["notes"])
    assert (told["match"], told["solution"]["id"]) == ("imported", row.solution.id)
    assert told["provenance"] == {"kind": "pretuned", "source": "cpu-small", "format": "jsonl"}
    assert told["reason"] == "the pre-tuned table cpu-small says so; it was not measured here"
    assert row.speedup is not None
    assert (told["judgement"], told["speedup"]["mid"]) == (row.judgement, row.speedup[1])
    assert told["baseline"]["name"] == row.baseline_name
    assert told["baseline"]["seconds"] == row.baseline_seconds
    assert any(f"another {row.environment.device_class} with" in note for note in told["notes"])


def test_an_answer_says_why_a_tables_own_row_or_another_classes_does_not_serve(engine: Engine) -> None:
    pretuned.install(engine, CPU)
    row = pretuned.read_table(CPU).rows[0]
    here = row.environment.device_class
    none = best.Filters(families=frozenset({"no-such-family"}))
    with reading(engine) as connection:
        asked = best.Asked(here, row.policy.id, none, imported=True)
        filtered = json.loads(best.answer(connection, asked, row.problem, None))
        elsewhere = replace(asked, device=DeviceClass("cpu", "x86_64", "Another", 2), filters=best.Filters())
        another = json.loads(best.answer(connection, elsewhere, row.problem, None))
        unknown = json.loads(best.answer(connection, elsewhere, made.LINEAR, None))
    assert filtered["match"] == another["match"] == "default"
    assert "what files claim of the problem itself does not meet the filters" in filtered["notes"]
    (note,) = (note for note in another["notes"] if "other devices" in note)
    assert f"cpu-small of {here} (device=CLASS, " in note
    assert not any("other devices" in note for note in filtered["notes"] + unknown["notes"])


def test_a_table_has_its_own_name_however_it_is_imported(engine: Engine) -> None:
    with CPU.open("rb") as stream:
        by_file = import_file(engine, stream, "downloads/copy.jsonl")
    assert by_file.provenance["source"] == "cpu-small"
    names = count(engine, models.ProblemKey)
    by_name = pretuned.install(engine, CPU)
    assert (by_name.provenance["new"], by_name.claims.stored) == (False, 0)
    assert count(engine, models.ProblemKey) == names


def test_a_tuning_on_that_class_tries_its_rows_early_and_no_other_does(engine: Engine) -> None:
    pretuned.install(engine, CPU)
    row = next(row for row in pretuned.read_table(CPU).rows if row.judgement == "WIN")
    here = replace(row.environment, uuid="CPU-1", libraries={})
    elsewhere = Environment("cpu", "x86_64", "Another CPU", 2, 2**30, "CPU-2")
    store = DirectStore(engine)
    settings = TuningSettings()
    offered = store.start(SessionSpec(row.problem, here, settings))
    assert [solution.id for solution in offered.warm_start] == [row.solution.id]
    assert (offered.outcomes, offered.result) == ([], None), "it is measured all the same"
    assert store.start(SessionSpec(row.problem, elsewhere, settings)).warm_start == []


# ---- the command -----------------------------------------------------------------------------------


def test_the_best_command_answers_by_a_tables_near_row(tmp_path: Path, cache: BinaryCache) -> None:
    home = Home(tmp_path, cache.root.parent)
    assert home.run("pretuned", "install", str(CPU))[0] == 0
    layer = ("--n", "128", "--k", "64", "--dtype", "fp32", "--trans-b", "--device", "cpu:x86_64:AMD-EPYC:2")
    asked = ("best", "--m", "4", *layer)
    found = home.json(*asked, "--imported")
    assert (found["match"], found["problem"]["m"], found["distance"]) == ("nearest", 2, 1.0)
    assert found["provenance"] == {"kind": "pretuned", "source": "cpu-small", "format": "jsonl"}
    code, out, _ = home.run(*asked, "--imported")
    assert code == 0
    shown = " ".join(out.split())
    assert "nearest, distance 1.00 doublings" in shown
    assert "of the pre-tuned table cpu-small, not measured here" in shown
    assert f"says so of {found['problem_id']}" in shown
    code, out, _ = home.run(*asked)
    assert code == 1
    assert f"the pre-tuned table cpu-small has {found['problem_id']}" in " ".join(out.split())


def test_the_shipped_tables_with_kernels_for_problems(tmp_path: Path) -> None:
    shutil.copy(CPU, tmp_path / "cpu-small.jsonl")
    found = pretuned.read_table(CPU)
    ours = [row.problem.id for row in found.rows if row.targets["bundle"].judgement == "WIN"]
    every = frozenset(row.problem.id for row in found.rows)
    assert ours
    assert pretuned.tables_with(every, found.device, tmp_path) == {"cpu-small": len(ours)}
    assert pretuned.tables_with(frozenset(ours[:1]), found.device, tmp_path) == {"cpu-small": 1}
    assert pretuned.tables_with(every - {*ours}, found.device, tmp_path) == {}
    assert pretuned.tables_with(every, made.H200.device_class, tmp_path) == {}


def test_what_one_database_measured_another_knows_elsewhere(tmp_path: Path, cache: BinaryCache) -> None:
    for name in ("h200", "other"):
        (tmp_path / name).mkdir()
    unpacked(tmp_path / "h200").rename(tmp_path / "h200" / "gemmtune.sqlite")
    h200, other = (Home(tmp_path / name, cache.root.parent) for name in ("h200", "other"))
    assert h200.run("db", "upgrade")[0] == 0
    path = tmp_path / "ours.jsonl"
    code, _, err = h200.run("pretuned", "export", "--device", "cuda", "--name", "ours", "-o", str(path))
    assert code == 0, err
    assert "36 rows of cuda:sm_90:NVIDIA-H200:132 written to" in err
    found = pretuned.read_table(path)
    assert found.device == DeviceClass.parse("cuda:sm_90:NVIDIA-H200:132")
    assert sum("bundle" in row.targets for row in found.rows) > 10
    assert path.stat().st_size / len(found.rows) < 4096
    answer = other.json("pretuned", "install", str(path))
    assert answer["tables"][0].items() >= {"name": "ours", "stored": 36, "skipped": 0}.items()
    listed = other.json("pretuned", "list")
    assert [one["name"] for one in listed["installed"]] == ["ours"]
    code, out, _ = other.run("pretuned", "list")
    assert code == 0
    assert "ours: products: bf16 " in out
    bf16, lowbit = (one for one in listed["shipped"] if one["name"].startswith("h100-"))
    assert bf16["device_class"] == lowbit["device_class"]
    assert (bf16["types"], bf16["m"]) == (["bf16"], {"least": 1, "most": 16384})
    assert lowbit["types"] == ["bf16 b:uint4", "fp8_e4m3", "int8"]
    (lines,) = [line for line in out.splitlines() if line.lstrip().startswith("h100-lowbit ")]
    assert "bf16 b:uint4, fp8_e4m3, int8" in lines
    assert "h100-lowbit: products: bf16 b:uint4 block_1x128 111, " in out
    code, _, err = other.run(
        "pretuned", "export", "--device", "cuda", "--name", "x", "-o", str(tmp_path / "x")
    )
    assert code == 2
    assert "nothing was measured on cuda:sm_90:NVIDIA-H200:132" in " ".join(err.split()), (
        "claims are not ours"
    )
    with running(tmp_path / "h200", "cpu") as address:
        again, there = tmp_path / "again.jsonl", ("--server", address)
        assert (
            h200.run("pretuned", "export", "--device", "cuda", "--name", "ours", "-o", str(again), *there)[0]
            == 0
        )
        assert again.read_text().splitlines()[1:] == path.read_text().splitlines()[1:]
        installed = other.json("pretuned", "install", str(CPU), *there)
        assert installed["tables"][0]["stored"] == 5
        listed = other.json("pretuned", "list", *there)
        (one,) = listed["installed"]
        assert (one["name"], one["device_class"], one["rows"]) == ("cpu-small", "cpu:x86_64:AMD-EPYC:2", 5)
        code, out, _ = other.run("pretuned", "list", *there)
        assert code == 0
        assert f"Installed at {address}" in out
        assert "ours" not in out, "another database's"
    assert [one["name"] for one in h200.json("pretuned", "list")["installed"]] == ["cpu-small"]


def test_a_table_that_is_not_there_is_said_so(tmp_path: Path, cache: BinaryCache) -> None:
    code, _, err = Home(tmp_path, cache.root.parent).run("pretuned", "install", "no-such-table")
    assert code == 2
    assert NOT_SHIPPED in " ".join(err.split())


def test_a_table_that_lost_rows_is_said_to_have(tmp_path: Path, cache: BinaryCache) -> None:
    home, cut = Home(tmp_path, cache.root.parent), tmp_path / "cut.jsonl"
    rows = pretuned.read_table(CPU).rows
    pieces = list(pretuned.write_table("mine", rows[0].environment.device_class, rows))
    cut.write_text("".join(pieces[:4]))
    missing = "line 4: the export that begins on line 1 says that it has 5 rows, and 3 rows came: 2 are"
    assert pretuned.read_table(cut).rejected[0].startswith(missing)
    for command in (("pretuned", "install"), ("import",)):
        code, _, err = home.run(*command, str(cut))
        assert code == 0, "what came is stored"
        assert missing in " ".join(err.split())
    with pytest.raises(ReadError, match="has lines that are no rows: line 4: the export"):
        pretuned.rewrite_table(pretuned.read_table(cut), ModelLayers(()))
    policy, output = ("--policy", "another"), ("-o", str(tmp_path / "b.gtb"))
    code, _, err = home.run("bundle", "--pretuned", str(cut), *policy, *output)
    assert code == 2
    assert missing in " ".join(err.split())


# ---- models ----------------------------------------------------------------------------------------

MODELS = Path(__file__).parents[1] / "data" / "models"


def test_every_shipped_row_says_which_layers_it_is() -> None:
    for found in pretuned.shipped():
        assert all(row.models and row.count == sum(one.calls for one in row.models) for row in found.rows)
    h100 = pretuned.read_table(pretuned.named("h100-bf16"))
    assert h100.models.keys() == {
        "deepseek-v3", "gemma-3-4b", "llama-3-70b", "llama-3-8b", "mistral-7b-v0.3", "qwen3-14b",
        "qwen3-32b", "qwen3-8b",
    }  # fmt: skip
    (row,) = [row for row in h100.rows if row.problem == from_linear(1, 28672, 4096, "bf16")]
    assert set(row.models) >= {
        ModelLayer("llama-3-8b", 1, "gate_up_proj", 32), ModelLayer("mistral-7b-v0.3", 1, "gate_up_proj", 32),
    }  # fmt: skip
    lowbit = pretuned.read_table(pretuned.named("h100-lowbit"))
    sizes = ("llama-3-8b", "llama-3-70b", "qwen3-8b", "qwen3-14b", "qwen3-32b")
    kinds = ("w4a16", "fp8-dynamic", "w8a8")
    assert lowbit.models.keys() == {"deepseek-v3", *(f"{size}-{kind}" for size in sizes for kind in kinds)}


def test_a_table_is_written_with_the_layers_of_models(tmp_path: Path) -> None:
    qkv, down = from_linear(8, 3072, 4096, "bf16"), from_linear(8, 4096, 7168, "bf16")
    rows = [made.row(problem, count=5) for problem in (qkv, down, from_linear(8, 24, 24, "bf16"))]
    layers = ModelLayers([MODELS / "llama-3-8b.json"], (2, 3))
    path = tmp_path / "h200.jsonl"
    path.write_text("".join(pretuned.write_table("h200", made.H200.device_class, rows, models=layers)))
    found = pretuned.read_table(path)
    assert [row.models for row in found.rows] == [
        (ModelLayer("llama-3-8b", 2, "qkv_proj", 32),), (ModelLayer("llama-3-8b", 2, "down_proj", 32),), (),
    ]  # fmt: skip
    assert [row.count for row in found.rows] == [32, 32, 0]
    assert found.to_dict()["models"] == {"llama-3-8b": 2}
    other = "".join(pretuned.rewrite_table(found, ModelLayers([MODELS / "llama-3-8b.json"], (4,))))
    assert other.splitlines()[0] == path.read_text().splitlines()[0]
    path.write_text(other)
    again = pretuned.read_table(path)
    assert list(again.rows) == [replace(row, models=(), count=0) for row in found.rows]
    path.write_text(other + "{}\n")
    with pytest.raises(ReadError, match="has lines that are no rows: line 5"):
        pretuned.rewrite_table(pretuned.read_table(path), layers)


def test_experts_have_several_rows_of_a_token() -> None:
    """DeepSeek-V3's router chooses eight experts of 256: 16 rows are two tokens."""
    options: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128", "dtype_d": "bf16"}
    experts = from_linear(16, 512, 7168, "fp8_e4m3", groups=256, **options)
    (layer,) = ModelLayers([MODELS / "deepseek-v3.json"], (8,)).of(experts)
    assert (layer.model, layer.calls) == ("deepseek-v3", 58)


def test_many_rows_of_experts_read_a_config_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the experts that it chooses for a token, and for the tokens that have so many rows, not for every
    divisor of the rows."""
    read: list[tuple[int, ...] | None] = []
    read_told = ModelConfig.read_told

    def told(self: ModelConfig, lines: Any, options: ReadOptions) -> Any:
        read.append(options.tokens)
        return read_told(self, lines, options)

    monkeypatch.setattr(ModelConfig, "read_told", told)
    options: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128", "dtype_d": "bf16"}
    experts = from_linear(720720, 512, 7168, "fp8_e4m3", groups=256, **options)
    (layer,) = ModelLayers([MODELS / "deepseek-v3.json"], (8,)).of(experts)
    assert layer.calls == 58
    assert read == [(1,), (90090,)]


def test_a_layer_with_prepacked_weights_is_the_same_layer() -> None:
    layers = ModelLayers([MODELS.parent / "quantised_models" / "llama-3-8b-w4a16.json"])
    stored = weights(8, 6144, 4096, zero_b="eight")
    assert layers.of(stored) == (ModelLayer("llama-3-8b-w4a16", 1, "qkv_proj", 32),)
    assert layers.of(replace(stored, prepacked=True)) == layers.of(stored)
    assert layers.of(replace(stored, zero_a="uint4")) == ()


def test_a_config_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"llama-3-8b\.json: .*3"):
        ModelLayers([MODELS / "llama-3-8b.json"], (3,)).of(made.LINEAR)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ReadError, match="describes no model"):
        ModelLayers([tmp_path / "config.json"]).of(made.LINEAR)


@pytest.mark.parametrize("value", [{}, ["qkv_proj"], [{"model": "m", "tensor_parallel": 1, "layer": "l"}]])
def test_models_of_another_form_are_no_row(tmp_path: Path, value: Any) -> None:
    header, row, *_ = CPU.read_text().splitlines()
    path = tmp_path / "table.jsonl"
    path.write_text(f"{header}\n{row}\n{json.dumps({**json.loads(row), 'models': value})}\n")
    (reason,) = pretuned.read_table(path).rejected
    assert reason.startswith("line 3: ")


def test_the_command_names_the_models(tmp_path: Path, cache: BinaryCache) -> None:
    home, output = Home(tmp_path, cache.root.parent), tmp_path / "again.jsonl"
    config = ("--config", str(MODELS / "llama-3-8b.json"), "--config", str(MODELS / "qwen3-14b.json"))
    code, _, err = home.run("pretuned", "models", "h200-bf16-decode", *config, "-o", str(output))
    assert code == 0
    assert "68 of 68 rows are layers of the models" in err
    assert output.read_text() == pretuned.named("h200-bf16-decode").read_text()
    assert home.run("pretuned", "models", "h200-bf16-decode", "-o", str(output))[0] == 2
    shown = home.json("pretuned", "list")["shipped"]
    assert {one["name"]: set(one["models"]) for one in shown}["h200-bf16-decode"] == {
        "llama-3-8b",
        "qwen3-14b",
    }


def test_a_tables_calls_are_those_of_its_list_alone(engine: Engine, tmp_path: Path) -> None:
    (row, *_) = pretuned.read_table(pretuned.named("h200-bf16-decode")).rows
    wire = json.dumps({**json.loads(RowTexts().text(row))["wire"], "count": 7})
    device = str(row.environment.device_class)
    import_file(engine, io.BytesIO(wire.encode()), "mine.jsonl")
    pretuned.install_shipped(engine)
    with reading(engine) as connection:
        assert calls.count_calls(connection, device, [row.problem.id]) == {row.problem.id: 7}
        counted = calls.calls_by_problem(device)
        assert connection.execute(select(func.count()).select_from(counted)).scalar() == 1
        table_list = calls.find_list(connection, "h200-bf16-decode")
        listed = calls.calls_by_problem(device, table_list)
        found = {one.problem_id: one.calls for one in connection.execute(select(listed))}
    assert len(found) == 68
    assert found[row.problem.id] == row.count > 7
