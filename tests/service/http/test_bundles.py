"""Bundles over HTTP: built in the background, downloaded in parts, and every refusal."""

from __future__ import annotations

import json
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from backends.cache import BinaryCache
from backends.errors import CompileError
from backends.kernels.families import FAMILIES
from backends.packages.bundle import Binary, Measured, Row
from backends.packages.bundle_file import BundleFile
from backends.problem import from_linear
from service import bundle_builds, bundles
from service.app import create_app
from service.bundle_builds import BundleBuilds
from service.records import BundleProgress, BundleReport
from service.settings import Settings
from tests.backends.packages.host_row import launched
from tests.backends.packages.test_package import DECODE, GEMV, LAYER, WGMMA
from tests.backends.weight_samples import weights
from tests.db.samples import BASELINE
from tests.service.http.filled import GPU
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits
from tests.service.wins import HERE, SMALL, store_here, store_win

PATH, H200 = "/v1/bundles", str(GPU.device_class)
ASKED = {"device": H200}
OTHERS = [from_linear(1, 1000 + number, 4096, "bf16") for number in range(3)]


def built(client: httpx.Client, path: str = PATH, **asked: Any) -> httpx.Response:
    """The answer once the bundle is built."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        response = client.get(path, params=ASKED | asked)
        if response.status_code != 202:
            return response
        fits(BundleProgress, response)
        time.sleep(0.02)
    raise AssertionError("it is never built")


def saved(response: httpx.Response, folder: Path) -> BundleFile:
    path = folder / f"{response.headers['x-bundle-digest'][:8]}.gtb"
    path.write_bytes(response.content)
    found = BundleFile(path)
    found.verify()
    return found


class Compiler:
    """Stands in for compiling: each row's binary is its problem's id. Waits while `go` is clear, `asked`
    once it was called; `refused` are problems that do not compile."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.asked = threading.Event()
        self.refused: set[str] = set()
        self.compiled: list[tuple[str, str]] = []

    def __call__(self, one: Measured, target: str, cache: BinaryCache) -> Row:
        self.asked.set()
        self.go.wait(30)
        if one.problem.id in self.refused:
            raise CompileError("NVRTC refuses unit.cu", "the log")
        self.compiled.append((one.problem.id, target))
        data = one.problem.id.encode()
        digest = sha256(data).hexdigest()
        row = {
            "problem": {"id": one.problem.id}, "environment": one.environment.id,
            "verdict": dict(one.verdict), "launches": [{"binary": digest}],
        }  # fmt: skip
        return Row(row, {digest: Binary(data, ".cubin")}, one.environment)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    made = Compiler()
    monkeypatch.setattr(bundles, "describe_row", made)
    yield made
    made.go.set()


# ---- the file ------------------------------------------------------------------------------------


def test_winners_are_compiled_and_served(client: httpx.Client, engine: Engine, tmp_path: Path) -> None:
    session = store_win(engine, DECODE, GEMV, GPU)
    store_win(engine, LAYER, WGMMA, GPU)
    first = client.get(PATH, params=ASKED)
    assert first.status_code == 202
    assert first.headers["retry-after"] == "2"
    response = built(client)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/zip"
    named = 'attachment; filename="gemmtune-cuda-sm_90-NVIDIA-H200-132.gtb"'
    assert response.headers["content-disposition"] == named
    with zipfile.ZipFile(BytesIO(response.content)) as file:
        digest = sha256(file.read("manifest.json")).hexdigest()
    assert response.headers["x-bundle-digest"] == digest
    assert response.headers["etag"] == f'"{digest}"'
    found = saved(response, tmp_path)
    rows = {row["problem"]["id"]: row for row in found.manifest["rows"]}
    assert set(rows) == {DECODE.id, LAYER.id}
    verdict = rows[DECODE.id]["verdict"]
    assert verdict.pop("decided_at")
    assert verdict == {
        "judgement": "WIN", "seconds": 1e-6, "baseline_seconds": 3e-6, "baseline": "numpy",
        "baseline_family": "numpy",
        "speedup": [2.5, 3.0, 3.5], "rounds": 8, "session": session,
    }  # fmt: skip
    assert found.manifest["device"]["class"] == H200

    report = fits(BundleReport, built(client, f"{PATH}/report"))
    assert (report["written"], report["omitted"], report["digest"]) == (2, {}, digest)
    assert report["gain"]["geometric_mean"] == pytest.approx(3.0)
    assert report["bytes"] == len(response.content)
    same = client.get(f"{PATH}/report", params={"digest": digest})
    assert same.json() == report
    fault_of(client.get(f"{PATH}/report", params={"digest": "0" * 64}), 404)


@pytest.mark.usefixtures("compiler")
def test_a_known_bundle_is_not_sent_again(client: httpx.Client, engine: Engine) -> None:
    store_win(engine, DECODE, GEMV, GPU)
    tag = built(client).headers["etag"]
    again = client.get(PATH, params=ASKED, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = client.get(PATH, params=ASKED, headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


@pytest.mark.usefixtures("compiler")
def test_a_bundle_is_sent_in_parts(client: httpx.Client, engine: Engine) -> None:
    for problem in OTHERS:
        store_win(engine, problem, GEMV, GPU)
    whole = built(client)
    assert whole.headers["accept-ranges"] == "bytes"
    assert "content-encoding" not in whole.headers
    tag, half = whole.headers["etag"], len(whole.content) // 2
    rest = client.get(PATH, params=ASKED, headers={"Range": f"bytes={half}-", "If-Range": tag})
    assert rest.status_code == 206
    assert rest.headers["content-range"] == f"bytes {half}-{len(whole.content) - 1}/{len(whole.content)}"
    assert whole.content[:half] + rest.content == whole.content
    changed = client.get(PATH, params=ASKED, headers={"Range": f"bytes={half}-", "If-Range": '"older"'})
    assert (changed.status_code, changed.content) == (200, whole.content)
    beyond = client.get(PATH, params=ASKED, headers={"Range": f"bytes={len(whole.content)}-"})
    assert beyond.status_code == 416


# ---- the background ------------------------------------------------------------------------------


def test_progress_is_told_while_it_is_built(client: httpx.Client, engine: Engine, compiler: Compiler) -> None:
    for problem in OTHERS:
        store_win(engine, problem, GEMV, GPU)
    compiler.go.clear()
    for path in (PATH, f"{PATH}/report"):
        progress = fits(BundleProgress, client.get(path, params=ASKED))
        assert (progress["status"], progress["device_class"], progress["done"]) == ("building", H200, 0)
    compiler.go.set()
    assert built(client).status_code == 200
    assert sorted(compiler.compiled) == sorted((problem.id, "sm_90") for problem in OTHERS), "once"


def test_who_waited_gets_it_though_others_tune(
    client: httpx.Client, engine: Engine, compiler: Compiler, tmp_path: Path
) -> None:
    store_win(engine, OTHERS[0], GEMV, GPU)
    compiler.go.clear()
    assert client.get(PATH, params=ASKED).status_code == 202
    assert compiler.asked.wait(30), "the rows are read"
    store_win(engine, OTHERS[1], GEMV, GPU)
    compiler.go.set()
    first = built(client)
    assert saved(first, tmp_path).problem_ids == [OTHERS[0].id]
    second = client.get(PATH, params=ASKED)
    assert second.status_code == 202, "who comes again wants the rows of now"
    assert len(saved(built(client), tmp_path).problem_ids) == 2


def test_a_bundle_that_was_deleted_is_built_again(
    client: httpx.Client, engine: Engine, settings: Settings, compiler: Compiler
) -> None:
    store_win(engine, DECODE, GEMV, GPU)
    first = built(client)
    for path in (settings.cache_dir / "bundles").iterdir():
        path.unlink()
    again = built(client)
    assert again.content == first.content
    assert len(compiler.compiled) == 2


@pytest.mark.usefixtures("compiler")
def test_only_the_latest_are_kept(
    client: httpx.Client, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_builds, "_KEPT", 2)
    digests = []
    for problem in OTHERS:
        store_win(engine, problem, GEMV, GPU)
        digests.append(built(client).headers["x-bundle-digest"])
    names = {path.name for path in (settings.cache_dir / "bundles").iterdir()}
    assert names == {f"{digest}.gtb" for digest in digests[1:]}
    fault_of(client.get(f"{PATH}/report", params={"digest": digests[0]}), 404)


def test_the_service_ends_while_one_is_built(settings: Settings, engine: Engine, compiler: Compiler) -> None:
    for problem in OTHERS:
        store_win(engine, problem, GEMV, GPU)
    compiler.go.clear()
    app = create_app(settings)
    builds: BundleBuilds = app.state.bundles

    def release() -> None:
        builds._closing.wait(30)
        compiler.go.set()

    with serving(settings, app) as client:
        assert client.get(PATH, params=ASKED).status_code == 202
        threading.Thread(target=release).start()
    assert len(compiler.compiled) <= 1, "what was being compiled, and no more"
    assert not [thread for thread in threading.enumerate() if thread.name == "bundle"]


# ---- what is left out, and refusals --------------------------------------------------------------


def test_what_cannot_be_compiled_is_left_out(
    client: httpx.Client, engine: Engine, compiler: Compiler, tmp_path: Path
) -> None:
    for problem in OTHERS[:2]:
        store_win(engine, problem, GEMV, GPU)
    store_win(engine, OTHERS[2], BASELINE, GPU)
    compiler.refused = {OTHERS[0].id}
    assert saved(built(client), tmp_path).problem_ids == [OTHERS[1].id]
    report = fits(BundleReport, built(client, f"{PATH}/report"))
    assert report["written"] == 1
    assert {reason: one["count"] for reason, one in report["omitted"].items()} == {
        "not compiled here: NVRTC refuses unit.cu": 1,
        "no kernel of our own was in the final": 1,
    }


def test_a_refusal_does_not_outlive_its_reason(
    client: httpx.Client, engine: Engine, compiler: Compiler
) -> None:
    store_win(engine, OTHERS[0], GEMV, GPU)
    compiler.refused = {OTHERS[0].id}
    assert client.get(PATH, params=ASKED).status_code == 202
    deadline = time.monotonic() + 30
    while any(thread.name == "bundle" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store_win(engine, OTHERS[1], GEMV, GPU)
    assert built(client).status_code == 200


def test_a_retired_version_is_left_out(client: httpx.Client, engine: Engine) -> None:
    store_win(engine, DECODE, replace(GEMV, version=1), GPU)
    fault = fault_of(built(client), 404)
    assert fault["type"] == "urn:gemmtune:nothing-to-bundle"
    assert "not legal here: version 1 of gemv is another kernel; this is 2" in fault["detail"]
    assert fault["report"]["written"] == 0


def test_a_class_without_a_win_has_none(client: httpx.Client, engine: Engine) -> None:
    store_win(engine, DECODE, BASELINE, GPU)
    fault = fault_of(client.get(PATH, params=ASKED), 404)
    assert fault["type"] == "urn:gemmtune:nothing-to-bundle"
    assert fault["detail"].startswith("none of 1 row can be written")
    other = fault_of(client.get(PATH, params={**ASKED, "policy": "eager-cold-none"}), 404)
    assert "nothing was measured on cuda:sm_90:NVIDIA-H200:132 under eager-cold-none" in other["detail"]
    assert fault_of(client.get(PATH, params={"device": "hip"}), 404)["type"] == "urn:gemmtune:unknown-device"


def test_more_rows_than_allowed(settings: Settings, engine: Engine) -> None:
    for problem in OTHERS:
        store_win(engine, problem, GEMV, GPU)
    with serving(settings.model_copy(update={"max_bundle_rows": 2})) as client:
        fault = fault_of(client.get(PATH, params=ASKED), 409)
    assert (fault["type"], fault["rows"]) == ("urn:gemmtune:bundle-too-large", 3)
    assert "has 3 rows, more than 2 of a bundle (GEMMTUNE_MAX_BUNDLE_ROWS)" in fault["detail"]


def test_binaries_for_another_name_of_the_architecture(
    client: httpx.Client, engine: Engine, compiler: Compiler
) -> None:
    store_win(engine, DECODE, GEMV, GPU)
    assert built(client, target="sm_90a").status_code == 200
    assert compiler.compiled == [(DECODE.id, "sm_90a")]
    for wrong in ("sm_80", "gfx942", "sm_1"):
        fault = fault_of(client.get(PATH, params={**ASKED, "target": wrong}), 422)
        assert f"'{wrong}' is no architecture of {H200}; known: sm_90, sm_90a" in fault["detail"]


@pytest.mark.usefixtures("compiler")
def test_winners_of_quantised_weights_are_rows(client: httpx.Client, engine: Engine, tmp_path: Path) -> None:
    problem = weights(1, 4096, 4096, zero_b="eight")
    store_win(engine, problem, next(iter(FAMILIES["dequant-ring"].solutions(problem, GPU))), GPU)
    found = saved(built(client), tmp_path)
    assert [row["problem"]["id"] for row in found.manifest["rows"]] == [problem.id]


@pytest.mark.usefixtures("compiler")
def test_a_folder_that_cannot_be_written(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    store_win(engine, DECODE, GEMV, GPU)
    settings.cache_dir.mkdir(exist_ok=True)
    (settings.cache_dir / "bundles").write_text("a file")
    assert fault_of(built(client), 503)["type"] == "urn:gemmtune:storage-failed"


def test_a_cpus_bundle_stays_on_its_machine(client: httpx.Client, engine: Engine, tmp_path: Path) -> None:
    store_here(engine)
    device = str(HERE.device_class)
    response = built(client, device=device)
    assert response.status_code == 200, response.text
    found = saved(response, tmp_path)
    assert found.problem_ids == sorted(problem.id for problem in SMALL)
    for row in found.manifest["rows"]:
        out, expected = launched(found, row, tmp_path)
        assert abs(out - expected).max() < 5e-2
    for name in ("X-Forwarded-For", "Forwarded"):
        for path in (PATH, f"{PATH}/report"):
            fault = fault_of(client.get(path, params={"device": device}, headers={name: "10.0.0.1"}), 403)
            assert fault["type"] == "urn:gemmtune:local-only"
            assert "gemmtune bundle" in fault["detail"]


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("", False)],
)
def test_who_is_on_this_machine(host: str, local: bool) -> None:
    from starlette.requests import Request

    from service.routes.bundles import _is_local

    scope: dict[str, Any] = {"type": "http", "headers": [], "client": (host, 1) if host else None}
    assert _is_local(Request(scope)) is local


def test_unknown_parameters_are_refused(client: httpx.Client) -> None:
    fault = fault_of(client.get(PATH, params={"digest": "0"}), 422)
    assert "unknown query parameter" in json.dumps(fault["errors"])
