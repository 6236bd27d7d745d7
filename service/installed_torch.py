"""The torch that an interpreter has: the build that a file is written for, and the validators that it checks.

The interpreter is asked in a process of its own, so that this one never loads torch and may be another
Python. Where the build sees a GPU, TunableOp itself says its validators: one small GEMM registers them.
Where it sees none, the header's values about the device come from the rows' environments.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backends.errors import GemmtuneError
from service.formats.tunableop.target import parse_target

#: Importing torch takes long on a cold disk; a driver that hangs must not hang this command.
_SECONDS = 180
#: The line of the probe's output that is the answer: libraries print lines of their own.
_MARK = "gemmtune-torch "
_PROBE = r"""
import ctypes, json, os, tempfile
told = {}
try:
    import torch
except Exception as error:
    told["missing"] = f"{type(error).__name__}: {error}"
else:
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    told.update(version=str(torch.__version__), cuda=cuda, hip=hip)
    if cuda:
        try:
            library = ctypes.CDLL("libcublasLt.so." + cuda.split(".")[0])
            library.cublasLtGetVersion.restype = ctypes.c_size_t
            told["cublaslt"] = str(library.cublasLtGetVersion())
        except (OSError, AttributeError) as error:
            told["cublaslt_error"] = str(error)
    if (cuda or hip) and torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        told.update(device=device.name, capability=f"{device.major}.{device.minor}")
        told["gcn_arch"] = getattr(device, "gcnArchName", None) if hip else None
        try:
            import torch.cuda.tunable as tunable
            with tempfile.TemporaryDirectory() as folder:
                tunable.enable(True)
                tunable.tuning_enable(False)
                tunable.set_filename(os.path.join(folder, "none.csv"))
                a = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16)
                torch.mm(a, a)
                torch.cuda.synchronize()
                told["validators"] = dict(tunable.get_validators())
                tunable.enable(False)
        except Exception as error:
            told["validators_error"] = f"{type(error).__name__}: {error}"
print("gemmtune-torch " + json.dumps(told), flush=True)
"""


class NoTorch(GemmtuneError):
    """The interpreter has no torch that loads files for a GPU."""


@dataclass(frozen=True)
class InstalledTorch:
    """A torch build for GPUs. `version` is without its +suffix; `cuda` or `hip` is the version that it was
    built for. `device` is the name of the first GPU that it sees ("" for none). `validators`: what TunableOp
    checks, as far as the build says it."""

    python: str
    version: str
    cuda: str | None
    hip: str | None
    device: str = ""
    validators: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The build as export targets name it: torch-2.15.0+cuda."""
        found = re.match(r"[0-9]+\.[0-9]+(\.[0-9]+)?", self.version)
        return f"torch-{found[0] if found else self.version}+{'rocm' if self.hip else 'cuda'}"

    def validators_for(self, format_name: str) -> dict[str, str]:
        """The values that the format's files name. Raises ExportRefused for a release that no file is known
        for."""
        if format_name == "tunableop":
            known = parse_target(self.target).validators
            return {key: self.validators[key] for key in known if key in self.validators}
        if self.hip:
            return {key: self.validators[key] for key in ("GCN_ARCH_NAME",) if key in self.validators}
        return {"DEVICE_NAME": self.device} if self.device else {}

    @property
    def text(self) -> str:
        """For messages: torch 2.15.0 (CUDA 13.0) of /usr/bin/python3, NVIDIA H200."""
        built = f"ROCm {self.hip}" if self.hip else f"CUDA {self.cuda}"
        seen = self.device or "no GPU in sight"
        return f"torch {self.version} ({built}) of {self.python}, {seen}"


def ask(python: str) -> InstalledTorch:
    """The torch of an interpreter, which is a path or a name on PATH. Raises NoTorch: no such interpreter, no
    torch in it, or a build without CUDA and ROCm."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoTorch(f"{python} did not answer within {_SECONDS} s while it loaded torch") from None
    except OSError as error:
        reason = error.strerror or error
        raise NoTorch(f"{python} cannot be run as a Python interpreter: {reason}; check --python") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NoTorch(f"{python} ended before it said which torch it has: {last[:300]}")
    return _made(python, json.loads(lines[-1].removeprefix(_MARK)))


def _made(python: str, told: Mapping[str, Any]) -> InstalledTorch:
    if "missing" in told:
        raise NoTorch(
            f"{python} has no torch ({told['missing'][:300]}); name the interpreter that runs the model with "
            "--python, or the build with --target"
        )
    whole, cuda, hip = str(told["version"]), told["cuda"], told["hip"]
    if not cuda and not hip:
        raise NoTorch(
            f"torch {whole} of {python} is a CPU build: only CUDA and ROCm builds load these files; name the "
            "interpreter that runs the model with --python, or the build with --target"
        )
    version = whole.partition("+")[0]
    validators: dict[str, str] = {"PT_VERSION": version}
    if told.get("cublaslt"):
        validators["CUBLASLT_VERSION"] = told["cublaslt"]
    device = told.get("device") or ""
    if device and cuda:
        validators["CUDA_DEVICE"] = f"{told['capability']}:{device}"
    if told.get("gcn_arch"):
        validators["GCN_ARCH_NAME"] = told["gcn_arch"]
    # What TunableOp says itself is what it will compare the file with.
    validators.update(told.get("validators") or {})
    return InstalledTorch(python, validators["PT_VERSION"], cuda, hip, device, validators)
