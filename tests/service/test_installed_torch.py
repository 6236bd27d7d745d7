"""The torch that an interpreter has, asked of interpreters with a torch of this suite's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.formats.core.export import ExportRefused
from service.installed_torch import NoTorch, ask

#: A torch that answers what the question asks; it has no library, so cuBLASLt's version comes from TunableOp.
TORCH = """
import sys, types
__version__ = {version!r}
bfloat16 = "bf16"
version = types.SimpleNamespace(cuda={cuda!r}, hip={hip!r})
def ones(*sizes, **options): return 1
def mm(a, b): asked.append("mm")
asked = []
class Device:
    name, major, minor, gcnArchName = {device!r}, 9, 0, "gfx942:sramecc+:xnack-"
cuda = types.ModuleType("torch.cuda")
cuda.is_available = lambda: {device!r} is not None
cuda.get_device_properties = lambda index: Device
cuda.synchronize = lambda: None
tunable = types.ModuleType("torch.cuda.tunable")
tunable.enable = tunable.tuning_enable = lambda on: None
tunable.set_filename = lambda name: None
tunable.get_validators = lambda: {validators!r} if asked else (("PT_VERSION", "0"),)
cuda.tunable = tunable
sys.modules["torch.cuda"], sys.modules["torch.cuda.tunable"] = cuda, tunable
"""


def python(folder: Path, **torch: object) -> str:
    """An interpreter whose torch is as told."""
    told = {"version": "2.15.0+cu132", "cuda": "99.2", "hip": None, "device": None, "validators": (), **torch}
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("print('hello from torch')\n" + TORCH.format(**told))
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_a_cuda_build_with_a_gpu_says_what_tunableop_checks(tmp_path: Path) -> None:
    validators = (
        ("PT_VERSION", "2.15.0"), ("CUBLASLT_VERSION", "130200"), ("CUDA_DEVICE", "9.0:NVIDIA H200"),
    )  # fmt: skip
    found = ask(python(tmp_path, device="NVIDIA H200", validators=validators))
    assert found.target == "torch-2.15.0+cuda"
    assert found.validators_for("tunableop") == dict(validators)
    assert found.validators_for("inductor-table") == {"DEVICE_NAME": "NVIDIA H200"}
    assert found.text == f"torch 2.15.0 (CUDA 99.2) of {found.python}, NVIDIA H200"


def test_a_cuda_build_without_a_gpu_leaves_the_device_to_the_rows(tmp_path: Path) -> None:
    found = ask(python(tmp_path, version="2.14.1+cu130"))
    assert found.target == "torch-2.14.1+cuda"
    assert found.validators_for("tunableop") == {"PT_VERSION": "2.14.1"}
    assert found.validators_for("inductor-table") == {}
    assert "no GPU in sight" in found.text


def test_a_rocm_build_names_its_libraries(tmp_path: Path) -> None:
    validators = (
        ("PT_VERSION", "2.10.0"), ("HIP_VERSION", "702"), ("HIPBLASLT_VERSION", "100202-dabb6df2b9"),
        ("ROCBLAS_VERSION", "5.2.0.dabb6df2b9"), ("GCN_ARCH_NAME", "gfx942:sramecc+:xnack-"),
    )  # fmt: skip
    found = ask(
        python(tmp_path, version="2.10.0+rocm7.2", cuda=None, hip="7.2.5", device="AMD Instinct MI300X",
               validators=validators)
    )  # fmt: skip
    assert found.target == "torch-2.10.0+rocm"
    assert found.validators_for("tunableop") == dict(validators)
    assert found.validators_for("inductor-table") == {"GCN_ARCH_NAME": "gfx942:sramecc+:xnack-"}


def test_an_older_cuda_build_checks_its_version_alone(tmp_path: Path) -> None:
    validators = (("PT_VERSION", "2.11.0"),)
    found = ask(python(tmp_path, version="2.11.0+cu130", device="NVIDIA H200", validators=validators))
    assert found.validators_for("tunableop") == {"PT_VERSION": "2.11.0"}


def test_a_release_that_no_file_is_known_for_is_refused(tmp_path: Path) -> None:
    found = ask(python(tmp_path, version="2.99.0+cu130"))
    with pytest.raises(ExportRefused, match=r"'torch-2\.99\.0\+cuda': TunableOp's file is known for"):
        found.validators_for("tunableop")


def test_a_cpu_build_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NoTorch, match=r"torch 2\.13\.0\+cpu of .* is a CPU build"):
        ask(python(tmp_path, version="2.13.0+cpu", cuda=None))


def test_an_interpreter_without_torch_is_refused_by_name(tmp_path: Path) -> None:
    path = python(tmp_path)
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libc10.so is missing')")
    with pytest.raises(NoTorch, match=r"has no torch \(ImportError: libc10\.so is missing\); name"):
        ask(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/no/such/python", "cannot be run as a Python interpreter"),
        ("/bin/false", "exit code 1"),
    ],
)
def test_what_is_no_interpreter_is_refused(path: str, words: str) -> None:
    with pytest.raises(NoTorch, match=words):
        ask(path)
