"""gemmtune bundle: from this machine's database and from a service, of some problems, and its words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner
from typer.testing import Result as Done

from backends.cache import BinaryCache
from backends.packages.bundle_file import BundleError, BundleFile
from backends.problem import GemmProblem, from_linear
from backends.wire import problem_to_wire
from service import bundle_download
from service.cli import app
from service.formats import ReadOptions, read_file
from service.formats.model.config import ModelConfig
from service.model import bundle_outputs
from service.remote import Remote, ServiceAway, ServiceError
from service.settings import Settings
from service.startup import open_database
from tests.backends.packages.host_row import launched
from tests.db.samples import BASELINE
from tests.service.http.serving import serving
from tests.service.wins import HERE, SMALL, first_candidate, store_here, store_win

DEVICE = str(HERE.device_class)
#: A layer of the model below, and a family that has it.
LAYER = from_linear(1, 64, 32, "fp32")
#: Of a tuning: few candidates, which are compiled quickly.
QUICK = ("--seconds", "0.2", "--candidates", "4", "--no-progress")


@pytest.fixture
def home(tmp_path: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A user's database, with a win of each of the CPU's families and a tie."""
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{tmp_path / 'gemmtune.sqlite'}")
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(cache.root.parent))
    monkeypatch.setenv("GEMMTUNE_DEVICE", DEVICE)
    engine = open_database(Settings())
    store_here(engine)
    store_win(engine, from_linear(7, 48, 40, "fp32"), BASELINE, HERE)
    yield engine
    engine.dispose()


def call(*arguments: str) -> Done:
    return CliRunner().invoke(app, ["bundle", *arguments])


def asked(path: Path, *problems: GemmProblem) -> str:
    """A file of problems."""
    path.write_text("".join(json.dumps(problem_to_wire(problem)) + "\n" for problem in problems))
    return str(path)


@pytest.mark.usefixtures("home")
def test_a_bundle_of_this_machines_database(tmp_path: Path) -> None:
    path = tmp_path / "here.gtb"
    done = call("-o", str(path))
    assert done.exit_code == 0, done.output
    found = BundleFile(path)
    found.verify()
    assert f"{path}: 2 rows of {DEVICE}, geometric mean 3.000x, " in done.stdout
    assert f"digest {found.digest}" in done.stdout
    assert "1 left out: no kernel of our own was in the final" in done.stderr
    for row in found.manifest["rows"]:
        out, expected = launched(found, row, tmp_path)
        assert abs(out - expected).max() < 5e-2
    answer = json.loads(call("-o", str(path), "--json").stdout)
    report = answer.pop("report")
    assert answer == {
        "output": str(path), "digest": found.digest, "bytes": path.stat().st_size, "device_class": DEVICE,
        "policy_id": found.manifest["policy"]["id"], "requires": {"driver": None}, "rows": 2,
        "geometric_mean": pytest.approx(3.0), "asked": None,
    }  # fmt: skip
    assert (report["written"], report["digest"]) == (2, found.digest)


@pytest.mark.usefixtures("home")
def test_only_the_problems_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "some.gtb"
    unknown = from_linear(9, 9, 9, "fp32")
    done = call("-o", str(path), "--problems", asked(tmp_path / "some.jsonl", SMALL[0], unknown))
    assert done.exit_code == 0, done.output
    assert BundleFile(path).problem_ids == [SMALL[0].id]
    assert "1 of the 2 problems asked for has a row" in done.stderr
    assert "left out" not in done.stderr, "the tie was not asked for"
    done = call("-o", str(path), "--problems", asked(tmp_path / "other.jsonl", unknown))
    assert done.exit_code != 0
    assert f"none of the 1 problem was measured on {DEVICE}" in str(done.exception)


def _config(folder: Path) -> Path:
    """A small model's config.json."""
    config = folder / "config.json"
    values = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
        "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "vocab_size": 64, "torch_dtype": "float32",
    }  # fmt: skip
    config.write_text(json.dumps(values))
    return config


def test_only_the_problems_of_a_model(home: Engine, tmp_path: Path) -> None:
    config = _config(tmp_path)
    layers = read_file(config, ModelConfig.name, ReadOptions("", 1, (1,))).problems
    store_win(home, layers[0].problem, first_candidate(layers[0].problem), HERE)
    path = tmp_path / "model.gtb"
    done = call("-o", str(path), "--model", str(config), "--tokens", "1")
    assert done.exit_code == 0, (done.output, done.exception)
    assert BundleFile(path).problem_ids == [layers[0].problem.id]
    assert f"1 of the {len(layers)} problems asked for has a row" in done.stderr
    done = call("-o", str(path), "--model", str(config), "--tokens", "1", "--layers", "split")
    assert done.exit_code != 0
    assert "problems was measured on" in str(done.exception), "the row is of fused layers"


@pytest.mark.torch
def test_a_models_bundle_comes_from_the_service_and_its_lines_run(
    home: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --server the service compiles, and the printed lines serve a torch model from the file."""
    import gemmtune.torch
    import torch
    from gemmtune.torch import extension, race, served

    config = _config(tmp_path)
    layer = read_file(config, ModelConfig.name, ReadOptions("", 1, (1,))).problems[0].problem
    store_win(home, layer, first_candidate(layer), HERE)
    monkeypatch.setattr(bundle_outputs, "write_rows", lambda *_: pytest.fail("compiled here"))
    with serving(Settings()) as client:
        done = CliRunner().invoke(
            app,
            ["model", str(config), "--for", "torch", "--layers", "fused", "--tokens", "1", "--no-tune",
             "--device", DEVICE, "--server", str(client.base_url), "-o", str(tmp_path / "files")],
        )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    (path,) = (tmp_path / "files").glob("*.gtb")
    assert BundleFile(path).problem_ids == [layer.id]

    # The sample's verdict is against numpy: the race that decides for torch is not what is tested here.
    monkeypatch.setattr(served, "TORCH_DEFAULTS", ("numpy",))
    monkeypatch.setattr(race, "timed_on_cpu", lambda *_: 0.5)
    monkeypatch.setattr(extension, "_STATE", extension._State())
    monkeypatch.setenv(extension.SETTING, "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wire = problem_to_wire(layer)
    model = torch.nn.Linear(wire["k"], wire["n"], bias=False).requires_grad_(False)
    x = torch.randn(1, wire["k"])
    expected = model(x)
    names: dict[str, Any] = {"model": model}
    exec(done.stdout, names)
    with names["applied"]:
        assert names["applied"].modules == 1
        with gemmtune.torch.report() as count:
            assert torch.allclose(model(x), expected, rtol=1e-4, atol=1e-5)
        assert count.report().hits == 1


@pytest.mark.usefixtures("home")
def test_tuned_problems_are_rows_where_our_kernels_won(tmp_path: Path) -> None:
    """Whatever wins on this machine: the bundle has the WINs of a real tuning, and they compute."""
    file = asked(tmp_path / "tuned.jsonl", from_linear(6, 64, 96, "fp16"))
    tuned = CliRunner().invoke(app, ["tune", file, *QUICK, "--json"])
    assert tuned.exit_code == 0, (tuned.output, tuned.exception)
    results = json.loads(tuned.stdout)["results"]
    won = {
        one["problem_id"]
        for one in results
        if (one["verdict"]["targets"].get("bundle") or {}).get("judgement") == "WIN"
    }
    path = tmp_path / "tuned.gtb"
    done = call("-o", str(path), "--problems", file, "--json")
    if not won:
        assert "none of 1 row can be written" in str(done.exception)
        return
    assert done.exit_code == 0, (done.output, done.exception)
    found = BundleFile(path)
    assert set(found.problem_ids) == won
    for row in found.manifest["rows"]:
        out, expected = launched(found, row, tmp_path)
        assert abs(out - expected).max() < 5e-2


@pytest.mark.usefixtures("home")
def test_a_service_gives_the_same_bundle(tmp_path: Path) -> None:
    here, there, some = (tmp_path / f"{name}.gtb" for name in ("here", "there", "some"))
    assert call("-o", str(here)).exit_code == 0
    with serving(Settings()) as client:
        server = ("--server", str(client.base_url))
        done = call("-o", str(there), *server)
        assert done.exit_code == 0, (done.output, done.exception)
        assert there.read_bytes() == here.read_bytes()
        assert "1 left out: no kernel of our own was in the final" in done.stderr
        of = asked(tmp_path / "some.jsonl", SMALL[1])
        done = call("-o", str(some), "--problems", of, *server)
        assert done.exit_code == 0, (done.output, done.exception)
        other = call("-o", str(some), "--problems", asked(tmp_path / "other.jsonl", LAYER), *server)
        assert "none of the 1 problem has a row in the bundle of" in str(other.exception)
    direct = tmp_path / "direct.gtb"
    assert call("-o", str(direct), "--problems", of).exit_code == 0
    assert some.read_bytes() == direct.read_bytes()
    assert not list(tmp_path.glob(".*.part"))


def test_what_cannot_be_written(home: Engine, tmp_path: Path) -> None:
    done = call("-o", str(tmp_path / "none" / "here.gtb"))
    assert "cannot write" in str(done.exception)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert call("-o", str(tmp_path / "x.gtb"), "--problems", str(empty)).exit_code != 0
    store_win(home, SMALL[0], BASELINE, replace(HERE, product="Another CPU"))
    other = str(replace(HERE, product="Another CPU").device_class)
    assert "none of 1 row can be written" in str(call("-o", "x.gtb", "--device", other).exception)
    assert not (tmp_path / "x.gtb").exists()


# ---- downloading ---------------------------------------------------------------------------------


class Broken:
    """A service that is building at first, and breaks off every answer after `most` bytes."""

    def __init__(self, data: bytes, digest: str, most: int) -> None:
        self.data, self.digest, self.most = data, digest, most
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if len(self.requests) == 1:
            return httpx.Response(202, json={"done": 1, "total": 2}, headers={"Retry-After": "0"})
        start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        whole = self.data[start:]

        def body() -> Iterator[bytes]:
            yield whole[: self.most]
            if len(whole) > self.most:
                raise httpx.ReadError("the connection broke")

        headers = {"X-Bundle-Digest": self.digest, "Content-Length": str(len(whole))}
        return httpx.Response(206 if start else 200, headers=headers, content=body())


@pytest.fixture
def whole(home: Engine, tmp_path: Path) -> BundleFile:
    path = tmp_path / "whole.gtb"
    assert call("-o", str(path)).exit_code == 0
    return BundleFile(path)


def downloaded(
    service: Any, beside: Path, server: str = "http://127.0.0.1", **asked: Any
) -> tuple[Path, BundleFile, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    asked = {"device": "cpu", **asked}
    with Remote(server, httpx.MockTransport(service)) as remote:
        part, found = bundle_download.download(remote, beside, lambda *done: told.append(done), **asked)
    return part, found, told


def test_a_broken_download_is_resumed(
    whole: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_download, "_AGAIN_SECONDS", 0.0)
    data = whole.path.read_bytes()
    service = Broken(data, whole.digest, len(data) // 3 + 1)
    part, found, told = downloaded(service, tmp_path / "there.gtb")
    assert (part.read_bytes(), found.digest, told) == (data, whole.digest, [(1, 2)])
    ranges = [request.headers.get("range") for request in service.requests]
    step = service.most
    assert ranges == [None, None, f"bytes={step}-", f"bytes={2 * step}-"]
    assert {request.headers.get("if-range") for request in service.requests[2:]} == {f'"{whole.digest}"'}
    assert {request.url.params["device"] for request in service.requests} == {"cpu"}


def test_a_later_download_goes_on(whole: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_download, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(bundle_download, "_PATIENCE_SECONDS", -1.0)
    data, beside = whole.path.read_bytes(), tmp_path / "there.gtb"
    with pytest.raises(ServiceAway, match="the connection broke"):
        downloaded(Broken(data, whole.digest, 1000), beside)
    (part,) = tmp_path.glob(".there.gtb.*.part")
    assert part.read_bytes() == data[:1000]
    service = Broken(data, whole.digest, len(data))
    assert downloaded(service, beside)[0].read_bytes() == data
    assert [request.headers.get("range") for request in service.requests] == [None, None, "bytes=1000-"]


def test_a_damaged_download_is_not_kept(whole: BundleFile, tmp_path: Path) -> None:
    data = whole.path.read_bytes()
    for wrong, digest, why in (
        (data[:-1], whole.digest, "the download is damaged"),
        (data, "0" * 64, "the service sent a bundle of digest"),
    ):
        with pytest.raises(BundleError, match=why):
            downloaded(Broken(wrong, digest, len(data)), tmp_path / "there.gtb")
        assert not list(tmp_path.glob(".there.gtb.*.part"))


@pytest.mark.parametrize(
    ("server", "asked", "why"),
    [
        (
            "http://gpu.example",
            {"device": "cuda"},
            "anyone on the way can alter .*https, or pin .* by its digest",
        ),
        ("http://127.0.0.1.example.org", {}, "anyone on the way"),
        ("https://gpu.example", {"device": "cuda:sm_90"}, "sent a bundle of cpu:.*not of 'cuda:sm_90'"),
        ("https://gpu.example", {}, "a CPU's bundle runs code .* pinned by its digest"),
        ("http://gpu.example", {"digest": "0" * 64}, "sent the bundle [0-9a-f]{64}, not 0{64}"),
        ("https://gpu.example", {"digest": "abc"}, "must be the 64 hex digits"),
    ],
)
def test_a_bundle_that_is_not_to_be_trusted(
    whole: BundleFile, tmp_path: Path, server: str, asked: dict[str, str], why: str
) -> None:
    data = whole.path.read_bytes()
    with pytest.raises(BundleError, match=why):
        downloaded(Broken(data, whole.digest, len(data)), tmp_path / "there.gtb", server, **asked)
    assert not list(tmp_path.glob(".there.gtb.*.part"))


def test_a_pinned_bundle_may_come_from_anywhere(whole: BundleFile, tmp_path: Path) -> None:
    data = whole.path.read_bytes()
    service = Broken(data, whole.digest, len(data))
    pinned = f"sha256:{whole.digest.upper()}"
    part, _, _ = downloaded(service, tmp_path / "there.gtb", "http://gpu.example", digest=pinned)
    assert part.read_bytes() == data


def test_a_server_that_is_none(tmp_path: Path) -> None:
    def other(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"<html>")

    with pytest.raises(ServiceError, match="does not say which bundle it sends"):
        downloaded(other, tmp_path / "there.gtb")
