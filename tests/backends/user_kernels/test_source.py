"""What a source states of itself is read, checked, and never run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends.errors import ReadError
from backends.problem import from_bmm, from_linear, from_mm
from backends.user_kernels.extents import evaluate
from backends.user_kernels.source import read_kernel

CUDA = """// gemmtune: types fp32
// gemmtune: grid cdiv(n, 16)
// gemmtune: block 16
void gemm(GemmCall call) {}
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_python_source_is_read_and_not_run(tmp_path: Path) -> None:
    path = written(
        tmp_path, "my kernel.py",
        "raise SystemExit\nTYPES = ('fp32', 'bf16:fp32')\ndef gemm(a, b, out, alpha=1.0, bias=None): ...\n",
    )  # fmt: skip
    kernel = read_kernel(path)
    assert (kernel.name, kernel.language, kernel.arrays) == ("user.my-kernel", "python", "torch")
    assert kernel.contract.types == (("fp32", "fp32"), ("bf16", "fp32"))
    assert kernel.contract.features == {"alpha", "bias", "padded", "transposed"}
    assert kernel.writes_out
    assert not read_kernel(written(tmp_path, "b.py", "def gemm(a, b): ...\n")).writes_out


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (from_mm(4, 8, 16, "fp32"), None),
        (from_mm(4, 8, 16, "bf16"), "it takes fp32 -> fp32, not bf16 -> bf16"),
        (from_linear(4, 8, 16, "fp32"), "transposed"),
        (from_bmm(2, 4, 8, 16, "fp32"), "batch"),
        (replace(from_mm(4, 8, 16, "fp32"), ldd=9), "padded"),
        (replace(from_mm(4, 8, 16, "fp32"), alpha="any"), "alpha"),
        (replace(from_mm(4, 8, 16, "fp32"), beta="one"), "beta"),
    ],
)
def test_a_contract_says_what_it_excludes(problem, words, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = "TYPES = ('fp32',)\nFEATURES = ()\ndef gemm(a, b, out): ...\n"
    why = read_kernel(written(tmp_path, "k.py", text)).contract.excludes(problem)
    assert (why is None) if words is None else words in (why or "")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("k.txt", "", "must end in .py"),
        ("k.py", "def gemm(a, b:", "no Python"),
        ("k.py", "def other(a, b): ...", "defines no function gemm"),
        ("k.py", "def gemm(a): ...", "takes 1 arguments"),
        ("k.py", "def gemm(a, b): ...\nTYPES = ('fp33',)", "the type 'fp33'"),
        ("k.py", "def gemm(a, b): ...\nTYPES = tuple(x)", "must be a literal"),
        ("k.py", "def gemm(a, b): ...\nFEATURES = ('speed',)", "the feature 'speed'"),
        ("k.py", "def gemm(a, b): ...\nARRAYS = 'jax'", "ARRAYS must be"),
        ("k.py", "def gemm(a, b): ...\nFAMILY_OF = 'conv'", "FAMILY_OF = 'conv'"),
        ("k.py", "x = 1\n" * 2**19, "bytes"),
        ("k.cpp", "// gemmtune: types fp32\nint other();", 'no extern "C" function gemm'),
        ("k.cpp", "int gemm(const GemmCall*);", "states no types"),
        ("k.cpp", "// gemmtune: types\nint gemm();", "names none"),
        ("k.cpp", "// gemmtune: tpyes fp32\nint gemm();", "`// gemmtune: tpyes` is unknown"),
        ("k.cu", "// gemmtune: types fp32\nvoid gemm();", "states no grid"),
        ("k.cu", CUDA + "// gemmtune: grid 1", "states `// gemmtune: grid` twice"),
        ("k.cu", CUDA.replace("cdiv(n, 16)", "open('x')"), "is not allowed"),
        ("k.cu", CUDA.replace("cdiv(n, 16)", "n, n, n, n"), "at most 3 extents"),
        ("k.cu", CUDA.replace("cdiv(n, 16)", "n // 0"), "no list of extents"),
    ],
)
def test_bad_sources_are_told(name: str, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ReadError) as raised:
        read_kernel(written(tmp_path, name, text))
    assert words in str(raised.value)


def test_unreadable_files_and_unknown_families_are_told(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="cannot read"):
        read_kernel(tmp_path / "absent.py")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    with pytest.raises(ReadError, match="cannot read"):
        read_kernel(tmp_path / "bytes.py")
    with pytest.raises(ReadError, match="--family-of 'conv' is unknown; known: gemm"):
        read_kernel(tmp_path / "absent.py", "conv")


def test_extents_are_integers_of_the_sizes() -> None:
    sizes = {"m": 33, "n": 64, "k": 7, "batch": 2}
    assert evaluate("cdiv(n, 16), cdiv(m, 16), batch", sizes) == (4, 3, 2)
    assert evaluate("max(m, n) * 2 - k % 4 + min(k, 3) // 2", sizes) == (126,)
    for text in ("m ** m", "-m", "2 ** 40 * 0", "m.real", "4294967296", "", "m if m else n", "1.5"):
        with pytest.raises(ReadError):
            evaluate(text, sizes)
