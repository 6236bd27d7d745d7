"""The program that interprets Triton's kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.backends.kernels.triton.asking import Asked

_PROGRAM = [sys.executable, "-m", "tests.backends.kernels.triton.interpreted"]
_INTERPRETED = {**os.environ, "TRITON_INTERPRET": "1"}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """The program that interprets; torch is imported once."""
    log = tmp_path_factory.mktemp("interpreter") / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            _PROGRAM,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_INTERPRETED,
        ) as process,
    ):

        def ask(line: str) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(line)
            process.stdin.flush()
            told = process.stdout.readline()
            assert told, log.read_text()[-3000:]
            answer: dict[str, Any] = json.loads(told)
            return answer

        yield ask
