"""The driver of the tests: driver_stub.c, compiled once a session for each vendor."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

#: Options of the compiler by vendor.
_OPTIONS = {"cuda": (), "hip": ("-DSTUB_HIP",)}


class Record(ctypes.Structure):
    """A launch, as driver_stub.c records it."""

    _fields_: ClassVar[Any] = [
        ("entry", ctypes.c_char * 64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("programmatic", ctypes.c_int32),
        ("shared_limit", ctypes.c_int32),
    ]


@lru_cache
def library(vendor: str) -> Path:
    """The compiled stub of a vendor."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "the suite needs a C compiler"
    output = Path(tempfile.mkdtemp(prefix="gemmtune-stub-")) / f"{vendor}.so"
    source = Path(__file__).with_name("driver_stub.c")
    flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run([compiler, *flags, *_OPTIONS[vendor], str(source), "-o", str(output)], check=True)
    return output


class Stub:
    """What a test asks of the stub, and sets in it."""

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self._library = ctypes.CDLL(str(library(vendor)))
        self._library.stub_record.restype = ctypes.POINTER(Record)
        self._library.stub_current.restype = ctypes.c_uint64
        self._library.stub_reset()

    @property
    def launches(self) -> list[Record]:
        """Every launch since the test began."""
        records = [self._library.stub_record(number) for number in range(self._library.stub_launches())]
        return [record.contents for record in records]

    @property
    def loads(self) -> int:
        """Modules that were loaded."""
        return int(self._library.stub_loads())

    @property
    def encodings(self) -> int:
        """Tensor maps that were encoded."""
        return int(self._library.stub_encodings())

    def fail(self, call: str, status: int) -> None:
        """Makes a call answer a status from now on."""
        self._library.stub_fail(call.encode(), status)

    def version(self, number: int) -> None:
        """Sets the driver's version."""
        self._library.stub_version(number)

    def current(self) -> int:
        """The context that is current on this thread."""
        return int(self._library.stub_current())

    def forget_current(self) -> None:
        """Leaves this thread without a context."""
        self._library.stub_forget_current()
