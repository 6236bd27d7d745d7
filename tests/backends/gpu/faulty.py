"""A CUDA backend with a family whose candidates fault, hang or want too much memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from backends.cuda.backend import CudaBackend
from backends.environment import Environment
from backends.gpu.bandwidth import MovedWords
from backends.gpu.library import LibraryFamily
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Family, Kernel, Launch
from backends.solution import Solution

KINDS = ("fault", "hang", "memory", "error")


class FaultyKernel:
    """Does what its kind says when it is launched."""

    partial_sums = 1

    def __init__(self, kind: str, device: Any) -> None:
        self._kind, self._device = kind, device
        self.workspace_bytes = 2**60 if kind == "memory" else 0

    def prepare(self) -> None:
        """Nothing."""

    def bind(self, operands: Operands, workspace: int) -> Launch:
        device = self._device
        copy = device.function("bandwidth.h", "copy_words")
        # Sixteen words from an address that nobody owns; or more blocks than any grid may have.
        arguments = copy.pack(MovedWords(2**44, operands.d, 16))

        def launch() -> None:
            if self._kind == "hang":
                time.sleep(1000)
            blocks = 2**31 if self._kind == "error" else 1
            copy.launch((blocks, 1, 1), (32, 1, 1), arguments, device.stream)

        return launch


class FaultyFamily(LibraryFamily):
    """Parameters: kind."""

    name = "faulty"

    def unavailable(self, environment: Environment) -> str | None:
        return None

    def supports(self, problem: GemmProblem) -> bool:
        return True

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        return [Solution(self.name, 1, {"kind": kind}) for kind in KINDS]

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return None

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        return FaultyKernel(str(solution.parameters["kind"]), device)


class FaultyCuda(CudaBackend):
    """CudaBackend and the faulty family."""

    def families(self) -> Mapping[str, Family]:
        return {**super().families(), FaultyFamily.name: FaultyFamily()}
