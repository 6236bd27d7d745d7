"""The formats of files that other tools write, which are read as problems, and of files that they load.

A format is one module, and one line here in each of the two registries that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from service.formats.aiter.log import AiterLog
from service.formats.aiter.reader import Aiter, AiterUntuned
from service.formats.core import reading
from service.formats.core.base import (
    DEFAULTS,
    ByteStream,
    Claim,
    Entry,
    Format,
    Found,
    Header,
    Imported,
    ImportedClaim,
    ImportedProblem,
    ImportedSession,
    ReadOptions,
    Rejected,
)
from service.formats.core.export import (
    ExportOptions,
    ExportRefused,
    ExportReport,
    ExportRow,
    Writer,
)
from service.formats.cublas.cublas_log import CublasLog
from service.formats.cublas.cublaslt_log import CublasLtLog
from service.formats.gemmtune.c_header import CHeader
from service.formats.gemmtune.csv_table import Csv
from service.formats.gemmtune.journal import JournalLines
from service.formats.gemmtune.json_documents import Json, JsonLines
from service.formats.hipblaslt.log import HipblasltLog
from service.formats.hipblaslt.override import HipblasltOverride
from service.formats.inductor.table import InductorTable
from service.formats.model.config import ModelConfig
from service.formats.rocblas.override import RocblasOverride
from service.formats.rocblas.profile import RocblasProfile
from service.formats.tunableop.reader import TunableOp, TunableOpUntuned
from service.formats.vllm.block_fp8 import BlockFp8
from service.formats.vllm.block_fp8_writer import SglangBlockFp8, VllmBlockFp8
from service.formats.vllm.fused_moe import FusedMoe
from service.formats.vllm.fused_moe_writer import SglangMoe, VllmMoe
from service.formats.vllm.log import VllmLog

__all__ = [
    "FORMATS",
    "READERS",
    "WRITERS",
    "ByteStream",
    "Claim",
    "Entry",
    "ExportOptions",
    "ExportRefused",
    "ExportReport",
    "ExportRow",
    "Format",
    "Found",
    "Header",
    "Imported",
    "ImportedClaim",
    "ImportedProblem",
    "ImportedSession",
    "ReadOptions",
    "Rejected",
    "Writer",
    "read_file",
    "read_stream",
]

_READERS: tuple[Format, ...] = (
    TunableOp(),  # one line per format, in the order in which detection tries them
    TunableOpUntuned(),
    CublasLtLog(),
    CublasLog(),
    HipblasltLog(),
    RocblasProfile(),
    AiterLog(),
    Aiter(),
    AiterUntuned(),
    HipblasltOverride(),
    RocblasOverride(),
    BlockFp8(),
    FusedMoe(),
    VllmLog(),
    JournalLines(),
    ModelConfig(),
    JsonLines(),
    Json(),
    Csv(),
)

_WRITERS: tuple[Writer, ...] = (
    TunableOp(),  # one line per format
    HipblasltOverride(),
    RocblasOverride(),
    Aiter(),
    VllmBlockFp8(),
    SglangBlockFp8(),
    VllmMoe(),
    SglangMoe(),
    InductorTable(),
    CHeader(),
    JsonLines(),
    Json(),
    Csv(),
)

#: Every format that can be read, by name, in the order in which detection tries them.
READERS: Mapping[str, Format] = {reader.name: reader for reader in _READERS}
FORMATS = READERS

#: Every format that can be written, by name.
WRITERS: Mapping[str, Writer] = {writer.name: writer for writer in _WRITERS}


def read_file(
    path: str | PathLike[str], format_name: str | None = None, options: ReadOptions = DEFAULTS
) -> Imported:
    """Reads `path` in the named format, or in the one detected from its first bytes. Raises ReadError."""
    return reading.read_file(path, READERS, format_name, options)


def read_stream(
    stream: ByteStream,
    name_shown: str,
    format_name: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> Imported:
    """Reads a binary stream (an upload, a buffer) to its end in the named format, or in the one detected from
    its first bytes; messages call it `name_shown`. Raises ReadError."""
    return reading.read_stream(stream, name_shown, READERS, format_name, options)
