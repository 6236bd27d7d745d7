"""Rows that read a packed copy of quantised weights: packed by the client, launched, and what is refused."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemmtune
import ml_dtypes
import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.problem import from_linear, from_mm
from backends.quantisation import dequantised
from tests.client import bundles, packed_rows
from tests.client.stub import Stub

pytestmark = pytest.mark.compiler

M, N, K = 3, 16, 256
PROBLEM = from_linear(
    M, N, K, "bf16", dtype_b="uint4", scale_b="block_1x128", scale_dtype="bf16", zero_b="eight",
    bias="bf16", prepacked=True,
)  # fmt: skip
BYTES = 4 * N * K


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, cache: BinaryCache) -> Path:
    """A row that reads a copy."""
    path = tmp_path_factory.mktemp("packed") / "rows.gtb"
    return packed_rows.write(path, [(PROBLEM, packed_rows.COLUMNS)], cache)


def test_a_row_tells_of_its_packing(bundle: Path) -> None:
    (row,) = gemmtune.load(bundle).rows
    assert row.packing is not None
    assert (row.packing.layout, row.packing.bytes, row.packing.alignment) == ("test-columns", BYTES, 256)
    assert list(row.operands) == ["b", "bias", "d", "packed"]
    assert list(row.packing.operands) == ["a", "packed", "scale_a"]
    assert {fill.name for fill in row.launches[0].fills} == set(row.operands)
    assert {fill.name for fill in row.packing.launch.fills} == set(row.packing.operands)
    assert row.all_launches == (*row.launches, row.packing.launch)


def test_weights_are_packed_and_the_copy_is_read(bundle: Path) -> None:
    table = gemmtune.load(bundle)
    (row,) = table.rows
    loaded = table.open()
    kernel, driver = loaded.kernel(row), loaded.driver
    assert (kernel.layout, kernel.packed_bytes) == ("test-columns", BYTES)
    assert kernel.packing_operands == ("a", "packed", "scale_a")
    random = np.random.default_rng(0)
    weight = random.integers(0, 256, (N, K // 2), dtype=np.uint8)
    scales = random.uniform(0.5, 1.5, (N, 2)).astype(ml_dtypes.bfloat16)
    x, bias = random.normal(size=(M, K)).astype(ml_dtypes.bfloat16), np.ones(N, ml_dtypes.bfloat16)
    values = {"a": weight, "scale_a": scales, "b": x, "bias": bias}
    sizes = packed_rows.bytes_of(PROBLEM) | {"packed": BYTES}
    at = {name: driver.allocate(size) for name, size in sizes.items()}
    for name, one in values.items():
        driver.write(at[name], one.tobytes())
    given = tuple(at[name] for name in kernel.packing_operands)
    kernel.check_packing(given)
    kernel.prepare_packing()(0, 0, given)
    numbers = dequantised(PROBLEM, weight, scales.astype(np.float64), None)
    copied = np.frombuffer(driver.read(at["packed"], BYTES), np.float32).reshape(K, N)
    np.testing.assert_array_equal(copied, numbers.T.astype(np.float32))
    addresses = tuple(at[name] for name in kernel.operands)
    kernel.check(0, addresses)
    kernel.prepare()(0, 0, addresses)
    out = np.frombuffer(driver.read(at["d"], 2 * M * N), ml_dtypes.bfloat16).reshape(M, N)
    exact = x.astype(np.float64) @ numbers.T + 1
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=2**-7, atol=0.05)


def test_wrong_addresses_are_refused(bundle: Path) -> None:
    table = gemmtune.load(bundle)
    kernel = table.open().kernel(table.rows[0])
    with pytest.raises(gemmtune.LaunchError, match="2 addresses; the operands are a, packed, scale_a"):
        kernel.prepare_packing()(0, 0, (256, 512))
    with pytest.raises(gemmtune.LaunchError, match="packed is at 0x310; it must be at a multiple of 256"):
        kernel.check_packing((256, 0x310, 512))
    with pytest.raises(gemmtune.LaunchError, match="packed is at 0x40"):
        kernel.check(0, (256, 512, 768, 64))


def test_a_kernel_that_reads_stored_weights_packs_nothing(tmp_path: Path, cache: BinaryCache) -> None:
    table = gemmtune.load(packed_rows.write(tmp_path / "stored.gtb", [(PROBLEM, None)], cache))
    kernel = table.open().kernel(table.rows[0])
    assert (kernel.layout, kernel.packed_bytes, kernel.packing_operands) == (None, 0, ())
    with pytest.raises(gemmtune.LaunchError, match="reads weights as they are stored"):
        kernel.prepare_packing()


def test_a_gpus_packing_is_a_launch_of_its_own(stub: Stub, tmp_path: Path) -> None:
    """The stub's product reads A from the copy, which the stub's copying kernel makes of A."""
    plain, vendor = from_mm(4, 6, 8, "fp32", trans_b="T"), stub.vendor
    product = bundles.gemm_launch(plain, vendor, a={"fill": "packed"})
    fields = [
        bundles.field("source", "void *", 0, fill="a"),
        bundles.field("target", "void *", 8, fill="packed"),
        bundles.field("bytes", "long long", 16, value=4 * 6 * 8),
    ]
    row = bundles.row(plain, vendor, [product])
    row["problem"]["canonical"] = PROBLEM.to_dict()
    a, size = row["operands"].pop("a"), 4 * 6 * 8
    copied = {**a, "row_major": "packed", "bytes": size, "alignment": 256}
    row["operands"]["packed"] = copied
    row["packing"] = {
        "layout": "a copy", "bytes": size, "alignment": 256, "operands": {"a": a, "packed": copied},
        "launch": bundles.launch(vendor, bundles.COPY_BINARY, "copies", fields, grid=[5, 1, 1]),
    }  # fmt: skip
    binaries = dict.fromkeys((bundles.gemm_binary(), bundles.COPY_BINARY), ".bin")
    manifest = bundles.manifest(bundles.DEVICES[vendor], [row], binaries)
    table = gemmtune.load(bundles.write(tmp_path / "packed.gtb", manifest, binaries))
    loaded = table.open()
    kernel, driver = loaded.kernel(table.rows[0]), loaded.driver
    assert stub.loads == 2, "loaded before a graph's capture, which packing may not wait in"
    left = np.arange(32, dtype=np.float32).reshape(4, 8)
    right = np.arange(48, dtype=np.float32).reshape(6, 8) - 20
    at = {name: driver.allocate(4096) for name in ("a", "b", "d", "packed")}
    driver.write(at["a"], right.tobytes())
    driver.write(at["b"], left.tobytes())
    kernel.prepare_packing()(0x77, 0, tuple(at[name] for name in kernel.packing_operands))
    driver.write(at["a"], bytes(size))  # no longer read
    launch = kernel.prepare()
    for _ in range(2):
        launch(0x99, 0, tuple(at[name] for name in kernel.operands))
    out = np.frombuffer(driver.read(at["d"], 4 * 24), np.float32).reshape(4, 6)
    np.testing.assert_array_equal(out, left @ right.T)
    found = [(one.entry, one.stream, one.grid[0]) for one in stub.launches]
    assert found == [(b"copies", 0x77, 5), (b"product", 0x99, 3), (b"product", 0x99, 3)]


# ---- damaged rows --------------------------------------------------------------------------------


def _fill(fields: list[Any], name: str) -> Any:
    return next(one for one in fields if one["name"] == name)


def _workspace(row: Any) -> None:
    field = _fill(row["packing"]["launch"]["arguments"][0]["fields"], "partial")
    field.pop("value")
    field["fill"] = "workspace"


def _without_copy(row: Any) -> None:
    field = _fill(row["packing"]["launch"]["arguments"][0]["fields"], "packed")
    field.pop("fill")
    field["value"] = 0


def _reads_stored(row: Any) -> None:
    row["operands"]["a"] = row["packing"]["operands"]["a"]


DAMAGE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "no packing": (r"rows\[0\].operands has 'packed', and the row has no", lambda r: r.pop("packing")),
    "no object": (r"rows\[0\].packing must be an object", lambda r: r.update(packing=[])),
    "no layout": (r"lacks rows\[0\].packing.layout", lambda r: r["packing"].pop("layout")),
    "long layout": ("1 to 200 characters, not 300", lambda r: r["packing"].update(layout="x" * 300)),
    "no bytes": ("packing.bytes must be between 1 and", lambda r: r["packing"].update(bytes=0)),
    "other bytes": (r"operands has no 'packed' of 4 bytes", lambda r: r["packing"].update(bytes=4)),
    "other alignment": ("aligned to 64", lambda r: r["packing"].update(alignment=64)),
    "no copy": ("packing.operands has no 'packed'", lambda r: r["packing"]["operands"].pop("packed")),
    "no copy to read": ("fill 'packed' is nothing", lambda r: r["operands"].pop("packed")),
    "reads what is packed": ("has 'a', which the row's launches read too", _reads_stored),
    "no launch": (r"lacks rows\[0\].packing.launch", lambda r: r["packing"].pop("launch")),
    "a workspace": (r"packing.launch must take 'packed' and other operands alone", _workspace),
    "nothing is written": (r"packing.launch must take 'packed' and other operands alone", _without_copy),
    "foreign binary": ("needs a binary", lambda r: r["packing"]["launch"].update(binary="0" * 64)),
    "another problem": (
        "packing is of a problem that does not allow prepacked weights",
        lambda r: r["problem"]["canonical"].pop("prepacked"),
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_rows_are_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    match, damage = DAMAGE[name]
    with zipfile.ZipFile(bundle) as file:
        members = {one: file.read(one) for one in file.namelist()}
    manifest = copy.deepcopy(json.loads(members["manifest.json"]))
    damage(manifest["rows"][0])
    members["manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(gemmtune.BundleError, match=match):
        gemmtune.load(bundles.write_members(tmp_path / "damaged.gtb", members))
