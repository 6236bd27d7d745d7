"""Compiled kernels over HTTP: the file, what a request may leave open, and every refusal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import CompileError, CompilerMissing
from backends.packages import package
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from backends.toolchains import code_object
from backends.toolchains.nvrtc import Nvrtc
from db.engine import writing
from db.values import put_problems, put_solutions
from service.settings import Settings
from tests.backends.packages.opened import opened
from tests.backends.packages.test_package import DECODE, GEMV, LAYER, LOOP, MFMA, MFMA_PROBLEM, triton
from tests.db.samples import BASELINE, screened, start, store_session
from tests.service.http.filled import GPU
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of

OLDER = replace(GPU, arch="sm_80", product="NVIDIA A100", units=108, uuid="GPU-2")
SMALLER = replace(GPU, product="NVIDIA H100 PCIe", units=114, uuid="GPU-3")
MI300X = replace(
    GPU, vendor="hip", arch="gfx942", product="AMD Instinct MI300X", units=304, uuid="GPU-4",
    driver="6.16.6", runtime="HIP 7.0", libraries={},
)  # fmt: skip
LOOPING = triton(**LOOP)
ANOTHER = from_linear(1, 500, 4096, "bf16")


def address(solution: Solution) -> str:
    return f"/v1/solutions/{solution.id}/binary"


def store(
    engine: Engine,
    winner: Solution,
    problem: GemmProblem = DECODE,
    environment: Environment = GPU,
    also: tuple[Solution, ...] = (),
) -> None:
    """A session that `winner` won; others were measured in it."""
    with writing(engine) as connection:
        begun = start(problem, environment=environment)
        store_session(connection, begun, winner, others=[screened(one) for one in also])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be compiled: (problem, solution, arch, units) of each."""
    found: list[Any] = []

    def build(
        problem: GemmProblem, solution: Solution, arch: str, units: int | None, _: BinaryCache
    ) -> bytes:
        found.append((problem, solution, arch, units))
        return b"a zip"

    monkeypatch.setattr(package, "build", build)
    return found


# ---- the file ------------------------------------------------------------------------------------


def test_a_kernel_is_compiled_and_described(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    store(engine, GEMV)
    response = client.get(address(GEMV))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/zip"
    named = f'attachment; filename="{GEMV.id}-sm_90.zip"'
    assert response.headers["content-disposition"] == named
    document, files = opened(response.content)
    assert files["kernel.cubin"].startswith(b"\x7fELF")
    assert (document["solution"]["id"], document["problem"]["id"], document["arch"]) == (
        GEMV.id,
        DECODE.id,
        "sm_90",
    )
    cache = BinaryCache(settings.cache_dir / "kernels")
    assert [path.read_bytes() for path in cache.root.rglob("*.cubin")] == [files["kernel.cubin"]]
    assert response.content == package.build(DECODE, GEMV, "sm_90", None, cache)

    known = {"If-None-Match": response.headers["etag"]}
    again = client.get(address(GEMV), headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == response.headers["etag"]
    older = client.get(address(GEMV), params={"arch": "sm_80"}, headers=known)
    assert older.status_code == 200
    assert opened(older.content)[0]["arch"] == "sm_80"


@pytest.mark.clang
@pytest.mark.parametrize("solution", [GEMV, MFMA], ids=["gemv", "tile-mfma"])
def test_a_code_object_for_an_amd_gpu(client: httpx.Client, engine: Engine, solution: Solution) -> None:
    """Its code object is for any setting of the architecture's features."""
    problem = DECODE if solution is GEMV else MFMA_PROBLEM
    store(engine, solution, problem, MI300X)
    response = client.get(address(solution))
    assert response.status_code == 200, response.text
    assert f'{solution.id}-gfx942.zip"' in response.headers["content-disposition"]
    document, files = opened(response.content)
    assert list(files) == ["kernel.hsaco"]
    assert code_object.read(files["kernel.hsaco"]).target == "gfx942"
    assert (document["vendor"], document["arch"], document["warp"]) == ("hip", "gfx942", 64)
    assert document["launched_by"] == "hipModuleLaunchKernel"
    assert [launch["file"] for launch in document["launches"]] == ["kernel.hsaco"] * len(document["launches"])
    other = client.get(address(solution), params={"arch": "gfx1201"})
    if solution is GEMV:
        assert opened(other.content)[0]["launches"][0]["block"] == [256, 1, 1], "eight warps of 32"
    else:
        assert "gfx1201 has no mfma instruction" in fault_of(other, 422)["detail"]


# ---- what a request leaves open ------------------------------------------------------------------


def test_the_problem_is_the_one_that_it_is_best_for(
    client: httpx.Client, engine: Engine, built: list[Any]
) -> None:
    store(engine, GEMV, also=(LOOPING,))
    store(engine, BASELINE, ANOTHER, also=(GEMV,))
    assert client.get(address(GEMV)).status_code == 200
    assert built == [(DECODE, GEMV, "sm_90", None)]
    store(engine, GEMV, LAYER)
    fault = fault_of(client.get(address(GEMV)), 409)
    assert fault["type"] == "urn:gemmtune:ambiguous-problem"
    assert (fault["parameter"], fault["choices"]) == ("problem", sorted([DECODE.id, LAYER.id]))
    assert f"{GEMV.id} is the best for 2 problems: " in fault["detail"]
    assert fault["detail"].endswith("; give problem")
    assert client.get(address(GEMV), params={"problem": ANOTHER.id}).status_code == 200
    assert built[1:] == [(ANOTHER, GEMV, "sm_90", None)]


def test_or_the_one_that_it_was_measured_for(client: httpx.Client, engine: Engine, built: list[Any]) -> None:
    store(engine, BASELINE, also=(GEMV,))
    assert client.get(address(GEMV)).status_code == 200
    assert built == [(DECODE, GEMV, "sm_90", None)]
    store(engine, BASELINE, ANOTHER, also=(GEMV,))
    fault = fault_of(client.get(address(GEMV)), 409)
    assert "was measured for 2 problems" in fault["detail"]


def test_what_was_never_measured_has_to_be_told(
    client: httpx.Client, engine: Engine, built: list[Any]
) -> None:
    with writing(engine) as connection:
        put_solutions(connection, [GEMV])
        put_problems(connection, [DECODE])
    fault = fault_of(client.get(address(GEMV)), 409)
    assert (fault["parameter"], fault["choices"]) == ("problem", [])
    fault = fault_of(client.get(address(GEMV), params={"problem": DECODE.id}), 409)
    assert (fault["type"], fault["choices"]) == ("urn:gemmtune:ambiguous-arch", [])
    assert "was measured on no architectures; give arch" in fault["detail"]
    response = client.get(address(GEMV), params={"problem": DECODE.id, "arch": "sm_100f"})
    assert response.status_code == 200
    assert built == [(DECODE, GEMV, "sm_100f", None)]


def test_the_architecture_is_the_one_measured_on(
    client: httpx.Client, engine: Engine, built: list[Any]
) -> None:
    store(engine, GEMV)
    store(engine, GEMV, environment=OLDER)
    fault = fault_of(client.get(address(GEMV)), 409)
    assert (fault["parameter"], fault["choices"]) == ("arch", ["sm_80", "sm_90"])
    assert client.get(address(GEMV), params={"arch": "sm_80"}).status_code == 200
    assert built == [(DECODE, GEMV, "sm_80", None)]


def test_an_architecture_that_nobody_knows(client: httpx.Client, engine: Engine, built: list[Any]) -> None:
    store(engine, GEMV, environment=replace(GPU, arch="sm_20"))
    for parameters in ({"arch": "sm_91"}, {}):
        fault = fault_of(client.get(address(GEMV), params=parameters), 422)
        (part,) = fault["errors"]
        assert part["parameter"] == "arch"
        assert f"{parameters.get('arch', 'sm_20')!r} is no architecture of ours; known: " in part["detail"]
        for name in GPU_TARGETS:
            assert name in part["detail"]
    assert not built


def test_multiprocessors_are_those_measured_on(
    client: httpx.Client, engine: Engine, built: list[Any]
) -> None:
    store(engine, LOOPING, LAYER)
    store(engine, LOOPING, LAYER, OLDER)
    for arch, units in (("sm_90", 132), ("sm_90a", 132), ("sm_80", 108)):
        assert client.get(address(LOOPING), params={"arch": arch}).status_code == 200
        assert built.pop() == (LAYER, LOOPING, arch, units)
    fault = fault_of(client.get(address(LOOPING), params={"arch": "sm_100a"}), 409)
    assert (fault["type"], fault["choices"]) == ("urn:gemmtune:ambiguous-units", [])
    assert "and it was measured on no device of sm_100; give units" in fault["detail"]
    store(engine, LOOPING, LAYER, SMALLER)
    fault = fault_of(client.get(address(LOOPING), params={"arch": "sm_90"}), 409)
    assert (fault["parameter"], fault["choices"]) == ("units", ["114", "132"])
    assert "and it was measured on devices of sm_90 with 114, 132; give units" in fault["detail"]
    assert client.get(address(LOOPING), params={"arch": "sm_90", "units": 99}).status_code == 200
    assert built == [(LAYER, LOOPING, "sm_90", 99)]
    fault_of(client.get(address(LOOPING), params={"arch": "sm_90", "units": 0}), 422)


# ---- refusals ------------------------------------------------------------------------------------


def test_what_is_not_there(client: httpx.Client, engine: Engine, built: list[Any]) -> None:
    store(engine, GEMV)
    assert "there is no solution 'gemv'" in fault_of(client.get("/v1/solutions/gemv/binary"), 404)["detail"]
    for name in ("tn_1x1x1_bf16-0", "..", "a b"):
        fault = fault_of(client.get(address(GEMV), params={"problem": name}), 404)
        assert fault["detail"] == f"there is no problem {name!r}"
    assert not built


@pytest.mark.parametrize(
    ("solution", "words"),
    [
        (
            BASELINE,
            "a solution of numpy is a library's call: there is no binary; its attributes are the ident",
        ),
        (Solution("cublaslt", 1, {"algorithm": 66}, "12.8.4"), "a solution of cublaslt is a library's call"),
        (Solution("packed", 1, {"threads": 2}), "packed is compiled for the CPU that it runs on"),
    ],
)
def test_a_library_has_no_binary(
    client: httpx.Client, engine: Engine, solution: Solution, words: str
) -> None:
    store(engine, BASELINE, also=(solution,))
    for parameters in ({}, {"arch": "sm_90", "problem": DECODE.id}):
        fault = fault_of(client.get(address(solution), params=parameters), 409)
        assert fault["type"] == "urn:gemmtune:no-binary"
        assert words in fault["detail"]


def test_a_solution_that_is_not_legal(client: httpx.Client, engine: Engine) -> None:
    store(engine, GEMV)
    store(engine, BASELINE, LAYER)
    fault = fault_of(client.get(address(GEMV), params={"problem": LAYER.id}), 422)
    assert fault["type"] == "urn:gemmtune:illegal-solution"
    assert fault["detail"] == "1 to 1 columns beside the streamed operand, not 256"


def test_without_a_compiler(
    client: httpx.Client, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any) -> bytes:
        raise CompilerMissing("NVRTC is not to be had; pip install 'gemmtune[cuda]'")

    store(engine, GEMV)
    monkeypatch.setattr(package, "build", absent)
    response = client.get(address(GEMV))
    fault = fault_of(response, 503)
    assert (fault["type"], fault["detail"]) == (
        "urn:gemmtune:compiler-missing",
        "NVRTC is not to be had; pip install 'gemmtune[cuda]'",
    )
    assert response.headers["retry-after"] == str(settings.retry_after_seconds)


def test_a_compiler_that_refuses(
    client: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = iter(["short\nTraceback (most recent call last)\n  File", "x" * 100_000])

    def refuses(*_: Any) -> Path:
        raise CompileError("NVRTC refuses unit.cu: error", next(logs))

    store(engine, GEMV)
    monkeypatch.setattr(Nvrtc, "compile", refuses)
    for log in ("short\n", "x" * 8000):
        fault = fault_of(client.get(address(GEMV)), 500)
        assert (fault["type"], fault["detail"]) == (
            "urn:gemmtune:compile-failed",
            "NVRTC refuses unit.cu: error",
        )
        assert fault["log"] == log
    # A failure gives its place back: there are two.
    monkeypatch.undo()
    assert client.get(address(GEMV)).status_code == 200


@pytest.fixture
def narrow(settings: Settings, engine: Engine) -> Iterator[httpx.Client]:
    """A service that compiles one kernel at a time."""
    store(engine, GEMV)
    with serving(settings.model_copy(update={"max_compiles": 1})) as made:
        yield made


def test_few_are_compiled_at_a_time(narrow: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*_: Any) -> bytes:
        begun.set()
        assert go_on.wait(20)
        return b"a zip"

    monkeypatch.setattr(package, "build", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(narrow.get, address(GEMV))
        try:
            assert begun.wait(20)
            response = narrow.get(address(GEMV))
            fault = fault_of(response, 503)
            assert fault["type"] == "urn:gemmtune:busy"
            assert "as may be at a time, 1 (GEMMTUNE_MAX_COMPILES); try again" in fault["detail"]
            assert int(response.headers["retry-after"]) >= 1
            assert narrow.get("/healthz").status_code == 200, "compilers do not hold up the others"
        finally:
            go_on.set()
        assert first.result().content == b"a zip"
    assert narrow.get(address(GEMV)).status_code == 200
