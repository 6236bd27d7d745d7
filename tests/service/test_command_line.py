"""What every command line has: a version, completion, other spellings, - for standard input, errors as JSON,
exit codes of rejected input, tables at 80 columns."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from db.classes import ClassInUse
from db.engine import open_engine
from db.fleet import NoSuchName
from service.cli import ALIASES, COMMANDS, app
from service.commands import common
from service.failures import error_document, wants_json
from service.keys import KeyRefused
from service.settings import Settings
from tests.service.http.filled import fill, problem
from tests.service.http.serving import serving
from tests.service.loaded import ROOT, Loaded, loaded

EXAMPLE = ROOT / "docs" / "examples" / "gpt2-untuned.csv"
MODEL = ROOT / "tests" / "data" / "models" / "llama-3-8b.json"
GOOD, BAD = b"GemmTunableOp_float_NN,nn_16_8_32_ld_16_32_16\n", b"GemmTunableOp_float_NN,nn_0_8_32\n"
Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, sqlite_template: Path) -> dict[str, str]:
    """Settings of a database of its own."""
    path = tmp_path / "gemmtune.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    return {"GEMMTUNE_DATABASE_URL": f"sqlite:///{path}", "GEMMTUNE_CACHE_DIR": str(tmp_path / "cache")}


@pytest.fixture
def run(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process; `text` is its standard input."""
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GEMMTUNE_SERVER", raising=False)

    def command(*arguments: str, text: bytes | None = None) -> Result:
        common._standard_input.cache_clear()
        return CliRunner().invoke(app, list(arguments), input=text)

    return command


@pytest.fixture
def complaining(home: dict[str, str]) -> Loaded:
    """Runs a command as a script meets it, with its errors."""
    return loaded({**os.environ, **home, "COLUMNS": "80"})


def test_the_version_is_the_distributions(run: Run) -> None:
    done = run("--version")
    assert (done.exit_code, done.output) == (0, f"gemmtune {version('gemmtune')}\n")


def test_a_worker_loads_no_web_framework_and_no_formats() -> None:
    program = (
        "import sys\nimport service.worker_process\n"
        "print([name for name in ('fastapi', 'service.formats') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_the_start_loads_no_module_of_a_command() -> None:
    script = (
        "import sys; from service import cli; sys.argv = ['gemmtune', '--help']\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "heavy = ('fastapi', 'numpy', 'rich', 'sqlalchemy', 'httpx', 'service.commands.common')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("tu", ["tune", "tunings"]),
        ("--ver", ["--version"]),
        ("db u", ["upgrade"]),
        ("tune --strat", ["--strategy", "--strategy-option"]),
        ("problem --to", ["--tokens"]),
    ],
)
def test_names_are_completed(words: str, wanted: list[str]) -> None:
    typed = ["gemmtune", *words.split()]
    env = {
        "_GEMMTUNE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(typed),
        "COMP_CWORD": str(len(typed) - 1),
    }
    done = CliRunner().invoke(app, [], prog_name="gemmtune", env=env)
    assert done.output.split() == wanted


def test_completion_can_be_installed(run: Run) -> None:
    assert "--install-completion" in run("--help").output


def test_the_singular_and_the_plural_are_one_command(run: Run) -> None:
    root = typer.main.get_command(app)
    context = root.make_context("gemmtune", ["devices"], resilient_parsing=True)
    for other, name in ALIASES.items():
        assert other not in COMMANDS
        if name in COMMANDS:
            command = root.get_command(context, other)  # type: ignore[attr-defined]
            assert command.name == name
    assert "  problem " not in run("--help").output
    plain = run("problems", str(EXAMPLE))
    assert (plain.exit_code, run("problem", str(EXAMPLE)).output) == (0, plain.output)


def test_a_misspelt_command_has_a_suggestion(complaining: Loaded) -> None:
    code, _, err = complaining.run("tunnings")
    assert code == 2
    assert "Did you mean 'tunings'?" in err


# ---- errors as JSON ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "status", "words"),
    [
        (("tune", "--m", "many"), "usage", 400, "--m"),
        (("problems", "no-such-file"), "unreadable-file", 422, "no-such-file does not exist"),
        (("best", "--m", "4", "--n", "4", "--k", "4", "--device", "cuda"), "unknown-device", 404, "cuda"),
        (("cancel", "tuning-none"), "not-found", 404, "tuning-none"),
        (("export", "cobol"), "export-refused", 409, "cobol"),
        (("export", "csv", "--since", "2026-01-01"), "invalid-problem", 422, "--since"),
        (("status", "--server", "nowhere"), "failed", 500, "no address of a service"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_is_one_problem_document(
    complaining: Loaded, arguments: tuple[str, ...], kind: str, status: int, words: str
) -> None:
    plain, _, told = complaining.run(*arguments)
    code, out, err = complaining.run(*arguments, "--json")
    document = json.loads(out)
    assert list(document) == ["error"]
    error = document["error"]
    assert (error["type"], error["status"]) == (f"urn:gemmtune:{kind}", status)
    assert error["title"]
    assert words in error["detail"]
    assert code == plain == 2
    assert err == told, "standard error has the same line"
    assert words in " ".join(err.split())


def test_a_services_refusal_keeps_its_own_document(home: dict[str, str], complaining: Loaded) -> None:
    settings = Settings(database_url=home["GEMMTUNE_DATABASE_URL"])
    with serving(settings) as client:
        code, out, _ = complaining.run("cancel", "tuning-none", "--server", str(client.base_url), "--json")
    error = json.loads(out)["error"]
    assert (code, error["status"], error["type"]) == (2, 404, "urn:gemmtune:not-found")
    assert error["instance"] == "/v1/tunings/tuning-none"
    assert error["request_id"]


def test_a_bad_setting_is_a_document_too(home: dict[str, str]) -> None:
    command = loaded({**os.environ, **home, "GEMMTUNE_MARGIN": "much"})
    code, out, err = command.run("tune", "--m", "4", "--n", "4", "--k", "4", "--json")
    assert (code, json.loads(out)["error"]["type"]) == (2, "urn:gemmtune:usage")
    assert "GEMMTUNE_MARGIN" in err


def test_what_follows_two_dashes_is_no_option() -> None:
    assert wants_json(["tune", "--json", "file"])
    assert not wants_json(["tune", "--", "--json"])


# ---- standard input ------------------------------------------------------------------------------


def test_a_file_is_read_from_standard_input(run: Run) -> None:
    data = EXAMPLE.read_bytes()
    done = run("problems", "-", "--json", text=data)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads(run("problems", str(EXAMPLE), "--json").stdout)
    answer = json.loads(run("import", "-", "--json", text=data).stdout)
    assert (len(answer["problems"]), answer["provenance"]["source"]) == (35, "standard input")
    assert "1 line of standard input rejected" in run("import", "-", text=GOOD + BAD).stderr
    assert run("lint", "aiter", "-", text=b"M,N,K\n").exit_code in (0, 1)


def test_a_models_description_is_read_from_standard_input(run: Run) -> None:
    whole = run("problems", str(MODEL), "--tp", "2", "--tokens", "1", "--json").stdout
    assert (
        run("problems", "-", "--tp", "2", "--tokens", "1", "--json", text=MODEL.read_bytes()).stdout == whole
    )


def test_empty_standard_input_is_named(run: Run) -> None:
    done = run("problems", "-", text=b"")
    assert "standard input is empty" in str(done.exception)


# ---- rejected input ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("problems",), ("import",)], ids=" ".join)
def test_rejected_lines_are_counted_and_fail_only_where_nothing_is_left(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    some, none = tmp_path / "some.csv", tmp_path / "none.csv"
    some.write_bytes(GOOD + BAD)
    none.write_bytes(BAD + BAD)
    for as_json in ((), ("--json",)):
        done = run(*command, str(some), *as_json)
        assert done.exit_code == 0
        assert f"1 line of {some} rejected" in done.stderr
        done = run(*command, str(none), *as_json)
        assert done.exit_code == 1
        assert f"2 lines of {none} rejected" in done.stderr
    assert run(*command, str(EXAMPLE)).stderr == ""


def test_a_file_without_a_right_line_is_not_tuned(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    path.write_bytes(BAD)
    done = run("tune", str(path), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["problems"] == []
    assert "1 line of" in done.stderr


# ---- what has no worker, and models --------------------------------------------------------------


def test_an_import_that_tunes_says_that_no_worker_serves_the_class(
    run: Run, home: dict[str, str], complaining: Loaded
) -> None:
    code, _, err = complaining.run("import", str(MODEL), "--tune", "--device", "cuda")
    assert code == 2
    assert (
        "no worker serves 'cuda', nothing was imported: start one (gemmtune worker --device cuda)"
        in " ".join(err.split())
    )
    engine = open_engine(home["GEMMTUNE_DATABASE_URL"])
    fill(engine, [problem()])
    from db import workers
    from db.engine import writing

    with writing(engine) as connection:
        workers.mark(connection, ["worker-CPU-1"], "stopped")
    engine.dispose()
    done = run("import", str(MODEL), "--tokens", "1", "--tune", "--device", "cpu", "--json")
    assert done.exit_code == 0, done.output
    assert "no worker serves cpu:x86_64:AMD-EPYC-9B14:2" in done.stderr
    assert json.loads(done.stdout)["tuning"]["total"] > 0


def test_a_models_name_on_a_hub_says_what_to_download(complaining: Loaded) -> None:
    for arguments in (
        ("model", "meta-llama/Llama-3-8B"),
        ("model", "meta-llama/Llama-3-8B", "--for", "torch"),
    ):
        code, _, err = complaining.run(*arguments)
        said = " ".join(err.split())
        assert code == 2
        assert "gemmtune uses no network" in said
        assert "hf download meta-llama/Llama-3-8B config.json --local-dir Llama-3-8B" in said
    assert "does not exist" in complaining.run("model", "models/none.json", "--for", "torch")[2]


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("problems", str(EXAMPLE)), ("devices",), ("export", "--list"), ("pretuned", "list"),
        ("portfolio", "show"), ("kernels",), ("provenance", "list"), ("keys", "list"), ("status",),
        ("tunings",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_tables_fit_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    from rich.console import Console

    written = io.StringIO()
    console = Console(file=written, width=80, force_terminal=False)
    for name, module in list(sys.modules.items()):
        if name.startswith("service.commands") and hasattr(module, "out"):
            monkeypatch.setattr(module, "out", console)
    run("import", str(EXAMPLE), "--device", "cuda:sm_90:NVIDIA-H200:132")
    done = run(*arguments)
    assert done.exit_code == 0, done.exception
    text = written.getvalue()
    assert text
    assert "…" not in text, "nothing is cut"
    assert not set("┃│┏") & set(text), "one style"
    # Lines of tables begin with a blank; others are left for the terminal, or a script, to break.
    assert all(len(line) <= 80 for line in text.splitlines() if line.startswith(" "))


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (NoSuchName("there is no job 'j'"), 404, "not-found"),
        (ClassInUse("cuda:sm_90:A:1 has a worker; stop it first"), 409, "class-in-use"),
        (KeyRefused("scopes are read, not write"), 422, "key-refused"),
    ],
)
def test_refusals_of_commands_are_no_failures_of_ours(error: Exception, status: int, name: str) -> None:
    document = error_document(error)["error"]
    assert (document["status"], document["type"]) == (status, f"urn:gemmtune:{name}")
    assert document["detail"] == str(error)
