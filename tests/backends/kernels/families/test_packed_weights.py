"""The layout of packed-mma's weights: the packing kernel on the host beside its description in numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backends.dtypes import DTYPES
from backends.kernels.families import FAMILIES
from backends.kernels.families.packed_mma import LAYOUT
from backends.kernels.prepacked import Prepacked, most_packed_bytes
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import H200, Built, HostKernel, build, compiled
from tests.backends.kernels.emulator.memory import HostBuffer
from tests.backends.kernels.packed_layout import GROUPS, Bytes, codes, described, given_back, scales, zeros
from tests.backends.kernels.samples import SM_90, legal_values
from tests.backends.weight_samples import every_kind, weights

FAMILY = FAMILIES["packed-mma"]
CHOSEN: dict[str, Parameter] = {"rows": 16, "slots": 2, "warps_m": 1, "warps_k": 1, "splits": 1}
Packing = dict[str, Callable[..., "bytes | None"]]
#: Bytes behind a copy that stay as they were.
BEYOND = 64


def prepacked(problem: GemmProblem, values: dict[str, Parameter] | None = None) -> Prepacked:
    """The packed copy of the family's configuration."""
    found = FAMILY.config(problem, values or CHOSEN, SM_90).prepacked
    assert found is not None
    return found


#: Every packing kernel -> a problem whose weights it packs.
KINDS: dict[str, GemmProblem] = {
    prepacked(p).packing: p
    for scale in ("bf16", "fp32")
    for p in every_kind(1, 40, 640, scale_dtype=scale, prepacked=True)
    if FAMILY.supports(p)
}


@pytest.fixture(scope="module")
def packing(tmp_path_factory: pytest.TempPathFactory) -> Packing:
    """Every packing kernel, without products."""
    lines = ['#include "families/packed_mma.h"']
    for number, name in enumerate(KINDS):
        lines.append(f"using Packing_{number} = {name};\nGEMMTUNE_KERNEL(pack_{number}, Packing_{number})")
    library = compiled("\n".join(lines), tmp_path_factory.mktemp("packing") / "packing.so")
    found = {name: getattr(library, f"launch_pack_{number}") for number, name in enumerate(KINDS)}
    for call in found.values():
        call.restype = ctypes.c_char_p
    return found


def random_operands(p: GemmProblem, seed: int) -> dict[str, Bytes]:
    """The bytes of stored weights, scales and zero points, every one drawn at random."""
    rng, shapes = np.random.default_rng(seed), layouts(p)
    names = [name for name in ("a", "scale_a", "zero_a") if name in shapes]
    return {name: rng.integers(0, 256, shapes[name].bytes, np.uint8) for name in names}


def written(kernel: HostKernel, stored: dict[str, Bytes], poison: int) -> Bytes:
    """The copy that a kernel packs, over `poison`; nothing behind it changes."""
    buffers = {name: HostBuffer(data.size) for name, data in stored.items()}
    for name, data in stored.items():
        buffers[name].upload(data)
    copy = HostBuffer(kernel.packed_bytes + BEYOND)
    copy.upload(np.full(copy.size, poison, np.uint8))
    addresses = {name: buffer.address for name, buffer in buffers.items()}
    kernel.pack(replace(Operands.at(addresses, (1.0, 0.0)), packed=copy.address))()
    found = copy.download(0, copy.size)
    assert (found[kernel.packed_bytes :] == poison).all()
    return found[: kernel.packed_bytes]


def kernel_of(p: GemmProblem, calls: Packing, other_way: bool) -> HostKernel:
    """The packing kernel for a problem, without a product."""
    call = calls[prepacked(p).packing]
    return HostKernel(Built(FAMILY.config(p, CHOSEN, SM_90), call, call, call), other_way)


def check(p: GemmProblem, stored: dict[str, Bytes], copy: Bytes) -> None:
    """That a copy is the one described, of as many bytes as are said, and has every number that is stored."""
    assert copy.size == prepacked(p).bytes
    wanted = described(p, stored)
    assert wanted.size == copy.size
    assert np.array_equal(copy, wanted), f"byte {np.flatnonzero(copy != wanted)[0]} of {p.slug}"
    bits, scale, zero = given_back(p, copy)
    group = GROUPS.get(p.scale_a, p.k)
    assert np.array_equal(bits, codes(p, stored["a"]))
    assert np.array_equal(scale, np.repeat(scales(p, stored["scale_a"]), group, axis=1))
    assert (zero is not None) == ("zero_a" in stored)
    if zero is not None:
        assert np.array_equal(zero, np.repeat(zeros(p, stored["zero_a"]), group, axis=1))


def test_every_kind_is_packed_as_described(packing: Packing) -> None:
    """40 rows are two tiles and a half, 640 of k whole records; every byte is written."""
    for p in KINDS.values():
        stored = random_operands(p, 1)
        for poison, other_way in ((0x00, False), (0xFF, True)):
            check(p, stored, written(kernel_of(p, packing, other_way), stored, poison))


def drawn(rng: np.random.Generator, kind: GemmProblem) -> GemmProblem:
    """Weights of a kind, of any size that the family reads, their rows maybe apart."""
    line = 32 if DTYPES[kind.dtype_a].bits == 4 else 16  # weights in 16 bytes
    step = max(line, GROUPS.get(kind.scale_a, 0))
    rows = 8 * int(rng.integers(1, 9)) if kind.zero_a == "uint4" else int(rng.integers(1, 71))
    if kind.scale_a == "block_128x128":
        rows += 128 * int(rng.integers(2))
    k = step * int(rng.integers(1, 320 // step + 1))
    apart = line * int(rng.integers(3))
    return replace(kind, m=rows, k=k, lda=k + apart, ldb=k, ldc=rows, ldd=rows)


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_has_every_number_of_the_weights(packing: Packing, seed: int) -> None:
    """Rows that are no whole tiles, k that is no whole record: what is packed can be read again."""
    rng = np.random.default_rng(seed)
    for kind in KINDS.values():
        p = drawn(rng, kind)
        assert FAMILY.rule(p, CHOSEN, H200) is None
        stored = random_operands(p, seed)
        kernel = kernel_of(p, packing, bool(rng.integers(2)))
        check(p, stored, written(kernel, stored, int(rng.integers(256))))


def test_bytes_of_a_copy() -> None:
    """Records of whole tiles, then the scales of their rows."""
    made = partial(weights, 3, 40, 640, prepacked=True)
    assert prepacked(made()).bytes == 3 * 5 * (1024 + 16 * 2)
    assert prepacked(made(zero_b="uint4")).bytes == 3 * 5 * (1024 + 16 * 2 + 16)
    assert prepacked(made(zero_b="float", scale_b="block_1x32")).bytes == 3 * 5 * (1024 + 4 * 2 * 16 * 2)
    assert prepacked(made("int8", scale_b="block_1x64", scale_dtype="fp32")).bytes == 3 * 10 * (1024 + 64)
    assert prepacked(made("int8", scale_b="outer", scale_dtype="fp32")).bytes == 3 * 10 * 1024 + 48 * 4
    assert prepacked(made("int4", scale_b="tensor")).bytes == 3 * 5 * 1024 + 48 * 2


# ---- one layout ----------------------------------------------------------------------------------


def test_the_copy_is_the_weights_own() -> None:
    """No candidate, number of columns, type of activations or epilogue changes it."""
    for p in KINDS.values():
        first = prepacked(p)
        assert first.layout == LAYOUT
        calls = [replace(p, n=n) for n in (2, 17, 64)]
        calls += [replace(p, dtype_b="fp16", dtype_c="fp16", dtype_d="fp16"), replace(p, ldb=p.k + 8)]
        calls += [replace(p, n=8, beta="any", activation="silu", bias="bf16", bias_axis="m")]
        for call in calls:
            found = legal_values(FAMILY, call, H200, 4, seed=call.n)
            assert found
            for values in found:
                assert prepacked(call, values) == first, (call.slug, values)


def test_candidates_of_any_number_of_columns_pack_the_same_bytes(tmp_path: Path) -> None:
    """By the packing kernels of their own binaries."""
    problems = [weights(columns, 40, 384, zero_b="uint4", prepacked=True) for columns in (1, 8, 24)]
    found = [
        FAMILY.config(problem, values, SM_90)
        for problem in problems
        for values in legal_values(FAMILY, problem, H200, 2, seed=problem.n)
    ]
    assert len({(one.threads, one.blocks, one.splits) for one in found}) > 2
    stored = random_operands(found[0].product.problem, 5)
    copies = [written(HostKernel(one, False), stored, 0xA5) for one in build(found, tmp_path)]
    for copy in copies:
        assert np.array_equal(copy, copies[0])


@pytest.mark.parametrize("n", [8, 40, 512, 4096])
@pytest.mark.parametrize("k", [128, 640, 4096])
def test_a_copy_is_within_the_bound_that_is_known_without_a_solution(n: int, k: int) -> None:
    for scale in ("bf16", "fp32"):
        kinds = every_kind(1, n, k, scale_dtype=scale, prepacked=True)
        for problem in kinds:
            if FAMILY.supports(problem):
                size, most = prepacked(problem).bytes, most_packed_bytes(problem)
                assert size <= most, problem
                assert n < 512 or k < 4096 or most <= 1.3 * size, "a bound that refuses little that would fit"
