"""Launches of kernels/pad.h: lines of operands, copied between layouts of different alignment."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backends.kernels.launch import KernelLaunch
from backends.operands import Layout

SOURCE = "pad.h"
_INTO, _OUT = "pad", "unpad"
_THREADS, _IN_FLIGHT, _MOST_COPIES = 256, 4, 8
#: Bytes that a thread copies at once.
_CHUNK = 16
#: Blocks of a copy at least (two a multiprocessor of a large GPU), where threads have less in flight for it;
#: and the most, whose threads then loop.
_ENOUGH_BLOCKS, _MOST_BLOCKS = 264, 2**26
#: Chunks of a line that a warp writes; lines of this many chunks are shared by whole blocks.
_WARP, _LONG = 32, 2**13


class Copy(ctypes.Structure):
    """kernels/pad.h: Copy."""

    _fields_ = (
        ("source", ctypes.c_uint64), ("target", ctypes.c_uint64), ("source_bytes", ctypes.c_int64),
        ("source_pitch", ctypes.c_int64), ("target_pitch", ctypes.c_int64),
        ("source_stride", ctypes.c_int64), ("target_stride", ctypes.c_int64),
        ("width", ctypes.c_int64), ("lines", ctypes.c_int64), ("batch", ctypes.c_int64),
        ("source_step", ctypes.c_int64), ("target_step", ctypes.c_int64), ("apart", ctypes.c_int64),
        ("first", ctypes.c_uint32), ("span_x", ctypes.c_uint32), ("span_y", ctypes.c_uint32),
        ("span_z", ctypes.c_uint32), ("across_log", ctypes.c_uint32), ("along", ctypes.c_int32),
    )  # fmt: skip

    def stepping(self) -> Copy:
        """This one, its steps those of its spans."""
        if self.along:
            self.apart = self.source_step = self.target_step = (self.span_x << self.across_log) * _CHUNK
        else:
            self.apart = self.span_y * (_THREADS >> self.across_log)
            on = self.apart if self.apart < self.lines else 0  # there is no second line
            self.source_step, self.target_step = on * self.source_pitch, on * self.target_pitch
        return self


class Copies(ctypes.Structure):
    """kernels/pad.h: Copies, the kernel's argument."""

    _fields_ = (("of", Copy * _MOST_COPIES), ("count", ctypes.c_int32))


@dataclass(frozen=True)
class CopyLaunch:
    """Copies of one launch without their addresses, its blocks, and the kernel."""

    argument: Copies
    blocks: int
    kernel: str

    @property
    def shape(self) -> KernelLaunch:
        """Its blocks. pad.h waits for the launch before it."""
        return KernelLaunch(self.kernel, (self.blocks, 1, 1), (_THREADS, 1, 1), waits=True)

    def at(self, addresses: Iterable[tuple[int, int]]) -> Copies:
        """The argument with each copy's (source, target)."""
        argument = Copies.from_buffer_copy(self.argument)
        for copy, (source, target) in zip(argument.of, addresses, strict=False):
            copy.source, copy.target = source, target
        return argument


def copy_launch(pairs: Sequence[tuple[Layout, Layout]], out: bool = False) -> CopyLaunch:
    """One launch that copies every element between an operand and our buffer for it (with as many columns or
    more); `out`: from there, else to there. A broadcast operand is copied once."""
    argument, blocks = Copies(count=len(pairs)), 0
    for index, (own, ours) in enumerate(pairs):
        copy = _copy(own, ours, out)
        copy.first = blocks
        blocks += copy.span_x * copy.span_y * copy.span_z
        argument.of[index] = copy
    return CopyLaunch(argument, blocks, _OUT if out else _INTO)


def _copy(own: Layout, ours: Layout, out: bool) -> Copy:
    size = own.dtype.bytes
    width, lines, batch = own.rows * size, own.columns, own.copies
    near, far = (own, ours) if not out else (ours, own)
    if batch > 1 and all(one.stride == one.ld * lines for one in (own, ours)):
        lines, batch = lines * batch, 1
    if lines > 1 and batch == 1 and own.ld == own.rows == ours.ld:
        width, lines = width * lines, 1
    across_log, spans, along = _shape(width, lines, batch, fill=not out)
    return Copy(
        0, 0, near.bytes, near.ld * size, far.ld * size, near.stride * size, far.stride * size,
        width, lines, batch, 0, 0, 0, 0, *spans, across_log, int(along),
    ).stepping()  # fmt: skip


def _shape(width: int, lines: int, batch: int, fill: bool) -> tuple[int, tuple[int, int, int], bool]:
    """(log2 of the threads along a line, blocks along x, y and z, whether a thread's chunks in flight follow
    one another along the line): as many of those as leave enough blocks."""
    chunks = (width + (_CHUNK - 1) * (1 if fill else 2)) // _CHUNK
    along = lines < _IN_FLIGHT and chunks > _THREADS
    across = _THREADS if along or chunks > _LONG else min(_WARP, 1 << (chunks - 1).bit_length())
    x, y = -(-chunks // across), -(-lines // (_THREADS // across))
    if along:
        x = min(x, max(-(-x // _IN_FLIGHT), -(-_ENOUGH_BLOCKS // (y * batch))))
    else:
        y = min(y, max(-(-y // _IN_FLIGHT), -(-_ENOUGH_BLOCKS // (x * batch))))
    y = min(y, max(1, _MOST_BLOCKS // x))
    if not along and y * (_THREADS // across) < lines:  # every so-manieth line starts at the same place
        whole = max(1, _CHUNK * across // _THREADS)
        y = -(-y // whole) * whole
    return across.bit_length() - 1, (x, y, min(batch, max(1, _MOST_BLOCKS // (x * y)))), along
