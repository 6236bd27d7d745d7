"""clang as HIP's compiler: the cache, what is told of kernels, what does not compile, and which of the
compilers of a machine is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.kernels import headers as module_headers
from backends.toolchains import clang as module
from backends.toolchains import clang_compilers, code_object
from backends.toolchains.clang import STRICT, Clang, clang_build, missing
from backends.toolchains.clang_compilers import compiler_for, installed
from backends.toolchains.toolchain import CompileUnit

HEADER = '#define KERNEL(name) extern "C" __attribute__((global)) void name(float* x)\n'
UNIT = '#include "own.h"\nKERNEL(one) { x[0] = 1.0f; }\nKERNEL(two) { x[0] = 2.0f; }\n'


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "own.h").write_text(HEADER)
    return tmp_path / "headers"


@pytest.mark.clang
def test_a_code_object_and_what_its_kernels_take(headers: Path, tmp_path: Path) -> None:
    assert missing() is None
    assert "19" in str(clang_build())
    cache = BinaryCache(tmp_path / "cache")
    path = Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), cache)
    data = path.read_bytes()
    assert data.startswith(b"\x7fELF")
    found = resources.read(path)
    assert set(found) == {"one", "two"}
    for one in found.values():
        assert one.registers is not None
        assert 1 <= one.registers < 16
        assert (one.shared_bytes, one.spill_bytes) == (0, 0)
    assert Clang().compile(CompileUnit(UNIT, "gfx1100", (headers,)), cache) != path
    path.write_bytes(b"kept")
    assert Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), cache).read_bytes() == b"kept", (
        "the second time it is read"
    )
    (headers / "own.h").write_text(HEADER + "// other\n")
    module_headers._read.cache_clear()
    assert Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), cache) != path


@pytest.mark.clang
def test_what_does_not_compile_says_where(headers: Path, tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path / "cache")
    with pytest.raises(
        CompileError, match=r"^clang-19 refuses the unit: <stdin>:2:.*error: .*nobody"
    ) as caught:
        Clang().compile(CompileUnit(UNIT.replace("1.0f", "nobody"), "gfx942", (headers,)), cache)
    assert "1 error generated" in caught.value.log
    calls = UNIT + 'extern "C" __attribute__((device)) void nobody();\nKERNEL(three) { nobody(); }\n'
    with pytest.raises(CompileError, match=r"^ld\.lld-19 refuses the unit: .*undefined .*symbol: nobody"):
        Clang().compile(CompileUnit(calls, "gfx942", (headers,)), cache)
    assert not [path for path in cache.root.rglob("*") if path.is_file()]


@pytest.mark.clang
def test_the_same_unit_gives_the_same_bytes(headers: Path, tmp_path: Path) -> None:
    caches = [BinaryCache(tmp_path / name) for name in ("first", "second")]
    first, second = (Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), cache) for cache in caches)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.clang
def test_further_flags_are_part_of_the_key(headers: Path, tmp_path: Path) -> None:
    cache, unit = BinaryCache(tmp_path), CompileUnit(UNIT + "// unused: int x;\n", "gfx942", (headers,))
    assert Clang(STRICT).compile(unit, cache) != Clang().compile(unit, cache)
    unused = CompileUnit("static void one() { int x; }\n", "gfx942", (headers,))
    assert Clang().compile(unused, cache).exists()
    with pytest.raises(CompileError, match="error: unused variable"):
        Clang(STRICT).compile(unused, cache)


#: Architectures that continuous integration compiles for.
ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


@pytest.mark.clang
@pytest.mark.parametrize("arch", ARCHS)
def test_some_compiler_knows_every_architecture(arch: str, headers: Path, tmp_path: Path) -> None:
    assert missing(arch) is None
    path = Clang().compile(CompileUnit(UNIT, arch, (headers,)), BinaryCache(tmp_path / "cache"))
    assert code_object.read(path.read_bytes()).arch == arch
    if arch != "gfx950":
        assert clang_build(arch) == clang_build()
    else:
        assert str(clang_build(arch)) > "clang version 20", "clang 19 does not know it"


# ---- which compiler ------------------------------------------------------------------------------

#: A compiler of shell: knows gfx942, or what $2 says; its object is one line, and so is its code object.
_CLANG = """#!/bin/sh
case " $* " in
*" --version "*) echo "{name} version {number}"; exit;;
*" --offload-arch={arch} "* | *" ld.lld "*) ;;
*) echo "{name}: error: invalid target ID; format is a processor" >&2; exit 1;;
esac
for last in "$@"; do :; done
echo "{name}" > "$last"
"""
_LLD = """#!/bin/sh
test "$1" = --version && {{ echo "{name} 1"; exit; }}
for last in "$@"; do :; done
echo "{name}" > "$last"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without compilers: a folder that is its PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin/nothing")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.setattr(clang_compilers, "_zig", lambda: None)
    return folder


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def clang(path: Path, arch: str = "gfx942", number: int = 19) -> None:
    program(path, _CLANG.format(name=path.name, arch=arch, number=number))


def lld(path: Path) -> None:
    program(path, _LLD.format(name=path.name))


def test_the_first_compiler_that_knows_an_architecture_is_used(
    machine: Path, headers: Path, tmp_path: Path
) -> None:
    clang(machine / "clang-19")
    clang(machine / "clang-22", "gfx950", 22)
    clang(machine / "clang", "gfx1201", 17)
    clang(tmp_path / "rocm" / "llvm" / "bin" / "clang", "gfx90a", 18)
    lld(machine / "ld.lld-22")
    lld(tmp_path / "rocm" / "llvm" / "bin" / "ld.lld")
    names = [(Path(one.clang[0]).name, Path(one.linker[0]).name) for one in installed()]
    assert names == [
        ("clang-19", "ld.lld-22"), ("clang-22", "ld.lld-22"), ("clang", "ld.lld"), ("clang", "ld.lld-22")
    ]  # fmt: skip
    found = {arch: compiler_for(arch).version for arch in ("gfx942", "gfx950", "gfx90a", "gfx1201")}
    assert found == {
        "gfx942": "clang-19 version 19", "gfx950": "clang-22 version 22", "gfx90a": "clang version 18",
        "gfx1201": "clang version 17",
    }  # fmt: skip
    assert clang_build() == clang_build("gfx942") == "clang-19 version 19"
    assert clang_build("gfx906") is None
    cache = BinaryCache(tmp_path / "cache")
    path = Clang().compile(CompileUnit(UNIT, "gfx950", (headers,)), cache)
    assert path.read_text() == "ld.lld-22\n"
    assert resources.read(path) == {}, "shell scripts make no code objects"


def test_another_compiler_is_another_key(machine: Path, headers: Path, tmp_path: Path) -> None:
    cache, unit = BinaryCache(tmp_path / "cache"), CompileUnit(UNIT, "gfx942", (headers,))
    clang(machine / "clang-20")
    lld(machine / "ld.lld-20")
    first = Clang().compile(unit, cache)
    assert Clang().compile(unit, cache) == first
    lld(machine / "ld.lld-19")
    assert Clang().compile(unit, cache) == first, "its own linker is still there"
    clang(machine / "clang-19", number=20)
    assert Clang().compile(unit, cache) != first, "another name, and another linker"


def test_no_compiler_says_what_to_install(machine: Path, headers: Path, tmp_path: Path) -> None:
    unit, cache = CompileUnit(UNIT, "gfx942", (headers,)), BinaryCache(tmp_path / "cache")
    assert (clang_build(), clang_build("gfx942")) == (None, None)
    words = "need clang with lld, and neither is installed: apt-get install clang-19 lld-19, .* pip install"
    with pytest.raises(CompilerMissing, match=words):
        Clang().compile(unit, cache)
    assert missing() == missing("gfx942")
    clang(machine / "clang-19")
    with pytest.raises(CompilerMissing, match=r"^clang-19 is installed, but no lld, which links"):
        Clang().compile(unit, cache)
    lld(machine / "ld.lld")
    assert missing() is None
    assert missing("gfx942") is None
    why = str(Clang().missing("gfx950"))
    assert why.startswith(
        "no compiler here knows gfx950 (clang-19 refuses the unit: clang-19: error: invalid "
    )
    assert why.endswith(
        "target ID): install a later clang with its lld, set ROCM_PATH, or pip install ziglang"
    )
    with pytest.raises(CompilerMissing, match="knows gfx950"):
        Clang().compile(CompileUnit(UNIT, "gfx950", (headers,)), cache)


def test_a_compiler_whose_linker_refuses_is_passed_over(machine: Path) -> None:
    clang(machine / "clang-19")
    program(machine / "ld.lld-19", "#!/bin/sh\necho 'ld.lld: error: unknown emulation' >&2\nexit 1\n")
    assert "ld.lld-19 refuses the unit: ld.lld: error: unknown emulation" in str(missing("gfx942"))
    clang(machine / "clang-20", number=20)
    lld(machine / "ld.lld-20")
    assert clang_build("gfx942") == "clang-20 version 20"


def test_a_compiler_that_did_not_answer_is_asked_again(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(machine / "clang-19", "#!/bin/sh\nexec /bin/sleep 60\n")
    lld(machine / "ld.lld-19")
    monkeypatch.setattr(clang_compilers, "PROBE_SECONDS", 0.1)
    assert "clang-19 took over 0 s" in str(missing("gfx942"))
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(machine))
    clang(machine / "clang-19")
    assert compiler_for("gfx942").name == "clang-19"


def test_a_compiler_that_hangs_on_a_unit_is_ended(
    machine: Path, headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clang(machine / "clang-19")
    lld(machine / "ld.lld-19")
    assert missing("gfx942") is None
    program(machine / "clang-19", "#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr(clang_compilers, "_version", lambda command: "planted")
    monkeypatch.setattr(module, "COMPILE_SECONDS", 0.2)
    with pytest.raises(CompileError, match="clang-19 took over 0 s"):
        Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), BinaryCache(tmp_path / "cache"))


def test_one_that_fails_without_a_word(
    machine: Path, headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(machine / "clang-19", "#!/bin/sh\nexit 3\n")
    lld(machine / "ld.lld-19")
    assert clang_build() is None
    assert "clang-19 refuses the unit: exit code 3" in str(missing("gfx942"))
    program(machine / "clang-20", "no program at all")
    monkeypatch.setattr(clang_compilers, "_refusal", lambda *_: "")
    with pytest.raises(CompilerMissing, match=r"clang-19 does not answer to --version"):
        Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), BinaryCache(tmp_path / "cache"))


def test_ziglangs_compiler_is_the_last(
    machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its program is found beside the package, which is not imported."""
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(machine))
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('nobody imports it')")
    clang(package / "zig", "gfx950", 21)
    monkeypatch.syspath_prepend(str(package.parent))
    (only,) = installed()
    assert (only.name, only.clang) == ("ziglang's clang", (str(package / "zig"), "clang"))
    assert only.linker == (str(package / "zig"), "ld.lld")
    clang(machine / "clang-19")
    assert [one.name for one in installed()] == ["clang-19", "ziglang's clang"]
    assert compiler_for("gfx950") == only
    (package / "zig").unlink()
    assert installed() == [], "and a linker that nobody else has"
