"""Compiles Triton kernels ahead of time, through the cache. Needs neither a GPU nor torch.

A compiler process serves one thread at a time (triton_worker.py says why it is a separate process). Processes
are started on demand, up to the number of processors but at most 16, and reused. Triton's own cache is a
temporary folder of each process, deleted with it; our cache holds the binaries.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.kernels.triton import description
from backends.kernels.triton.description import Compiled, Description, Request

#: The release line of Triton whose compiler and launch conventions this module knows.
LINE = "3.6."
#: The folder that holds the import packages.
_ROOT = Path(__file__).parents[2]
#: Source files that affect a kernel in addition to its request.
_SOURCES = (
    "backends/kernels/triton/kernels.py",
    "backends/kernels/triton/framework_kernels.py",
    "backends/kernels/triton/weight_kernels.py",
    "backends/kernels/triton/description.py",
    "backends/toolchains/triton_worker.py",
)
#: A kernel compiles in a second or two; one that takes this long is hanging.
TIMEOUT_SECONDS = 180.0
_LOG_BYTES = 2**16


@lru_cache(maxsize=1)
def triton_build() -> str | None:
    """Triton's version, None if it is not installed. Does not import it."""
    try:
        return metadata.version("triton") if importlib.util.find_spec("triton") is not None else None
    except (ImportError, ValueError, metadata.PackageNotFoundError):
        return None


def missing() -> str | None:
    """Why nothing can be compiled, and what to install; None if compiling works."""
    build, cure = triton_build(), "pip install 'gemmtune[triton]'"
    if build is None:
        return f"Triton is not installed; {cure}"
    if not build.startswith(LINE):
        return f"Triton {build} is not of the line {LINE}x that these kernels are compiled with; {cure}"
    return None


def usable_build() -> str | None:
    """The version of an installed Triton that can compile these kernels, or None."""
    return triton_build() if missing() is None else None


@dataclass(frozen=True)
class TritonUnit:
    """A candidate's kernels, by entry (gemm, reduce), for one architecture (sm_90)."""

    requests: Mapping[str, Request]
    arch: str


class Triton:
    """Triton as a Toolchain."""

    name = "triton"

    def build(self, arch: str | None = None) -> str | None:
        """Triton's version, None if it is not installed."""
        return triton_build()

    def missing(self, arch: str | None = None) -> str | None:
        """Why nothing can be compiled, and what to install; None if compiling works."""
        return missing()

    def target(self, arch: str, arch_specific: bool) -> str:
        """The architecture itself: Triton chooses the suffix."""
        return arch

    def compile(self, unit: TritonUnit, cache: BinaryCache) -> Path:
        """The file that holds a candidate's kernels (description.py). See Toolchain."""
        if (why := missing()) is not None:
            raise CompilerMissing(why)
        texts = {name: one.to_json() for name, one in unit.requests.items()}
        compiler = f"triton {triton_build()}"
        key = BinaryCache.key({**_sources(), **texts}, unit.arch, compiler, sorted(texts))

        def build(path: Path) -> None:
            found = {name: _compiled(texts[name], one.parameters) for name, one in unit.requests.items()}
            description.write(path, unit.arch, compiler, found)

        return cache.get(key, description.SUFFIX) or cache.put(key, description.SUFFIX, build)


@lru_cache(maxsize=1)
def _sources() -> Mapping[str, str]:
    return {name: (_ROOT / name).read_text() for name in _SOURCES}


@lru_cache(maxsize=256)
def _compiled(text: str, parameters: tuple[str, ...]) -> Compiled:
    """Compiles one kernel. Cached, since split-K candidates share their reduction kernel."""
    answer = _POOL.ask(text)
    if "error" in answer:
        raise CompileError(f"Triton refuses {json.loads(text)['kernel']}: {answer['error']}", answer["log"])
    binary = base64.b64decode(answer.pop("binary"))
    found = Description.from_dict(answer)
    if found.parameters != parameters:
        raise CompileError(
            f"Triton gave {found.entry} the parameters {found.parameters}, and a launch passes {parameters}"
        )
    return Compiled(binary, found)


class Worker:
    """A compiler process. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gemmtune-triton-")
        #: A file rather than a pipe, which would not be drained while an answer is awaited.
        self._log = Path(self._folder.name, "log").open("w+b")  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "backends.toolchains.triton_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment(),
            cwd=self._folder.name,
        )

    def _environment(self) -> dict[str, str]:
        """Drops the user's TRITON_* variables, which would change the kernels (interpreter, other passes)
        without changing the cache key. Passes this process's import path on, so that the worker imports the
        same Triton."""
        dropped = (
            "TRITON_", "MLIR_", "LLVM_", "NVPTX_", "AMDGCN_", "DISABLE_PTXAS_OPT", "PTXAS_OPTIONS",
            "USE_IR_LOC",
        )  # fmt: skip
        found = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        paths = [str(_ROOT), *(path for path in sys.path if path)]
        return found | {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "TMPDIR": self._folder.name,
            "TRITON_CACHE_DIR": str(Path(self._folder.name, "cache")),
            "TRITON_DUMP_PTXAS_LOG": "1",
            "TRITON_HOME": self._folder.name,
        }

    def ask(self, text: str) -> dict[str, Any]:
        """The answer to a request. Raises CompileError if the process ends or does not answer; the worker is
        unusable afterwards."""
        if self._log.tell() > _LOG_BYTES:  # output of earlier requests: a process may live for months
            self._log.seek(0)  # the child shares the file position
            self._log.truncate()
        process, start = self._process, self._log.tell()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the compiler has no pipes")
        try:
            process.stdin.write(text.encode() + b"\n")
            process.stdin.flush()
            line = self._line(process.stdout.fileno())
        except OSError as error:
            raise self._died(f"ended before it answered ({error})", start) from error
        if line is None:
            raise self._died(f"gave no answer within {TIMEOUT_SECONDS:.0f} s", start)
        if not line.endswith(b"\n"):
            raise self._died("ended before it answered", start)
        found: dict[str, Any] = json.loads(line)
        return found

    def _line(self, descriptor: int) -> bytes | None:
        """Reads up to a newline or the end of the stream; None on timeout."""
        parts = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not parts.endswith(b"\n"):
                if not selector.select(TIMEOUT_SECONDS):
                    return None
                data = os.read(descriptor, 2**20)
                if not data:
                    break
                parts += data
        return bytes(parts)

    def _died(self, how: str, start: int) -> CompileError:
        self._process.kill()
        status = self._process.wait()
        self._log.seek(start)
        log = self._log.read()[-_LOG_BYTES:].decode(errors="replace")
        return CompileError(f"Triton's process {how} (status {status})", log)

    def close(self) -> None:
        """Kills the process and deletes its folder."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.kill()  # it has no state worth a clean shutdown
        self._process.wait()
        self._log.close()
        self._folder.cleanup()


class WorkerPool:
    """Compiler processes, at most `most`, started on demand."""

    def __init__(self, most: int) -> None:
        self._free: list[Worker] = []
        self._lock, self._places = threading.Lock(), threading.Semaphore(most)

    def ask(self, text: str) -> dict[str, Any]:
        """Sends a request to a free process and returns its answer. Raises CompileError."""
        with self._one() as worker:
            return worker.ask(text)

    @contextlib.contextmanager
    def _one(self) -> Iterator[Worker]:
        with self._places:
            with self._lock:
                worker = self._free.pop() if self._free else None
            worker = Worker() if worker is None else worker
            try:
                yield worker
            except BaseException:
                worker.close()
                raise
            with self._lock:
                self._free.append(worker)

    def close(self) -> None:
        """Ends the idle processes."""
        with self._lock:
            free, self._free = self._free, []
        for worker in free:
            worker.close()


_POOL = WorkerPool(max(1, min(os.cpu_count() or 1, 16)))
atexit.register(_POOL.close)
