"""AITER's log: the calls that its tuned tables have no row for. Row-major.

    [aiter] shape is M:16, N:14336, K:4096 dtype='torch.bfloat16' otype='torch.bfloat16' bias=False,
        scaleAB=False, bpreshuffle=False, not found tuned config in /tmp/aiter_configs/bf16_tuned_gemm.csv,
        will use default config! using torch solution:0                                     (one line)

Such a line stands among all that a server prints, behind whatever its workers put before it; lines that do
not say `not found tuned` are passed over. A program logs a shape once a process, as long as its cache of
lookups holds it, so a count says how many processes asked rather than how often.

Where a line says no types, the name of the table that it looked into says the operator, as for tables; of
block scales it does not say the 8-bit float: give the dtype. What does not become clear is rejected: tables
under another name, bf16 lines before 2025-11, and "CKGEMM", which several operators called theirs.

Source: ROCm/aiter, aiter/tuned_gemm.py, aiter/ops/gemm_op_a8w8.py, gemm_op_a4w4.py, batched_gemm_op_*.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from service.formats.aiter import problem as calls
from service.formats.aiter.problem import A8W8, A8W8_BATCHED, BATCHED, BF16, BLOCKSCALE, Told
from service.formats.core.base import (
    DEFAULTS,
    Declaration,
    Entry,
    ReadOptions,
    Rejected,
    decode_lines,
    rejected,
)
from service.formats.core.rocm_values import whole
from service.formats.tunableop.signature import BadLineError, quote

_SEEN = re.compile(
    rb"(?:^|[\n )\]])\[aiter(?: [A-Z]{1,8})?\] "
    rb"|shape is (?:B:[0-9]+, )?M:[0-9]+, N:[0-9]+, K:[0-9]+[^\n]{0,200}not found tuned"
)
_MISS = "not found tuned"
_LINE = re.compile(
    r"shape is (?:B:([0-9]+), )?M:([0-9]+), N:([0-9]+), K:([0-9]+)([^0-9].*?)?"
    r",? ?not found tuned(/padded)? config in (.+)"
)
#: The table that it looked into: a path up to its suffix, else the operator's own name of its tables.
_WHERE = re.compile(r"(.+?\.csv|CKGEMM or asmGEMM|CKGEMM|ASMGEMM)(?=[,;! ]|$)")
_BF16 = re.compile(
    r" dtype='?([A-Za-z0-9_.]+)'? otype='?([A-Za-z0-9_.]+)'? bias=([A-Za-z]+), scaleAB=([A-Za-z]+)"
    r"(?:, bpreshuffle=([A-Za-z]+))? ?"
)
_QUANTIZED = re.compile(r", q_dtype_w:([A-Za-z0-9_.]+)")
#: Texts whose problem is cached, and the longest text that is.
_REMEMBERED, _LONGEST = 4096, 1024


@dataclass(frozen=True)
class AiterLog:
    """The format's entry in the registry."""

    name: str = "aiter-log"
    declares: ClassVar[Declaration] = Declaration("hip", options=("file_name", "dtype", "arch"))
    description: str = "AITER's log of shapes without a tuned config, AITER_LOG_LEVEL=INFO (its default)"
    example: str = (
        "[aiter] shape is M:16, N:14336, K:4096 dtype='torch.bfloat16' otype='torch.bfloat16' bias=False, "
        "scaleAB=False, bpreshuffle=False, not found tuned config in /tmp/aiter_configs/bf16_tuned_gemm.csv, "
        "will use default config! using torch solution:0"
    )

    def detect(self, head: bytes) -> bool:
        """Whether a line is AITER's: any line of its log, because a miss may come late."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Like read_told(), with the default options."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Entry | Rejected]:
        """Yields every miss's problem, without a key, since the problem records all of it. Skips other lines.
        options.dtype is the 8-bit float of lines that do not name it, or that of options.arch is."""
        told = Told(dtype=options.dtype, arch=options.arch)
        known: dict[str, GemmProblem] = {}
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded
            if _MISS not in text:
                continue
            said = text[max(text.rfind("shape is ", 0, text.index(_MISS)), 0) :].rstrip()
            problem = known.get(said)
            if problem is None:
                try:
                    problem = parse_line(said, told)
                except (BadLineError, InvalidProblem) as error:
                    yield rejected(number, error, said)
                    continue
                if len(said) <= _LONGEST:
                    if len(known) >= _REMEMBERED:
                        known.clear()
                    known[said] = problem
            yield Entry(number, problem, "")


def parse_line(text: str, told: Told) -> GemmProblem:
    """The problem of a miss, from `shape is` on. Raises BadLineError or InvalidProblem."""
    if not text.isprintable():
        raise BadLineError("the line holds control characters")
    if text.count(_MISS) > 1:
        raise BadLineError("two messages stand in one line: processes wrote over each other")
    line = _LINE.match(text)
    where = None if line is None else _WHERE.match(line[7])
    if line is None or where is None:
        raise BadLineError("no miss as AITER logs one: the line is cut, or another program's")
    batch = None if line[1] is None else whole(line[1], "B")
    m, n, k = (whole(line[group], name) for group, name in ((2, "M"), (3, "N"), (4, "K")))
    said, table = line[5] or "", where[1]
    if found := _BF16.fullmatch(said):
        if batch is not None:
            raise BadLineError("a batch stands beside the bf16 family's types")
        return _bf16((m, n, k), found, told)
    family = calls.MXSCALE if line[6] else _family(said, table, batch is not None)
    calls.check_expressible(family)
    if (family == BATCHED) != (batch is not None):
        raise BadLineError(f"{quote(table)} is of the {family} family, and the shape is not")
    if family == calls.A4W4:
        if said.strip(", "):
            raise BadLineError(f"{quote(said.strip(', '))} is not understood: it may change the problem")
        return calls.mxfp4(m, n, k)
    quantized = _QUANTIZED.fullmatch(said)
    if quantized is None and said.strip(", ") != ("dtype is bf16" if batch is not None else ""):
        raise BadLineError(f"{quote(said.strip(', '))} is not understood: it may change the problem")
    if batch is not None:
        return calls.batched(batch, m, n, k)
    if quantized is not None:
        kind = told.type(quantized[1], "q_dtype_w")
    elif family == A8W8:
        kind = "int8"
    else:
        kind = told.fp8
    return calls.call_of(family, kind)(m, n, k)


def _bf16(sizes: tuple[int, int, int], found: re.Match[str], told: Told) -> GemmProblem:
    bias, scaled = calls.flag(found[3], "bias"), calls.flag(found[4], "scaleAB")
    if found[5] is not None:
        calls.flag(found[5], "bpreshuffle")  # the same product, whose kernel takes shuffled weights
    return calls.plain(*sizes, told.type(found[1], "dtype"), told.type(found[2], "otype"), bias, scaled)


#: The families whose tables a log names.
_LOGGED = (
    A8W8, BLOCKSCALE, *calls.SHUFFLED, calls.ASM, calls.A4W4, BATCHED, A8W8_BATCHED, calls.MXSCALE,
)  # fmt: skip


def _family(said: str, table: str, in_batches: bool) -> str:
    """The operator's family, from the table that it looked into. Raises BadLineError."""
    if table == "ASMGEMM":
        return calls.ASM
    if table == "CKGEMM or asmGEMM":
        return calls.A4W4
    if table == "CKGEMM":
        if in_batches:
            return BATCHED if "bf16" in said else A8W8_BATCHED
        raise BadLineError("CKGEMM: several operators name their tables so, and the types are not said")
    family = calls.named_family(table)
    if family == BF16:
        raise BadLineError("the line says no types: AITER's bf16 log says them from 2025-11 on")
    if family is None or family not in _LOGGED:
        raise BadLineError(
            f"the table {quote(table)} does not say of which operator it is: only names such as "
            "a8w8_blockscale_tuned_gemm.csv do"
        )
    return family
