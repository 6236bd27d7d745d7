"""gemmtune model: from a config.json to the file that a program loads, here and through a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.packages.bundle_file import BundleFile
from service.demo import running
from tests.golden.texts import unpacked
from tests.service.loaded import Loaded, loaded
from tests.service.test_commands import Home
from tests.service.test_installed_torch import python

FEW = ("--seconds", "0.2", "--candidates", "3", "--tokens", "1,8")
MODELS = Path(__file__).parents[1] / "data" / "models"
H200 = ("--device", "cuda:sm_90", "--no-tune")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> Home:
    return Home(tmp_path_factory.mktemp("home"), cache.root.parent)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of four problems at each number of tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    values = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "vocab_size": 512, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


@pytest.fixture(scope="module")
def tuned(home: Home, config: str) -> Any:
    """The model, tuned here."""
    return home.json("model", config, "--for", "c-header", *FEW, "-o", str(home.folder / "files"))


@pytest.fixture(scope="module")
def command(home: Home, tuned: Any) -> Loaded:
    return loaded(home.environment)


def test_a_model_is_tuned_written_and_weighed_on_a_cpu(tuned: Any) -> None:
    assert (tuned["model"], tuned["tensor_parallel"], tuned["for"]) == ("tiny", 1, "c-header")
    assert (tuned["tuned"], tuned["failed"], tuned["skipped"]) == (10, [], 0)
    assert [one["tokens"] for one in tuned["tokens"]] == [1, 8]
    for one in tuned["tokens"]:
        assert (one["problems"], one["unknown"]) == (5, 0)
        assert one["gain"] == pytest.approx(one["baseline_seconds"] / one["seconds"])
        assert one["left"] == pytest.approx(one["best_gain"] / one["gain"])
    if tuned["written"]:
        (path,) = tuned["files"]
        assert f"((size_t){tuned['written']})" in Path(path).read_text()


def test_what_is_known_is_not_tuned_again(home: Home, tuned: Any, config: str) -> None:
    again = home.json("model", config, "--for", "c-header", *FEW, "-o", str(home.folder / "again"))
    assert (again["tuned"], again["tokens"]) == (0, tuned["tokens"])
    folder = str(home.folder / "more")
    more = home.json("model", config, "--for", "c-header", *FEW[:-1], "1,8,2", "-o", folder)
    assert more["tuned"] == 5
    untuned = home.json("model", config, "--for", "c-header", "--tokens", "4", "--no-tune", "-o", "none")
    assert (untuned["tuned"], untuned["tokens"][0]["unknown"], untuned["files"]) == (0, 5, [])


def test_standard_output_is_what_is_pasted_and_nothing_else(home: Home, tuned: Any, config: str) -> None:
    folder = str(home.folder / "paste")
    code, out, err = home.run("model", config, "--for", "c-header", *FEW, "-o", folder)
    assert code == (0 if tuned["written"] else 1)
    assert out.splitlines() == [line.replace("/files/", "/paste/") for line in tuned["lines"]]
    assert "10 problems, 10 of them known" in err
    assert "GEMMs of one forward pass on one device" in err


def test_through_a_service_as_here(home: Home, tuned: Any, config: str, tmp_path: Path) -> None:
    other = Home(tmp_path, Path(home.environment["GEMMTUNE_CACHE_DIR"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMTUNE_CACHE_DIR", home.environment["GEMMTUNE_CACHE_DIR"])
        with running(home.folder, "cpu") as address:
            there = ("--server", address, "-o", str(tmp_path / "files"))
            known = other.json("model", config, "--for", "c-header", *FEW, *there)
            assert (known["tuned"], known["tokens"], known["gain"]) == (0, tuned["tokens"], tuned["gain"])
            code, _, err = other.run("model", config, "--for", "c-header", *FEW[:-1], "1,16", *there)
            assert code in (0, 1), err
            assert "[5/5] " in err
            assert "left" in err
            code, _, err = other.run("model", config, "--for", "c-header", "--index", "0", *there)
            assert "--index and --total-seconds are for tuning here" in " ".join(err.split())


# ---- kernels of our own in a program ---------------------------------------------------------------


def test_a_torch_program_gets_layers_one_by_one_and_merged(home: Home, config: str) -> None:
    """The rows of both are tuned, compiled into one bundle, and weighed both ways."""
    folder = home.folder / "torch"
    command = ("model", config, "--for", "torch", *FEW[:-1], "1", "-o", str(folder))
    code, _, err = home.run(*command, "--max-workspace", "1MiB")
    assert code == 2
    assert "leave out --max-workspace" in " ".join(err.split())
    answer = home.json(*command)
    assert (answer["layers"], answer["failed"]) == ("both", [])
    split, merged = answer["tokens"]
    assert (split["layers"], merged["layers"]) == ("split", "merged")
    assert (split["problems"], split["unknown"], merged["unknown"]) == (5, 0, 0)
    assert split["baseline_seconds"] == merged["baseline_seconds"]
    assert merged["seconds"] <= split["seconds"] or answer["written"]
    if not answer["written"]:  # no kernel of our own won on this machine
        assert answer["files"] == []
        return
    (path,) = answer["files"]
    bundle = BundleFile(Path(path))
    bundle.verify()
    assert len(bundle.problem_ids) == answer["written"]
    assert f"table = gemmtune.load({path!r})" in answer["lines"]
    code, out, err = home.run("model", config, "--for", "torch", "--tokens", "1", "-o", str(folder))
    assert code == 0, err
    assert out.splitlines() == answer["lines"]
    assert "one device, layers one by one" in err
    assert "one device, apply(fuse=True)" in err


# ---- a GPU's results, without the GPU ---------------------------------------------------------------


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> Home:
    """What an H200 has measured, some of Llama-3-8B's problems among it."""
    folder = tmp_path_factory.mktemp("h200")
    unpacked(folder).rename(folder / "gemmtune.sqlite")
    home = Home(folder, cache.root.parent)
    assert home.run("db", "upgrade")[0] == 0
    return home


def reader(folder: Path, release: str) -> str:
    """An interpreter whose torch would load what the H200 has measured."""
    validators = (
        ("PT_VERSION", release), ("CUBLASLT_VERSION", "130100"), ("CUDA_DEVICE", "9.0:NVIDIA H200"),
    )  # fmt: skip
    return python(folder, version=f"{release}+cu130", device="NVIDIA H200", validators=validators)


def test_tunableop_takes_the_reader_from_an_interpreter(h200: Home, tmp_path: Path) -> None:
    """One of the three rows that are known is cuBLASLt's: the file carries it for each of eight devices."""
    model = ("model", str(MODELS / "deepseek-v3.json"), "--tp", "8", "--dtype", "bf16", "--tokens", "1,64")
    folder, target = tmp_path / "files", ("--python", reader(tmp_path, "2.14.0"))
    answer = h200.json(*model, "--for", "tunableop", *target, *H200, "-o", str(folder))
    assert answer["target"] == "torch-2.14.0+cuda"
    assert (answer["written"], answer["tune_again"]) == (1, 2)
    one, many = answer["tokens"]
    assert (one["gain"], one["unknown"]) == (1.0, 8)
    assert one["left"] == one["best_gain"] > 1
    assert (many["unknown"], many["left"]) == (9, 1.0)
    assert many["gain"] == many["best_gain"] > 1
    assert answer["files"] == [str(folder / f"tunableop_results{n}.csv") for n in range(8)]
    lines = Path(answer["files"][7]).read_text().splitlines()
    assert [line.partition(",")[0] for line in lines[:3]] == ["Validator"] * 3
    assert lines[3].startswith(
        "GemmTunableOp_BFloat16_TN,tn_3072_64_1536_ld_1536_1536_3072,Gemm_Cublaslt_id_66"
    )


def test_a_shipped_table_with_kernels_for_the_model_is_named(h200: Home, tmp_path: Path) -> None:
    model = ("model", str(MODELS / "llama-3-8b.json"), "--for", "torch", "--tokens", "1", *H200)
    _, _, err = h200.run(*model, "-o", str(tmp_path / "files"))
    said = " ".join(err.split())
    assert "unknown problems have kernels that won in the shipped table h200-bf16-decode: gemmtune" in said
    assert "gemmtune bundle --pretuned h200-bf16-decode -o h200-bf16-decode.gtb" in said
    answer = h200.json(*model, "-o", str(tmp_path / "again"))
    assert set(answer["pretuned"]) == {"h200-bf16-decode"}
    _, _, err = h200.run(*model, "--dtype", "fp32", "-o", str(tmp_path / "files"))
    assert "shipped table" not in err


def test_where_nothing_can_be_written_the_gain_that_is_left_is_shown(h200: Home, tmp_path: Path) -> None:
    model = ("model", str(MODELS / "llama-3-8b.json"), "--for", "tunableop", "--tokens", "1")
    target = ("--python", reader(tmp_path, "2.14.0"))
    code, out, err = h200.run(*model, *target, *H200, "-o", str(tmp_path / "files"))
    assert (code, out) == (1, "")
    assert "for torch 2.14.0 (CUDA 99.2)" in err
    assert "no file was written: none of 2 known rows can be" in err
    assert "1.202x" in err


def test_an_exports_reader_comes_from_an_interpreter(h200: Home, tmp_path: Path) -> None:
    path, interpreter = tmp_path / "results.csv", reader(tmp_path, "2.15.0")
    arguments = ("export", "tunableop", "--device", "cuda:sm_90", "-o", str(path))
    code, _, err = h200.run(*arguments, "--python", interpreter)
    assert code == 0, err
    assert "for torch 2.15.0 (CUDA 99.2)" in err
    written = path.read_text()
    typed = ("PT_VERSION:2.15.0", "CUBLASLT_VERSION:130100", "CUDA_DEVICE:9.0:NVIDIA H200")
    options = [f"--validator={text}" for text in typed]
    assert h200.run(*arguments, "--target", "torch-2.15+cuda", *options)[0] == 0
    assert path.read_text() == written
    code, _, err = h200.run(*arguments, "--python", interpreter, "--target", "torch-2.15+cuda")
    assert code == 2
    assert "both name the reader: give one" in " ".join(err.split())
    code, _, err = h200.run("export", "json", "--device", "cuda:sm_90", "--python", interpreter)
    assert code == 2
    assert "none reads json" in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--for", "cobol"), "--for 'cobol' is unknown; known: tunableop"),
        (("--for", "tunableop"), "which runs on cuda and hip devices, not on cpu"),
        (("--for", "vllm"), "there works: c-header"),
        (("--for", "c-header", "--tp", "3"), "cannot be divided among 3 devices"),
        (("--for", "c-header", "--tokens", "1,x"), "--tokens '1,x' must be whole numbers"),
        (("--for", "c-header", "--device", "cuda:sm_1"), "no device matches 'cuda:sm_1'"),
        (("--for", "c-header", "--server", "http://127.0.0.1:9"), "is `gemmtune serve` running there?"),
        (("--for", "c-header", "-o", "/proc/nothing"), "cannot write to /proc/nothing"),
        (("--for", "c-header", "--validator", "A"), "'A': it must be KEY:VALUE"),
        (("--for", "c-header", "--validator", "A:1"), "leave out validators"),
        (("--for", "c-header", "--seconds", "0", "--force"), "seconds"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_clear_line(
    command: Loaded, config: str, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = command.run("model", config, *arguments)
    assert words in " ".join((out + err).split()), (out, err)
    assert "Traceback" not in err
    assert code == 2


@pytest.mark.parametrize("name", ["tune", "problems"])
def test_a_models_options_are_for_models_files(command: Loaded, config: str, name: str) -> None:
    example = "docs/examples/gpt2-untuned.csv"
    code, _, err = command.run(name, example, "--tp", "2")
    assert code == 2
    assert "is of format tunableop-untuned: leave the option out" in " ".join(err.split())
    code, _, err = command.run(name, example, "--layers", "split")
    assert code == 2
    assert "--layers is for files that do not say it themselves" in " ".join(err.split())
    if name == "problems":
        code, out, _ = command.run(name, f"{config}/config.json", "--tp", "2", "--tokens", "3", "--json")
        assert code == 0
        assert {problem["m"] for problem in json.loads(out)["problems"]} == {3}
        split = ("--tokens", "3", "--layers", "split", "--json")
        code, out, _ = command.run(name, f"{config}/config.json", *split)
        assert {problem["n"] for problem in json.loads(out)["problems"]} == {32, 64, 128, 512}
