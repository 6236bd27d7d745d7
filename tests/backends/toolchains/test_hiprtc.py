"""hipRTC: its calls, made of a module in hip-python's place; hip-python's own calls of a library that stands
for ROCm's; what is said of one that is missing or half-installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.kernels import headers as module_headers
from backends.resources import Resources
from backends.toolchains import hiprtc as module
from backends.toolchains import rocm as rocm_module
from backends.toolchains.hiprtc import Hiprtc, hiprtc, hiprtc_build
from backends.toolchains.toolchain import CompileUnit

CODE = Path(__file__).parents[2] / "data" / "code_objects" / "gfx942.hsaco"
UNIT = '#include "folder/own.h"\nKERNEL(one) {}\n'
LOG = "unit.hip:2:3: error: use of undeclared identifier 'nobody'\n1 error generated\n\0"


class Result(IntEnum):
    """Some of hiprtcResult."""

    HIPRTC_SUCCESS = 0
    HIPRTC_ERROR_OUT_OF_MEMORY = 1
    HIPRTC_ERROR_COMPILATION = 6


class Program:
    """A program's handle."""

    def createRef(self) -> list[Program]:  # noqa: N802  (hip-python's name)
        """The handle's address."""
        return [self]


class Fake:
    """hip-python's hiprtc: records the calls, and fails those of `fails`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails: dict[str, Any] = {}
        self.symbols = set(module._SYMBOLS)
        self.log, self.code = LOG.encode(), CODE.read_bytes()

    def has_symbol(self, name: str) -> bool:
        return name in self.symbols

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            status = self.fails.get(name, Result.HIPRTC_SUCCESS)
            if isinstance(status, Exception):
                raise status
            return status, *self._values(name, *arguments)

        return call

    def _values(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        if name in ("hiprtcGetCode", "hiprtcGetProgramLog"):
            arguments[1][:] = self.code if name == "hiprtcGetCode" else self.log
        return {
            "hiprtcVersion": (9, 0),
            "hiprtcCreateProgram": (Program(),),
            "hiprtcGetProgramLogSize": (len(self.log),),
            "hiprtcGetCodeSize": (len(self.code),),
        }.get(name, ())

    def names(self) -> list[str]:
        return [name for name, _ in self.calls if name != "hiprtcVersion"]


@pytest.fixture
def rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ROCm of the release 7.0.2 whose libhiprtc.so is an empty file."""
    folder = tmp_path / "rocm"
    (folder / "lib").mkdir(parents=True)
    (folder / ".info").mkdir()
    (folder / ".info" / "version").write_text("7.0.2-56\n")
    (folder / "lib" / "libhiprtc.so.7.0.51831").touch()
    (folder / "lib" / "libhiprtc.so").symlink_to("libhiprtc.so.7.0.51831")
    monkeypatch.setenv("ROCM_PATH", str(folder))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    # Whatever this machine has.
    monkeypatch.setattr(rocm_module, "_SYSTEM", ())
    monkeypatch.setattr(rocm_module, "_loader_cache", lambda: b"")
    return folder


@pytest.fixture
def fake(rocm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    found = Fake()
    monkeypatch.setitem(sys.modules, "hip", SimpleNamespace(hiprtc=found))
    hiprtc.cache_clear()
    yield found
    hiprtc.cache_clear()


@pytest.fixture
def unit(tmp_path: Path) -> CompileUnit:
    root = tmp_path / "headers"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "own.h").write_text('#include "folder/more.h"\n')
    (root / "folder" / "more.h").write_text("// more\n")
    return CompileUnit(UNIT, "gfx942", (root,), (("UNITS", "3"),))


@pytest.fixture
def cache(tmp_path: Path) -> BinaryCache:
    return BinaryCache(tmp_path / "cache")


# ---- a module in hip-python's place ------------------------------------------------------------------


def test_a_unit_is_compiled_once_and_its_kernels_are_told_of(
    fake: Fake, unit: CompileUnit, cache: BinaryCache
) -> None:
    assert Hiprtc().missing() is None
    path = Hiprtc().compile(unit, cache)
    assert path.suffix == ".hsaco"
    assert path.read_bytes() == fake.code
    assert resources.read(path)["shared"] == Resources(2, 1200, 0, 0, 12, 0)
    (_, created), (_, compiled), *_ = [one for one in fake.calls if one[0] != "hiprtcVersion"]
    texts = [b"// more\n", b'#include "folder/more.h"\n']
    assert created == (UNIT.encode(), b"unit.hip", 2, texts, [b"folder/more.h", b"folder/own.h"])
    options = [b"--offload-arch=gfx942", b"-O2", b"-std=c++17", b"-DGEMMTUNE_WARP=64", b"-DUNITS=3"]
    assert compiled[1:] == (len(options), options)
    assert fake.names() == [
        "hiprtcCreateProgram", "hiprtcCompileProgram", "hiprtcGetCodeSize", "hiprtcGetCode",
        "hiprtcDestroyProgram",
    ]  # fmt: skip
    assert isinstance(fake.calls[-1][1][0], list), "the address of the handle"
    assert Hiprtc().compile(unit, cache) == path
    assert len(fake.names()) == 5, "the second time it is read"
    path.with_name(path.stem + resources.SUFFIX).unlink()
    assert Hiprtc().compile(unit, cache) == path
    assert len(fake.names()) == 10, "somebody took away what was told: it is told anew"


def test_wavefronts_are_the_architectures(fake: Fake, unit: CompileUnit, cache: BinaryCache) -> None:
    Hiprtc().compile(CompileUnit(unit.text, "gfx1100", unit.roots), cache)
    (options,) = [given[2] for name, given in fake.calls if name == "hiprtcCompileProgram"]
    assert b"-DGEMMTUNE_WARP=32" in options
    assert Hiprtc().target("gfx1100", True) == "gfx1100"


def test_the_build_is_the_librarys_file_and_rocms_release(
    fake: Fake, rocm: Path, unit: CompileUnit, cache: BinaryCache
) -> None:
    assert Hiprtc().build() == "9.0, 7.0.51831, ROCm 7.0.2-56"
    first = Hiprtc().compile(unit, cache)
    (rocm / ".info" / "version").unlink()
    assert hiprtc_build() == "9.0, 7.0.51831"
    assert Hiprtc().compile(unit, cache) != first, "another compiler, another key"


def test_what_does_not_compile_has_its_log(fake: Fake, unit: CompileUnit, cache: BinaryCache) -> None:
    fake.fails["hiprtcCompileProgram"] = Result.HIPRTC_ERROR_COMPILATION
    with pytest.raises(
        CompileError, match=r"^hipRTC refuses unit\.hip: unit\.hip:2:3: error: .*nobody"
    ) as caught:
        Hiprtc().compile(unit, cache)
    assert caught.value.log == LOG.rstrip("\n\0")
    assert fake.names()[-1] == "hiprtcDestroyProgram"
    assert not [path for path in cache.root.rglob("*") if path.is_file()]
    fake.log = b""
    with pytest.raises(
        CompileError, match=r"refuses unit\.hip: hiprtcCompileProgram: HIPRTC_ERROR_COMPILATION"
    ):
        Hiprtc().compile(unit, cache)
    fake.fails["hiprtcGetProgramLogSize"] = Result.HIPRTC_ERROR_OUT_OF_MEMORY
    with pytest.raises(CompileError) as caught:
        Hiprtc().compile(unit, cache)
    assert caught.value.log == "no log: hiprtcGetProgramLogSize: HIPRTC_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize("name", ["hiprtcCreateProgram", "hiprtcGetCodeSize", "hiprtcGetCode"])
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Result.HIPRTC_ERROR_OUT_OF_MEMORY, "HIPRTC_ERROR_OUT_OF_MEMORY"),
        (RuntimeError("failed to dlsym 'b'name''"), "failed to dlsym"),
        (ValueError("99 is not a valid hiprtcResult"), "99 is not a valid"),
    ],
)
def test_a_call_that_fails_is_named(
    name: str, status: Any, words: str, fake: Fake, unit: CompileUnit, cache: BinaryCache
) -> None:
    fake.fails[name] = status
    with pytest.raises(CompileError, match=f"^{name}: .*{words}"):
        Hiprtc().compile(unit, cache)
    assert ("hiprtcDestroyProgram" in fake.names()) == (name != "hiprtcCreateProgram")
    assert not [path for path in cache.root.rglob("*") if path.is_file()]


def test_code_of_another_kind_has_no_resources(fake: Fake, unit: CompileUnit, cache: BinaryCache) -> None:
    """A library that stands for hipRTC may compile for another machine."""
    fake.code = b"\x7fELF of a host"
    assert resources.read(Hiprtc().compile(unit, cache)) == {}


def test_a_header_that_no_root_has(fake: Fake, unit: CompileUnit, cache: BinaryCache) -> None:
    (unit.roots[0] / "folder" / "more.h").unlink()
    module_headers._read.cache_clear()
    with pytest.raises(CompileError, match=r"header 'folder/more\.h' is in none of"):
        Hiprtc().compile(unit, cache)
    assert fake.names() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda fake: fake.symbols.discard("hiprtcGetCode"),
            r"libhiprtc\.so is no usable .* lacks hiprtcGetCode$",
        ),
        (
            lambda fake: fake.fails.update(hiprtcVersion=RuntimeError("failed to dlopen")),
            "not load: failed to dl",
        ),
        (
            lambda fake: fake.fails.update(hiprtcVersion=Result.HIPRTC_ERROR_OUT_OF_MEMORY),
            "does not start: hiprtcVersion: HIPRTC_ERROR_OUT_OF_MEMORY",
        ),
    ],
)
def test_a_library_that_is_of_no_use(
    change: Callable[[Fake], None], words: str, fake: Fake, unit: CompileUnit, cache: BinaryCache
) -> None:
    change(fake)
    with pytest.raises(CompilerMissing, match=words):
        Hiprtc().compile(unit, cache)
    assert Hiprtc().missing() is not None
    assert Hiprtc().build() is None


def test_without_hip_python(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hip", None)
    assert "hip-python is not installed" in str(Hiprtc().missing())
    assert "pip install 'gemmtune[hip]'" in str(Hiprtc().missing())


def test_without_the_library_it_is_said_where_it_was_sought(fake: Fake, rocm: Path) -> None:
    shutil.rmtree(rocm / "lib")
    why = str(Hiprtc().missing())
    assert why.startswith("hipRTC is missing: libhiprtc.so not found; searched ")
    assert str(rocm / "lib") in why
    assert fake.calls == []


def test_a_library_without_its_unversioned_name(fake: Fake, rocm: Path) -> None:
    (rocm / "lib" / "libhiprtc.so").unlink()
    why = str(Hiprtc().missing())
    assert f"{rocm / 'lib' / 'libhiprtc.so.7.0.51831'} is there, but not libhiprtc.so" in why
    assert "development package" in why


# ---- hip-python itself, on a library of this test's own ----------------------------------------------

LIBRARY = Path(__file__).with_name("hiprtc_library.c")
needs_hip = pytest.mark.skipif(find_spec("rocm") is None, reason="hip-python is not installed")
#: Compiles one unit, and answers with JSON.
PROGRAM = """
import json, sys
from pathlib import Path
from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.toolchains.hiprtc import Hiprtc
from backends.toolchains.toolchain import CompileUnit
text, root, cache = sys.argv[1:]
found = {"missing": Hiprtc().missing(), "build": Hiprtc().build()}
try:
    path = Hiprtc().compile(CompileUnit(text, "gfx942", (Path(root),)), BinaryCache(Path(cache)))
    found |= {"path": str(path), "kernels": sorted(resources.read(path))}
except (CompileError, CompilerMissing) as error:
    found |= {"error": f"{type(error).__name__}: {error}", "log": getattr(error, "log", "")}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The library, and one without hiprtcGetCode."""
    folder = tmp_path_factory.mktemp("libraries")
    found = {name: folder / f"{name}.so" for name in ("whole", "half")}
    for name, path in found.items():
        flags = ["-DWITHOUT_CODE"] if name == "half" else []
        command = ["g++", "-x", "c", "-shared", "-fPIC", *flags, str(LIBRARY), "-o", str(path)]
        subprocess.run(command, check=True)
    return found


def answered(rocm: Path, unit: CompileUnit, folder: Path, **fails: int) -> dict[str, Any]:
    """What a process of its own answers: hip-python opens a library once."""
    environment = {
        **os.environ, "ROCM_PATH": str(rocm), "HIPRTC_CALLS": str(folder / "calls"), "HIPRTC_CODE": str(CODE),
        "HIPRTC_FAILS": "".join(f"{name}:{status}" for name, status in fails.items()),
    }  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, unit.text, str(unit.roots[0]), str(folder / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_hip
@pytest.mark.process
def test_hip_python_hands_on_what_is_compiled_and_what_comes_of_it(
    rocm: Path, libraries: dict[str, Path], unit: CompileUnit, tmp_path: Path
) -> None:
    shutil.copy(libraries["whole"], rocm / "lib" / "libhiprtc.so.7.0.51831")
    found = answered(rocm, unit, tmp_path)
    assert (found["missing"], found["build"]) == (None, "9.0, 7.0.51831, ROCm 7.0.2-56")
    assert found["kernels"] == ["shared", "spilling", "wide"]
    assert Path(found["path"]).read_bytes() == CODE.read_bytes()
    calls = (tmp_path / "calls").read_text()
    assert f"hiprtcCreateProgram\n  unit.hip {UNIT}" in calls
    assert '  folder/own.h #include "folder/more.h"\n' in calls
    assert "  option --offload-arch=gfx942\n  option -O2\n" in calls
    assert calls.endswith("hiprtcGetCode\nhiprtcDestroyProgram\n")


@needs_hip
@pytest.mark.process
def test_hip_python_hands_on_a_failure_and_its_log(
    rocm: Path, libraries: dict[str, Path], unit: CompileUnit, tmp_path: Path
) -> None:
    shutil.copy(libraries["whole"], rocm / "lib" / "libhiprtc.so.7.0.51831")
    found = answered(rocm, unit, tmp_path, hiprtcCompileProgram=6)
    assert found["error"].startswith("CompileError: hipRTC refuses unit.hip: unit.hip:2:3: error: ")
    assert found["log"].endswith("1 error generated")
    assert (tmp_path / "calls").read_text().endswith("hiprtcDestroyProgram\n")
    unknown = answered(rocm, unit, tmp_path, hiprtcCreateProgram=77)
    assert unknown["error"] == "CompileError: hiprtcCreateProgram: 77 is not a valid hiprtcResult"


@needs_hip
@pytest.mark.process
def test_hip_python_on_half_a_library_and_on_none(
    rocm: Path, libraries: dict[str, Path], unit: CompileUnit, tmp_path: Path
) -> None:
    shutil.copy(libraries["half"], rocm / "lib" / "libhiprtc.so.7.0.51831")
    found = answered(rocm, unit, tmp_path)
    assert found["error"] == f"CompilerMissing: {found['missing']}"
    assert found["missing"].endswith("is no usable hipRTC: it lacks hiprtcGetCode")
    (rocm / "lib" / "libhiprtc.so.7.0.51831").write_text("no library at all")
    broken = answered(rocm, unit, tmp_path)
    assert broken["missing"].startswith("hipRTC does not load: failed to dlopen ")
    assert broken["build"] is None
