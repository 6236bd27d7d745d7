"""The process that queries nvMatmulHeuristics, kept between questions: starting it takes 0.1 to 0.2 s on a
slow processor, an answer 5 ms. nvidia_prior.py explains why it is a process.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

PROGRAM = Path(__file__).with_name("nvidia_worker.py")


class StandingProcess:
    """Answers one question after another, each a line of JSON. It starts with the first question, and again
    after it died, after it was killed because it did not answer, and in a child of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._owner = 0

    def ask(self, request: Mapping[str, Any], seconds: float) -> list[Any] | str:
        """The answer, or what went wrong, such as the last line that the process wrote before it died. An
        answer is waited for `seconds` long."""
        with self._lock:
            try:
                process = self._started()
                answer = _exchanged(process, json.dumps(request).encode() + b"\n", seconds)
            except OSError as error:
                self._end()
                return str(error)
            if answer is None:
                self._end()
                return f"no answer within {seconds:.0f} s"
            if not answer.endswith(b"\n"):
                return self._last_words(process)
            try:
                return list(json.loads(answer))
            except ValueError as error:
                self._end()
                return f"its answer cannot be read: {error}"

    def close(self) -> None:
        """Ends the process. A later question starts another."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid():
            return self._process
        path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (a pipe that nobody reads would fill)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        )
        self._owner = os.getpid()
        return self._process

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        status, said = process.wait(), b""
        if self._errors is not None:
            self._errors.seek(0)
            said = self._errors.read()
        self._end()
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"status {status}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()  # it keeps nothing
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _exchanged(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes | None:
    """The line that the process answers with; without its end if the process closed its output before, None
    if it did not answer in time."""
    if process.stdin is None or process.stdout is None:
        raise OSError("the process has no pipes")
    try:
        process.stdin.write(question)
    except BrokenPipeError:  # it died; what it said tells why
        return b""
    end, answer = time.monotonic() + seconds, b""
    waiting = select.poll()  # select() takes no file beyond the 1,024th of a process
    waiting.register(process.stdout, select.POLLIN)
    while not answer.endswith(b"\n"):
        if not waiting.poll(1000 * max(0.0, end - time.monotonic())):
            return None
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            break
        answer += part
    return answer


#: This process's own.
HEURISTICS = StandingProcess()
atexit.register(HEURISTICS.close)
