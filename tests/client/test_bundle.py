"""Reading bundles: what a good one says, and that every damage is refused by name."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import gemmtune
import pytest
from gemmtune.bundle import Bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.problem import from_mm
from tests.client import bundles

PROBLEM = from_mm(2, 3, 5, "fp32")
BINARY = bundles.gemm_binary(("a",))
Change = Callable[[bundles.Document], object]


def _document() -> bundles.Document:
    row = bundles.row(PROBLEM, "cuda", [bundles.gemm_launch(PROBLEM, "cuda", maps=("a",))], 512)
    return bundles.manifest(bundles.DEVICES["cuda"], [row], {BINARY: ".cubin"})


def _members(found: bundles.Document) -> dict[str, bytes]:
    return {"manifest.json": json.dumps(found).encode(), f"binaries/{bundles.digest(BINARY)}": BINARY}


def _launch(found: bundles.Document) -> bundles.Document:
    launch: bundles.Document = found["rows"][0]["launches"][0]
    return launch


def test_a_speedup_whose_interval_is_open(tmp_path: Path) -> None:
    found = _document()
    found["rows"][0]["verdict"]["speedup"] = [1.4, 1.5, None]
    (row,) = Bundle(bundles.write_members(tmp_path / "b.gtb", _members(found))).rows
    assert row.verdict.speedup == (1.4, 1.5, float("inf"))
    found["rows"][0]["verdict"]["speedup"] = [1.4, None, 1.6]
    with pytest.raises(gemmtune.BundleError, match=r"speedup\.1 must be a number, not None"):
        Bundle(bundles.write_members(tmp_path / "b.gtb", _members(found)))


def _field(found: bundles.Document, name: str) -> bundles.Document:
    fields: list[bundles.Document] = _launch(found)["arguments"][0]["fields"]
    return next(one for one in fields if one["name"] == name)


def test_a_bundle_says_what_was_written(tmp_path: Path) -> None:
    path = bundles.write_members(tmp_path / "b.gtb", _members(_document()))
    bundle = Bundle(path)
    manifest = zipfile.ZipFile(path).read("manifest.json")
    assert bundle.digest == bundles.digest(manifest)
    assert str(bundle.device) == bundles.DEVICES["cuda"]
    assert bundle.requires_driver == 13000
    assert bundle.policy["content"] == {"mode": "eager", "cache": "cold"}
    assert bundle.environments["here"]["runtime"] == "CUDA 13.0"
    (row,) = bundle.rows
    assert row.problem_id == PROBLEM.id
    assert row.canonical == PROBLEM.to_dict()
    assert (row.workspace_bytes, row.workspace_alignment, row.deterministic) == (512, 256, True)
    assert (row.speedup, row.verdict.baseline) == (1.5, "torch 2.13")
    assert {name: one.row_major for name, one in row.operands.items()} == {"a": "b", "b": "a", "d": "d"}
    (launch,) = row.launches
    assert (launch.grid, launch.block, launch.parameters) == ((3, 2, 1), (128, 1, 1), (0, 256))
    assert struct.unpack_from("<3q", launch.template) == (PROBLEM.m, PROBLEM.n, PROBLEM.k)
    assert struct.unpack_from("<f", launch.template, 256) == (1.0,)
    assert [(fill.offset, fill.name) for fill in launch.fills] == [
        (56, "a"),
        (64, "b"),
        (72, "d"),
        (128, "a"),
    ]
    assert bundle.binary(launch.binary) == BINARY
    bundle.check()


# ---- manifests -----------------------------------------------------------------------------------

MANIFESTS: dict[str, tuple[Change, str]] = {
    "newer version": (lambda d: d.update(version=2), "version 2, this client reads 1: pip install -U"),
    "another format": (lambda d: d.update(format="other"), "format is 'other'"),
    "no policy": (lambda d: d.pop("policy"), "lacks policy"),
    "no binaries": (lambda d: d.pop("binaries"), "lacks binaries"),
    "no rows": (lambda d: d.pop("rows"), "lacks rows"),
    "rows are no list": (lambda d: d.update(rows={}), "rows must be a list"),
    "a row is a number": (lambda d: d.update(rows=[3]), r"rows\[0\] must be an object"),
    "device disagrees": (lambda d: d["device"].update(units=8), "is not cuda:sm_90:.*:8"),
    "unknown vendor": (lambda d: d["device"].update(vendor="xpu"), "'xpu' is unknown"),
    "a driver's text": (lambda d: d["requires"].update(driver="13"), "driver must be a whole number"),
    "environment": (lambda d: d["rows"][0].update(environment="there"), "names no environment"),
    "no digest": (lambda d: d["binaries"].update({"../../etc/passwd": {}}), "no SHA-256"),
    "bytes": (lambda d: d["binaries"][bundles.digest(BINARY)].update(bytes=7), "bytes, not 7"),
    "absurd bytes": (lambda d: d["binaries"][bundles.digest(BINARY)].update(bytes=2**40), "must be between"),
    "negative bytes": (lambda d: d["binaries"][bundles.digest(BINARY)].update(bytes=-1), "must be between"),
    "a loss": (lambda d: d["rows"][0]["verdict"].update(judgement="LOSS"), "'LOSS' is unknown; known: WIN"),
    "no canonical": (lambda d: d["rows"][0]["problem"].pop("canonical"), "lacks .*canonical"),
    "a field less": (lambda d: d["rows"][0]["problem"]["canonical"].pop("lda"), "lacks fields.*: lda; .*dam"),
    "a list as m": (lambda d: d["rows"][0]["problem"]["canonical"].update(m=[1]), "plain values"),
    "twice": (lambda d: d["rows"].append(d["rows"][0]), "two rows"),
    "workspace": (lambda d: d["rows"][0]["workspace"].update(bytes=2**60), "bytes must be between"),
    "no launches": (lambda d: d["rows"][0].update(launches=[]), "launches must be some"),
    "launched by": (lambda d: d["rows"][0].update(launched_by="system"), "'system' is unknown"),
    "a binary too few": (lambda d: _launch(d).update(binary="0" * 64), "needs a binary that is not there"),
    "no grid": (lambda d: _launch(d).update(grid=[1, 1]), "grid must have 3 values"),
    "a grid of texts": (lambda d: _launch(d).update(grid=["1", 1, 1]), "grid must be whole numbers"),
    "block": (lambda d: _launch(d).update(block=[2048, 1, 1]), "whole numbers between 1 and 1024"),
    "true as a grid": (lambda d: _launch(d).update(grid=[True, 1, 1]), "grid must be whole numbers"),
    "shared": (lambda d: _launch(d).update(dynamic_shared_bytes=2**30), "shared_bytes must be between"),
    "arguments' bytes": (lambda d: _launch(d).update(argument_bytes=2**31), "argument_bytes must be between"),
    "outside": (lambda d: _field(d, "a").update(offset=2**20), r"fields\[8\]\.offset must be between"),
    "behind the end": (lambda d: _launch(d)["arguments"][1].update(type="CUtensorMap"), "exceeds the"),
    "unaligned": (lambda d: _field(d, "a").update(offset=57), "nothing that a void \\* at byte 57 can hold"),
    "unknown fill": (lambda d: _field(d, "a").update(fill="z"), "'z' is nothing"),
    "an address as an int": (lambda d: _field(d, "a").update(type="int"), "'a' is nothing that a int"),
    "parallel on a GPU": (lambda d: _field(d, "a").update(fill="parallel"), "'parallel' is nothing"),
    "a type": (lambda d: _field(d, "a").update(type="char[9]"), "is unknown; known: void"),
    "too large": (lambda d: _field(d, "trans_a").update(value=2**40), "is no int"),
    "a fraction": (lambda d: _field(d, "m").update(value=1.5), "is no long long"),
    "neither": (lambda d: _field(d, "m").pop("value"), "lacks .*value"),
    "an unaligned map": (lambda d: _field(d, "maps[0]").update(offset=120), "can have no tensor map"),
    "a map's box": (lambda d: _field(d, "maps[0]")["tensor_map"].update(box=[512, 1, 1]), "box must be"),
    "a map's swizzle": (lambda d: _field(d, "maps[0]")["tensor_map"].update(swizzle="9B"), "'9B' is unknown"),
    "a negative plus": (lambda d: _field(d, "a").update(plus=-8), "plus must be between"),
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_wrong(tmp_path: Path, name: str) -> None:
    change, text = MANIFESTS[name]
    found = _document()
    change(found)
    with pytest.raises(gemmtune.BundleError, match=text):
        Bundle(bundles.write_members(tmp_path / "b.gtb", _members(found)))


def test_a_field_that_a_newer_gemmtune_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _document()
    found["rows"][0]["problem"]["canonical"].update(sparse="2:4", x=1)
    path = bundles.write_members(tmp_path / "b.gtb", _members(found))
    monkeypatch.setattr(metadata, "version", {"gemmtune-client": "0.1.0"}.__getitem__)
    with pytest.raises(gemmtune.BundleError) as caught:
        Bundle(path)
    assert str(caught.value) == (
        "the manifest's rows[0].problem.canonical has the fields 'sparse', 'x', which this client (0.1.0) "
        "does not know; a newer gemmtune wrote it: pip install -U gemmtune-client"
    )


def test_a_client_that_is_not_installed_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    found = _document()
    found["rows"][0]["problem"]["canonical"].update(x=1)
    path = bundles.write_members(tmp_path / "b.gtb", _members(found))
    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(
        gemmtune.BundleError, match=r"field 'x', which this client \(of no installed version\)"
    ):
        Bundle(path)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**63, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield (*path, name)
        yield from _places(one, (*path, name))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_value_of_a_manifest_may_be_anything(tmp_path: Path, data: st.DataObject) -> None:
    """Reading raises a BundleError or nothing, and what is read can be asked for."""
    found = _document()
    *path, last = data.draw(st.sampled_from(sorted(_places(found), key=str)))
    holder: Any = found
    for name in path:
        holder = holder[name]
    holder[last] = data.draw(JUNK)
    try:
        table = gemmtune.load(bundles.write_members(tmp_path / "b.gtb", _members(found)))
    except gemmtune.BundleError:
        return
    assert table.find(table.rows[0].key) is table.rows[0] if table.rows else True
    assert all(isinstance(row.speedup, float) for row in table.rows)


# ---- files ---------------------------------------------------------------------------------------


def test_files_that_are_no_bundle(tmp_path: Path) -> None:
    path = tmp_path / "b.gtb"
    (tmp_path / "b").mkdir()
    with pytest.raises(gemmtune.BundleError, match=r"b\.gtb cannot be read: No such file"):
        Bundle(path)
    with pytest.raises(gemmtune.BundleError, match="b is no file"):
        Bundle(tmp_path / "b")
    for data in (b"", b"no zip at all"):
        path.write_bytes(data)
        with pytest.raises(gemmtune.BundleError, match=r"is no bundle \(\.gtb\)"):
            Bundle(path)
    bundles.write_members(path, {"launch.json": b"{}"})
    with pytest.raises(gemmtune.BundleError, match=r"its first member must be manifest\.json"):
        Bundle(path)
    for text in (b"{", b"[" * 100_000, b"\xff", b'"' + b"9" * 9 + b'"'):
        bundles.write_members(path, {"manifest.json": text})
        with pytest.raises(gemmtune.BundleError, match=r"manifest"):
            Bundle(path)


def test_a_file_that_is_cut_short_anywhere(tmp_path: Path) -> None:
    """Wherever it is cut, it is refused; most of the file is before the zip's directory."""
    path = bundles.write_members(tmp_path / "b.gtb", _members(_document()))
    data = path.read_bytes()
    for size in range(1, len(data), max(1, len(data) // 97)):
        path.write_bytes(data[:size])
        with pytest.raises(gemmtune.BundleError, match=r"is cut short or damaged; fetch or export|no bundle"):
            Bundle(path)


def test_a_file_with_any_byte_changed_is_refused_or_the_same(tmp_path: Path) -> None:
    path = bundles.write_members(tmp_path / "b.gtb", _members(_document()))
    data = path.read_bytes()
    digest, refused = Bundle(path).digest, 0
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :])
        try:
            bundle = Bundle(path)
            bundle.check()
            assert (bundle.digest, bundle.binary(bundles.digest(BINARY))) == (digest, BINARY)
        except gemmtune.BundleError:
            refused += 1
    assert refused > len(data) // 7 // 2


def test_members_that_the_manifest_does_not_name(tmp_path: Path) -> None:
    members = _members(_document())
    path = bundles.write_members(tmp_path / "b.gtb", {**members, "extra.txt": b"x"})
    with pytest.raises(gemmtune.BundleError, match=r"has 'extra\.txt', which its manifest lacks"):
        Bundle(path)
    bundles.write_members(path, {"manifest.json": members["manifest.json"]})
    with pytest.raises(gemmtune.BundleError, match="lacks binaries/"):
        Bundle(path)


def test_two_members_of_one_name(tmp_path: Path) -> None:
    members = _members(_document())
    path = bundles.write_members(tmp_path / "b.gtb", members)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as file:
        file.writestr("manifest.json", members["manifest.json"])
    with pytest.raises(gemmtune.BundleError, match="two members of one name"):
        Bundle(path)


def test_an_altered_binary_is_refused_when_it_is_read(tmp_path: Path) -> None:
    members = _members(_document())
    name = f"binaries/{bundles.digest(BINARY)}"
    altered = BINARY[:-1] + b"\n\n"[:1]
    altered = bytes([altered[0] ^ 1]) + altered[1:]
    bundle = Bundle(bundles.write_members(tmp_path / "b.gtb", {**members, name: altered}))
    with pytest.raises(gemmtune.BundleError, match=f"{name}.*is not what its name says: altered"):
        bundle.binary(bundles.digest(BINARY))
    with pytest.raises(gemmtune.BundleError, match="altered"):
        bundle.check()


def _lie(path: Path, name: str, size: int) -> None:
    """Writes another uncompressed size of a member into both of the zip's headers."""
    data = bytearray(path.read_bytes())
    info = zipfile.ZipFile(path).getinfo(name)
    struct.pack_into("<I", data, info.header_offset + 22, size)
    central = data.rindex(b"PK\x01\x02", 0, data.rindex(name.encode()))
    struct.pack_into("<I", data, central + 24, size)
    path.write_bytes(bytes(data))


def test_a_member_that_inflates_to_more_than_is_stated(tmp_path: Path) -> None:
    """The zip's header states the manifest's size, but the member holds 64 MiB of zeros."""
    members = _members(_document())
    name = f"binaries/{bundles.digest(BINARY)}"
    path = bundles.write_members(tmp_path / "b.gtb", {**members, name: bytes(64 * 2**20)})
    with pytest.raises(gemmtune.BundleError, match=f"has {64 * 2**20} bytes, not {len(BINARY)} as stated"):
        Bundle(path)
    _lie(path, name, len(BINARY))
    with pytest.raises(gemmtune.BundleError, match=r"is damaged|altered"):
        Bundle(path).binary(bundles.digest(BINARY))


def test_a_manifest_that_inflates_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmtune.bundle.MOST_MANIFEST", 2**20)
    path = bundles.write_members(tmp_path / "b.gtb", {"manifest.json": b" " * 2**21})
    with pytest.raises(gemmtune.BundleError, match="has 2097152 bytes, over 1048576"):
        Bundle(path)
    _lie(path, "manifest.json", 100)
    with pytest.raises(gemmtune.BundleError, match=r"damaged|no JSON"):
        Bundle(path)


def test_a_compression_that_no_bundle_uses(tmp_path: Path) -> None:
    path = tmp_path / "b.gtb"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("manifest.json", b"{}")
    with pytest.raises(gemmtune.BundleError, match="compressed as no bundle is"):
        Bundle(path)


def test_a_replaced_file_does_not_disturb_an_open_bundle(tmp_path: Path) -> None:
    path = bundles.write_members(tmp_path / "b.gtb", _members(_document()))
    bundle = Bundle(path)
    (tmp_path / "new").write_bytes(b"other")
    os.replace(tmp_path / "new", path)
    assert bundle.binary(bundles.digest(BINARY)) == BINARY


def test_many_rows(tmp_path: Path) -> None:
    path = bundles.simple(tmp_path / "b.gtb", count=200)
    table = gemmtune.load(path)
    assert len(table.rows) == 200
    found: Any = table.best(m=77, n=3, k=5, dtype="fp32")
    assert found.canonical["n"] == 77
