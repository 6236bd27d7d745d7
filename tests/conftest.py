"""Fixtures that several suites share."""

from __future__ import annotations

import functools
import gc
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Engine
from threadpoolctl import threadpool_limits

from backends import registry
from backends.cache import BinaryCache
from backends.cpu import compiler as cpu_compiler
from backends.cpu.driver import read_cpu
from backends.dtypes import COMPUTE_FOR
from service.settings import Settings
from service.startup import open_database, upgrade
from tests.backends.hip.on_host.build import build
from tests.postgres import DATABASES, PostgresServer
from tuners.ceilings import Ceilings, CeilingStore

#: Suites that compile kernels, and suites that start processes: `make quick` leaves both out.
COMPILING = (
    "backends/cpu/", "backends/gpu/", "backends/hip/", "backends/kernels/emulator/",
    "backends/kernels/families/", "backends/kernels/test_compile.py", "backends/kernels/test_headers.py",
    "backends/kernel_checks/",
    "backends/kernels/triton/test_arithmetic.py", "backends/kernels/triton/test_dequant_arithmetic.py",
    "backends/packages/", "backends/test_contract.py", "backends/toolchains/", "golden/",
    "service/http/test_binaries.py", "service/http/test_bundles.py",
    "service/model/test_bundle_outputs.py", "service/test_bundle_command.py",
    "service/test_judge.py", "service/test_kernels_command.py", "service/test_selftest_command.py",
    "tuners/test_compiling.py", "tuners/test_selftest_hip.py", "tuners/test_verify_device.py",
)  # fmt: skip
STARTING = (
    "backends/test_cache.py", "backends/test_layers.py", "backends/test_registry.py", "benchmarks/",
    "backends/test_catalogue.py", "backends/test_plugins.py", "chaos/test_chaos.py", "db/test_engine.py",
    "db/test_schema.py",
    "docker/",
    "service/http/test_database_faults.py", "service/http/test_events.py", "service/http/test_on_postgres.py",
    "service/http/test_operations.py", "service/http/test_schemathesis.py", "service/http/test_tunings.py",
    "service/test_bundle_command.py", "service/test_cli.py", "service/test_commands.py",
    "service/test_command_line.py", "service/test_crashes.py",
    "service/test_hip_on_host.py", "service/test_jobs.py", "service/test_judge.py",
    "service/test_lint_command.py",
    "service/test_model_command.py", "service/test_pretuned.py", "service/test_selftest_command.py",
    "service/test_serve.py", "service/test_several_devices.py", "service/test_store.py",
    "service/test_tunings.py", "service/test_worker.py", "tuners/",
)  # fmt: skip
#: Grids of which `make test` takes one combination in so many, and `make exhaustive` all: of planted mistakes
#: one in MISTAKES. Of tests with few combinations two or three are taken.
SAMPLED = {
    "backends/kernels/emulator/test_families.py": 18, "backends/kernels/families/": 24,
    "backends/kernels/test_compile.py": 12, "backends/kernels/triton/test_arithmetic.py": 8,
    "backends/kernels/triton/test_dequant_arithmetic.py": 8,
    "backends/gpu/test_padded.py": 8, "backends/gpu/test_device_reference.py": 6,
    "backends/cpu/test_kernels_abi.py": 14, "backends/kernel_checks/": 6, "backends/test_contract.py": 3,
    "tuners/test_inputs.py": 8, "tuners/test_verify_device.py": 6,
    "client/torch/grouped/test_glue.py": 4, "benchmarks/test_transfer.py": 3, "golden/test_candidates.py": 3,
    "backends/kernels/triton/test_dequant.py": 4, "backends/gpu/test_triton_family.py": 4,
}  # fmt: skip
MISTAKES, _FEW = 20, 3

#: Files that wait for processes, disks and networks most of their time, the longest first. They are spread
#: over a run that several processes share, so that few wait at once while the processors idle.
WAITING = (
    "docker/test_image.py", "service/test_worker.py", "service/dashboard/test_browser.py",
    "chaos/test_chaos.py", "service/test_hip_on_host.py", "tuners/test_planted.py",
    "service/test_rolling_upgrade.py",
    "tuners/test_device_process.py", "service/test_crashes.py", "service/test_commands.py",
    "service/test_serve.py", "service/test_tracing.py", "service/test_bundle_command.py",
    "tuners/judge/test_client.py",
)  # fmt: skip


#: Names of the databases in the ids of tests of both. Outside of db/ `make test` takes one of the two by
#: turns, and `make exhaustive` both.
BOTH = ("sqlite", "postgresql")


@functools.cache
def _place(path: Path) -> str:
    """A suite's path in this folder, made once for all of its tests."""
    return path.relative_to(Path(__file__).parent).as_posix()


def _of(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return _place(item.path).startswith(places)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks suites by what they need, and what is left out of a grid's sample as exhaustive."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _spread(items)
    groups: dict[tuple[Path, str, int], list[pytest.Item]] = {}
    for item in items:
        if _of(item, COMPILING):
            item.add_marker(pytest.mark.compiler)
        if _of(item, STARTING):
            item.add_marker(pytest.mark.process)
        for place, every in SAMPLED.items():
            name = item.name.partition("[")[0]
            if _of(item, (place,)) and item.get_closest_marker("cuda") is None:
                among = MISTAKES if "mistake" in name else every
                groups.setdefault((item.path, name, among), []).append(item)
    for (_, _, every), group in groups.items():
        step = min(every, len(group) // 2)
        for number, item in enumerate(group):
            if len(group) > _FEW and number % step:
                item.add_marker(pytest.mark.exhaustive)
    for number, pair in enumerate(_of_both_databases(items)):
        pair[number % 2].add_marker(pytest.mark.exhaustive)


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order of their files, with the files that wait evenly among the others."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_place(item.path), []).append(item)
    waiting = [place for place in WAITING if place in files]
    others = [place for place in files if place not in waiting]
    every = len(others) // max(len(waiting), 1) + 1
    order = []
    for number, place in enumerate(others):
        if number % every == 0 and waiting:
            order.append(waiting.pop(0))
        order.append(place)
    return [item for place in order + waiting for item in files[place]]


def _of_both_databases(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """Pairs of one test on each database."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        given = item.nodeid.partition("[")[2].rstrip("]").split("-")
        left_out = item.get_closest_marker("exhaustive") is not None
        if any(name in given for name in BOTH) and not left_out and not _of(item, ("db/",)):
            found.setdefault(re.sub("|".join(BOTH), "", item.nodeid), []).append(item)
    return [pair for pair in found.values() if len(pair) == len(BOTH)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests' own objects live to the end: collections of memory find no garbage while they are
    made, and need not walk them afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def no_tables() -> Iterator[None]:
    """Databases start empty: shipped pre-tuned tables are not installed, but by tests that ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMTUNE_PRETUNED", "0")
        patch.setenv("GEMMTUNE_PRECOMPILE", "0")
        yield


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """NumPy's products in this process: files run side by side, and threads that wait for others spin."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="session", autouse=True)
def precompiled(request: pytest.FixtureRequest, shared: Path) -> Iterator[str | None]:
    """The system's headers that the CPU's kernels include, compiled once by g++: without that they are half
    of what compiling a kernel takes. Flags of another target leave them as they are, text. (That kernels'
    headers include what they need is tested without: tests/backends/cpu/test_compiler.py.) Gives the command
    that uses them, None where it is the system's own."""
    compiler = cpu_compiler.find_compiler()
    markers = {mark.name for item in request.session.items for mark in item.iter_markers()}
    if compiler is None or "clang" in compiler.version or not markers & {"compiler", "process"}:
        yield None
        return
    header = shared / "system.h"
    if not header.with_suffix(".h.gch").exists():
        texts = [text for name, text in cpu_compiler.kernel_sources().items() if name.endswith(".h")]
        fresh = shared / f"system-{os.getpid()}"
        lines = re.findall(r"^#include <.*>$", "\n".join(texts), re.MULTILINE)
        fresh.write_text("#if defined(__x86_64__)\n" + "\n".join(sorted(set(lines))) + "\n#endif\n")
        fresh.replace(header)
        flags = (*cpu_compiler.FLAGS, *cpu_compiler.target_flags(read_cpu().partition))
        command = [*compiler.command, *flags, "-x", "c++-header", str(header), "-o", str(fresh)]
        if subprocess.run(command, check=False).returncode == 0:
            fresh.replace(header.with_suffix(".h.gch"))
    using = f"{shlex.join(compiler.command)} -include {shlex.quote(str(header))}"
    fresh = shared / f"c++-{os.getpid()}"
    fresh.write_text(f'#!/bin/sh\nexec {using} "$@" "$1"\n')  # g++ obeys the last -O
    fresh.chmod(0o755)
    fresh.replace(shared / "c++")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", f"{shlex.quote(str(shared / 'c++'))} -O1")
        yield using


@pytest.fixture(scope="module", autouse=True)
def as_shipped(request: pytest.FixtureRequest, precompiled: str | None) -> Iterator[None]:
    """Suites of the backends judge the CPU's kernels, and compile them with the flags that users' machines
    use, -O3. Everywhere else any right kernel does: g++ makes one with -O1 in less than half the time."""
    with pytest.MonkeyPatch.context() as patch:
        if precompiled is not None and _place(request.path).startswith("backends/"):
            patch.setenv("CXX", precompiled)
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> BinaryCache:
    """Compiled kernels of this test run: its processes share them, but not the folder around them, where
    locks lie, and made-up ceilings: measuring takes seconds a type (test_device_client.py measures some)."""
    compiled = shared / "compiled"
    compiled.mkdir(exist_ok=True)
    link = Path(tmp_path_factory.mktemp("cache")) / "kernels"
    link.symlink_to(compiled)
    flops = {**dict.fromkeys(COMPUTE_FOR, 1e11), "tf32": 1e11}
    CeilingStore(link.parent / "ceilings").put(
        registry.find_device("cpu").environment, Ceilings(1e10, 1e10, flops)
    )
    return BinaryCache(link)


@pytest.fixture(scope="session")
def rocm(shared: Path) -> Path:
    """A ROCm on the host (tests/backends/hip/on_host), compiled once for all processes of this test run."""
    place = shared / "rocm"
    if not place.exists():
        made = build(shared / f"rocm-{os.getpid()}")
        with suppress(OSError):  # another process was first
            made.rename(place)
    return place


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs of one class, and a backend that finds nothing."""
    monkeypatch.setitem(registry.BACKENDS, "cuda", "tests.fleet:ThreeGpus")
    monkeypatch.setitem(registry.BACKENDS, "hip", "tests.fleet:NoDriver")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test run. A test that stops it starts it again."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A database whose schema is current, to be copied."""
    name = postgres.create()
    upgrade(Settings(database_url=postgres.url(name)))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose schema is current, to be copied."""
    path = Path(tmp_path_factory.mktemp("template")) / "template.sqlite"
    upgrade(Settings(database_url=f"sqlite:///{path}"))
    return path


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a schema, of every kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'gemmtune.sqlite'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database whose schema is current, the job engine's too; of every kind in turn."""
    if request.param == "sqlite":
        path = tmp_path / "gemmtune.sqlite"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create(request.getfixturevalue("postgres_template"))
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine on that database."""
    opened = open_database(Settings(database_url=database_url))
    yield opened
    opened.dispose()
