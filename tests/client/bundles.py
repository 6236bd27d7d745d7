"""Writes bundles for the tests: the format of docs/decisions/0016, stated apart from the service's writer."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.operands import layouts
from backends.problem import GemmProblem, from_mm
from backends.wire import problem_to_wire

#: The devices of the stubs (stub/driver_stub.c).
DEVICES = {"cuda": "cuda:sm_90:NVIDIA-Stub-R-1:132", "hip": "hip:gfx942:AMD-Instinct-Stub:304"}
LAUNCHED_BY = {"cuda": "cuLaunchKernelEx", "hip": "hipModuleLaunchKernel", "cpu": "gemmtune_run"}
_TYPES = {"long long": 8, "void *": 8, "int": 4, "float": 4, "double": 8, "CUtensorMap": 128}

Document = dict[str, Any]


def digest(data: bytes) -> str:
    """A SHA-256 in hex digits."""
    return hashlib.sha256(data).hexdigest()


def manifest(device: str, rows: Sequence[Document], binaries: Mapping[bytes, str]) -> Document:
    """The manifest of a bundle. `binaries`: the bytes of each, and its suffix."""
    vendor, arch, product, units = device.split(":")
    return {
        "format": "gemmtune-bundle",
        "version": 1,
        "device": {"class": device, "vendor": vendor, "arch": arch, "product": product, "units": int(units)},
        "policy": {"id": "eager-cold-1", "content": {"mode": "eager", "cache": "cold"}},
        "requires": {"driver": 13000 if vendor == "cuda" else None},
        "environments": {"here": {"runtime": "CUDA 13.0", "driver": "580.1", "libraries": {"nvrtc": "13.0"}}},
        "convention": "D = A B",
        "order": "one after another",
        "binaries": {digest(data): {"bytes": len(data), "suffix": one} for data, one in binaries.items()},
        "rows": list(rows),
    }


def write(path: Path, found: Document, binaries: Mapping[bytes, str]) -> Path:
    """Writes a manifest with its binaries."""
    members = {"manifest.json": json.dumps(found, sort_keys=True).encode()}
    members |= {f"binaries/{digest(data)}": data for data in sorted(binaries, key=digest)}
    return write_members(path, members)


def write_members(path: Path, members: Mapping[str, bytes]) -> Path:
    """Writes a zip of these members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return path


def row(
    problem: GemmProblem, vendor: str, launches: Sequence[Document], workspace_bytes: int = 0
) -> Document:
    """A row of a bundle."""
    swapped = {"a": "b", "b": "a", "scale_a": "scale_b", "scale_b": "scale_a"}
    return {
        "problem": {"id": problem.id, "wire": problem_to_wire(problem), "canonical": problem.to_dict()},
        "solution": {
            "id": f"stub-{problem.slug}", "family": "stub", "version": 1, "parameters": {"tile": 64},
            "build": None,
        },
        "environment": "here",
        "verdict": {
            "judgement": "WIN", "seconds": 1e-5, "baseline_seconds": 1.5e-5, "baseline": "torch 2.13",
            "baseline_family": "torch",
            "speedup": [1.4, 1.5, 1.6], "rounds": 40, "session": "s-1", "decided_at": "2026-11-25T00:00:00Z",
        },
        "deterministic": True,
        "operands": {
            name: {
                "row_major": swapped.get(name, name), "dtype": one.dtype.name, "rows": one.rows,
                "columns": one.columns, "ld": one.ld, "batch_stride": one.stride, "bytes": one.bytes,
                "alignment": max(problem.alignment, one.dtype.bytes),
            }
            for name, one in layouts(problem).items()
        },
        "workspace": {"bytes": workspace_bytes, "alignment": 256},
        "launched_by": LAUNCHED_BY[vendor],
        "launches": list(launches),
    }  # fmt: skip


def launch(
    vendor: str, binary: bytes, entry: str, fields: Sequence[Document], last: Sequence[Document] = (),
    **changes: Any,
) -> Document:  # fmt: skip
    """A launch of a kernel that takes one struct of `fields`, then the values `last`."""
    size = max(field["offset"] + field["bytes"] for field in fields)
    aligned = -(-size // 64) * 64
    arguments: list[Document] = [
        {"name": "args", "type": "struct Args", "bytes": aligned, "alignment": 64, "fields": list(fields),
         "buffer_offset": 0}
    ]  # fmt: skip
    for number, one in enumerate(last):
        arguments.append({**one, "buffer_offset": aligned + 8 * number})
    return {
        "binary": digest(binary),
        "entry": entry,
        "grid": [3, 2, 1],
        "grid_depends_on_multiprocessors": None,
        "block": [128, 1, 1],
        "cluster": None,
        "dynamic_shared_bytes": 0,
        "needs_shared_memory_attribute": False,
        "programmatic_stream_serialization": False,
        "arguments": arguments,
        "argument_bytes": aligned + 8 * len(last),
        "resources": None,
        **changes,
    }


def field(name: str, kind: str, offset: int | None, **value: Any) -> Document:
    """A field of a struct, or with no offset a parameter: value=, or fill= with plus= or tensor_map=."""
    found: Document = {"name": name, "type": kind, "bytes": _TYPES[kind], **value}
    return found if offset is None else {**found, "offset": offset}


# ---- kernels of the stub -------------------------------------------------------------------------


def gemm_binary(maps: Sequence[str] = ()) -> bytes:
    """The stub's GEMM: a struct of sizes and addresses, with `maps` behind it, then alpha."""
    lines = ["GEMMSTUB", "kernel product gemm"]
    lines += [f"field {name} 0 {at} 8" for name, at in _SIZES.items()]
    lines += [f"field {name} 0 {at} 4" for name, at in _FLAGS.items()]
    lines += [f"field {name} 0 {at} 8" for name, at in _ADDRESSES.items()]
    lines += [f"field {name}.map 0 {128 + 128 * number} 8" for number, name in enumerate(maps)]
    return "\n".join([*lines, "field alpha 1 0 -4", ""]).encode()


_SIZES = {"m": 0, "n": 8, "k": 16, "lda": 24, "ldb": 32, "ldd": 40}
_FLAGS = {"trans_a": 48, "trans_b": 52}
_ADDRESSES = {"a": 56, "b": 64, "d": 72}


def gemm_launch(
    problem: GemmProblem, vendor: str, maps: Sequence[str] = (), a: Document | None = None, **changes: Any
) -> Document:
    """The launch of gemm_binary(). `a`: how the address of a is filled in, by default with the operand's."""
    where = {name: {"fill": name} for name in _ADDRESSES} | ({} if a is None else {"a": a})
    fields = [field(name, "long long", at, value=getattr(problem, name)) for name, at in _SIZES.items()]
    fields += [
        field(name, "int", at, value=int(getattr(problem, name) != "N")) for name, at in _FLAGS.items()
    ]
    fields += [field(name, "void *", at, **where[name]) for name, at in _ADDRESSES.items()]
    fields += [
        field(
            f"maps[{number}]",
            "CUtensorMap",
            128 + 128 * number,
            **where[name],
            tensor_map=tensor_map(problem),
        )
        for number, name in enumerate(maps)
    ]
    alpha = {"fill": "alpha"} if problem.alpha == "any" else {"value": 1.0}
    return launch(
        vendor, gemm_binary(maps), "product", fields, [field("alpha", "float", None, **alpha)], **changes
    )


def tensor_map(problem: GemmProblem) -> Document:
    """A tensor map of an operand that is contiguous along k."""
    return {
        "data_type": "BFLOAT16", "sizes": [problem.k, problem.m, 1], "strides": [4 * problem.k, 16],
        "box": [64, 128, 1], "element_strides": [1, 1, 1], "interleave": "NONE", "swizzle": "128B",
        "l2_promotion": "L2_256B", "fill": "NONE",
    }  # fmt: skip


#: Copies `source` to `target`, as the launches of a family on copies of misaligned operands do.
COPY_BINARY = b"GEMMSTUB\nkernel copies copy\nfield source 0 0 8\nfield target 0 8 8\nfield bytes 0 16 8\n"


def copy_launch(source: str, plus: int, size: int, vendor: str) -> Document:
    """The launch that copies an operand to `plus` bytes behind the workspace's start."""
    fields = [
        field("source", "void *", 0, fill=source),
        field("target", "void *", 8, fill="workspace", plus=plus),
        field("bytes", "long long", 16, value=size),
    ]
    return launch(vendor, COPY_BINARY, "copies", fields)


def simple(path: Path, vendor: str = "cuda", count: int = 1, device: str | None = None) -> Path:
    """A bundle of `count` rows: the stub's GEMM for the row-major problems m=1..count, n=3, k=5, fp32."""
    binary = gemm_binary()
    problems = [from_mm(m, 3, 5, "fp32") for m in range(1, count + 1)]
    rows = [row(one, vendor, [gemm_launch(one, vendor)]) for one in problems]
    found = manifest(device or DEVICES[vendor], rows, {binary: ".cubin"})
    return write(path, found, {binary: ".cubin"})
