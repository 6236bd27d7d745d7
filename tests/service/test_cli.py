"""The command line as a user and a script meet it: real processes, exit codes, JSON, words of errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from backends.cache import BinaryCache
from backends.registry import find_device
from service.cli import COMMANDS, app
from tests.service.loaded import ROOT, Loaded, loaded
from tuners.ceilings import CeilingStore

EXAMPLE = ROOT / "docs" / "examples" / "gpt2-untuned.csv"


def settings(cache: BinaryCache) -> dict[str, str]:
    return {
        **os.environ,
        "GEMMTUNE_CACHE_DIR": str(cache.root.parent),
        "GEMMTUNE_DATABASE_URL": f"sqlite:///{cache.root.parent}/gemmtune.sqlite",
        "COLUMNS": "200",
    }


def start(cache: BinaryCache, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "service.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**settings(cache), **environment},
    )


def run(cache: BinaryCache, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = start(cache, *arguments, **environment)
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> BinaryCache:
    """A home of this suite's own, with the kernels that others have compiled."""
    link = tmp_path_factory.mktemp("home") / "kernels"
    link.symlink_to(cache.root.resolve())
    shutil.copytree(cache.root.parent / "ceilings", link.parent / "ceilings")
    return BinaryCache(link)


@pytest.fixture(scope="module")
def command(kernels: BinaryCache) -> Loaded:
    """For commands that do nothing but complain."""
    return loaded(settings(kernels))


#: Few candidates: each is compiled.
FEW = ("--seconds", "0.4", "--candidates", "3")
SMALL = ("--m", "8", "--n", "48", "--k", "64", *FEW)


def test_one_problem_as_table_and_as_json(kernels: BinaryCache) -> None:
    code, out, err = run(kernels, "tune", *SMALL)
    assert code == 0, err
    assert "8x48x64 fp32 NN" in out
    assert any(word in out for word in ("WIN", "TIE", "LOSS"))
    code, out, err = run(
        kernels, "tune", *SMALL, "--dtype", "bf16", "--trans-b", "--epilogue", "bias_gelu", "--json"
    )
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    (result,) = answer["results"]
    assert result["wire"] == {
        "m": 8,
        "n": 48,
        "k": 64,
        "dtype": "bf16",
        "trans_b": True,
        "epilogue": "bias_gelu",
    }
    assert result["verdict"]["judgement"] in ("WIN", "TIE", "LOSS")
    baselines = 2  # they run whatever the budget
    assert sum(result["counts"]["statuses"].values()) <= 3 + baselines
    assert result["roofline_share"] > 0
    assert result["binds"] in ("compute", "memory")
    assert answer["environment"]["vendor"] == "cpu"
    assert answer["policy"]["cache"] == "cold"


def test_a_file_with_bad_lines_is_tuned_and_the_exit_code_says_so(
    kernels: BinaryCache, tmp_path: Path
) -> None:
    path = tmp_path / "untuned.csv"
    path.write_bytes(
        b"GemmTunableOp_float_NN,nn_16_8_32_ld_16_32_16\r\n"
        b"GemmTunableOp_float_NN,nn_16_8_32_ld_16_32_16\n"
        b"GemmTunableOp_float_NN,nn_0_8_32_ld_16_32_16\n"
        b"GemmTunableOp_Half_TN,tn_9999_999_999\n"
        b"GemmTunableOp_float_N"
    )
    code, out, err = run(kernels, "tune", str(path), *FEW, "--max-gflop", "1", "--json")
    assert code == 0, err
    assert "2 lines of" in err
    answer = json.loads(out)
    assert answer["format"] == "tunableop-untuned"
    assert [(p["m"], p["n"], p["k"], p["count"]) for p in answer["problems"]] == [
        (8, 16, 32, 2),
        (999, 9999, 999, 1),
    ]
    assert [r["line"] for r in answer["rejected"]] == [3, 5]
    assert len(answer["results"]) == 1
    assert [s["reason"] for s in answer["skipped"]] == ["over the limit of 1 GFLOP"]


def test_an_output_file_is_gone_on_from(kernels: BinaryCache, tmp_path: Path) -> None:
    output = str(tmp_path / "out.jsonl")
    assert run(kernels, "tune", *SMALL, "--output", output)[0] == 0
    size = Path(output).stat().st_size
    code, out, _ = run(kernels, "tune", *SMALL, "--output", output, "--json")
    assert code == 0
    assert len(json.loads(out)["results"]) == 1
    assert Path(output).stat().st_size == size, "nothing was measured again"


def test_ctrl_c_ends_it_with_what_was_measured_kept(kernels: BinaryCache, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    process = start(
        kernels, "tune", str(EXAMPLE), "--max-gflop", "0.3", "--output", str(output), "--seconds", "60"
    )
    for _ in range(600):
        if output.exists() and output.read_text().count('"outcome"') > 2:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again to go on" in err
    assert output.read_text().endswith("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--m", "0", "--n", "4", "--k", "4"), "m must be between 1 and 2147483647, not 0"),
        (("--m", "-5", "--n", "4", "--k", "4"), "m must be between 1 and 2147483647, not -5"),
        (("--m", "4", "--n", "99999999999999999999", "--k", "4"), "n must be between"),
        (("--m", "4.5", "--n", "4", "--k", "4"), "'--m'"),
        (("--m", "4", "--n", "4"), "k is missing"),
        (("--m", "4", "--n", "4", "--k", "4", "--dtype", "fp17"), "dtype 'fp17' is unknown; known: fp64"),
        (("--m", "4", "--n", "4", "--k", "4", "--lda", "2"), "lda 2 is too small"),
        (("--m", "4", "--n", "4", "--k", "4", "--device", "cuda:sm_90"), "available: cpu:"),
        (("--m", "4", "--n", "4", "--k", "4", "--strategy", "magic"), "strategy 'magic' is unknown"),
        (
            ("--m", "4", "--n", "4", "--k", "4", "--strategy-option", "optimism=20"),
            "a number from 0 to 10, not 20.0",
        ),
        (("--m", "4", "--n", "4", "--k", "4", "--family", "nobody"), "family 'nobody' is unknown"),
        (
            ("--m", "4", "--n", "4", "--k", "4", "--mode", "graph"),
            "mode 'graph' is unknown here; known: eager",
        ),
        (("--m", "4", "--n", "4", "--k", "4", "--seconds", "-1"), "above 0, not -1.0"),
        (("--m", "4", "--n", "4", "--k", "4", "--seconds", "inf"), "a finite number of seconds"),
        (("--m", "4", "--n", "4", "--k", "4", "--seconds", "nan"), "a finite number of seconds"),
        (("--m", "4", "--n", "4", "--k", "4", "--candidates", "0"), "candidates must be at least 1, not 0"),
        (("--m", "4", "--n", "4", "--k", "4", "--margin", "7"), "margin must be"),
        (("--m", "4", "--n", "4", "--k", "4", "--memory-share", "7"), "memory_share must be"),
        ((), "nothing to tune"),
        (("no-such-file.csv",), "no-such-file.csv"),
        ((str(EXAMPLE), "--m", "4"), "not both"),
        ((str(EXAMPLE), "--format", "cobol"), "cobol"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_clear_line(command: Loaded, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = command.run("tune", *arguments)
    assert words in " ".join((out + err).split()), (out, err)
    assert "Traceback" not in err
    assert code == 2


def test_devices_and_problems(kernels: BinaryCache) -> None:
    code, out, _ = run(kernels, "devices", "--json")
    assert code == 0
    (device,) = json.loads(out)["devices"]
    assert device["selector"].startswith("cpu:")
    assert "cpu:" in run(kernels, "devices")[1]
    code, out, _ = run(kernels, "problems", str(EXAMPLE), "--json")
    assert code == 0
    answer = json.loads(out)
    assert len(answer["problems"]) == 35
    assert answer["rejected"] == []
    assert "35 problems in 35 lines of tunableop-untuned" in run(kernels, "problems", str(EXAMPLE))[1]


def test_without_a_compiler_the_libraries_are_tuned_and_it_is_said(
    kernels: BinaryCache, tmp_path: Path
) -> None:
    here = find_device("cpu").environment
    without = replace(here, libraries={n: v for n, v in here.libraries.items() if n != "compiler"})
    made_up = CeilingStore(kernels.root.parent / "ceilings").get(here)
    assert made_up is not None
    CeilingStore(tmp_path / "cache" / "ceilings").put(without, made_up)
    code, out, err = run(
        kernels, "tune", *SMALL, PATH=str(tmp_path), CXX="", GEMMTUNE_CACHE_DIR=str(tmp_path / "cache")
    )
    assert code == 0, err
    assert "packed: no C++ compiler: only library candidates can run; install g++" in " ".join(out.split())
    assert "openblas" in out


def test_a_cache_folder_that_refuses_is_named(kernels: BinaryCache) -> None:
    code, _, err = run(kernels, "tune", *SMALL, GEMMTUNE_CACHE_DIR="/proc/nowhere")
    assert code == 2
    assert "/proc/nowhere" in err
    assert "GEMMTUNE_CACHE_DIR" in err


def test_a_bad_setting_is_named(kernels: BinaryCache) -> None:
    code, _, err = run(kernels, "tune", *SMALL, GEMMTUNE_MARGIN="much")
    assert code == 2
    assert "GEMMTUNE_MARGIN" in err
    assert "'much'" in err


def test_operands_beyond_the_memory_share_have_no_verdict_but_a_reason(kernels: BinaryCache) -> None:
    code, out, _ = run(kernels, "tune", "--m", "400000", "--n", "400000", "--k", "10", "--json")
    assert code == 1
    (result,) = json.loads(out)["results"]
    assert result["verdict"] is None
    assert "MiB" in result["error"]


def test_the_list_of_commands_is_their_own_help() -> None:
    root = typer.main.get_command(app)
    context = root.make_context("gemmtune", ["devices"], resilient_parsing=True)
    for name, (_, text) in COMMANDS.items():
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        assert command.name == name
        assert " ".join((command.help or "").split("\n\n")[0].split()) == text
    assert root.get_command(context, "nobody") is None  # type: ignore[attr-defined]


def test_help_imports_no_command() -> None:
    program = (
        "import sys\nsys.argv = ['gemmtune', '--help']\nfrom service.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "late = ('service.commands', 'sqlalchemy', 'numpy')\n"
        "assert not [name for name in sys.modules if name.startswith(late)]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
