"""Measured ceilings and where they are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from backends.environment import Environment
from backends.errors import StorageError
from tuners.ceilings import Ceilings, CeilingStore

HERE = Environment("cpu", "avx2", "Some CPU", 4, 2**30, "uuid", libraries={"blas": "1.0"})
ELSEWHERE = replace(HERE, libraries={"blas": "1.1"})
RATES = {"fp32": 1e12, "bf16": 4e12, "int8": 8e12}


class Meter:
    """Measures what it is asked for and remembers it."""

    def __init__(self, read: float = 100.0, copy: float = 80.0, factor: float = 1.0) -> None:
        self.read, self.copy, self.factor = read, copy, factor
        self.asked: list[list[str]] = []

    def __call__(self, dtypes: Sequence[str]) -> Ceilings:
        self.asked.append(list(dtypes))
        rates = {name: RATES[name] * self.factor for name in dtypes}
        return Ceilings(self.read, self.copy, rates, dict.fromkeys(dtypes, f"product x{self.factor}"))


def stored_file(root: Path) -> Path:
    (path,) = root.iterdir()  # one file an environment, and no temporary one left beside it
    return path


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert CeilingStore(tmp_path / "none").get(HERE) is None
    assert not (tmp_path / "none").exists()


def test_what_is_put_is_got_in_its_own_environment_alone(tmp_path: Path) -> None:
    store, ceilings = (
        CeilingStore(tmp_path / "deep" / "er"),
        Ceilings(1.0, 2.0, {"fp32": 3.0}, {"fp32": "how"}),
    )
    store.put(HERE, ceilings)
    assert store.get(HERE) == ceilings
    assert store.get(ELSEWHERE) is None
    values = json.loads(stored_file(store.root).read_text())
    assert values == {"environment": HERE.to_dict(), "ceilings": asdict(ceilings)}


def test_obtain_measures_only_what_is_missing(tmp_path: Path) -> None:
    store, meter = CeilingStore(tmp_path), Meter()
    assert store.obtain(HERE, ["fp32", "bf16"], meter).flops_per_second == {"fp32": 1e12, "bf16": 4e12}
    assert store.obtain(HERE, ["bf16"], meter).flops_per_second == {"fp32": 1e12, "bf16": 4e12}
    assert meter.asked == [["fp32", "bf16"]]
    assert store.obtain(HERE, ["bf16", "int8"], meter).flops_per_second == RATES
    assert meter.asked == [["fp32", "bf16"], ["int8"]]
    assert CeilingStore(tmp_path).obtain(HERE, list(RATES), meter).flops_per_second == RATES
    assert len(meter.asked) == 2
    store.obtain(ELSEWHERE, ["fp32"], meter)
    assert meter.asked[2:] == [["fp32"]]


def test_no_types_still_measure_the_memory_once(tmp_path: Path) -> None:
    store, meter = CeilingStore(tmp_path), Meter()
    assert store.obtain(HERE, [], meter) == store.obtain(HERE, [], meter) == Ceilings(100.0, 80.0, {}, {})
    assert meter.asked == [[]]


@pytest.mark.parametrize(("read", "copy"), [(90.0, 85.0), (110.0, 70.0)])
def test_a_later_measurement_raises_a_ceiling_and_never_lowers_one(
    tmp_path: Path, read: float, copy: float
) -> None:
    store = CeilingStore(tmp_path)
    store.obtain(HERE, ["fp32"], Meter())
    found = store.obtain(HERE, ["bf16"], Meter(read, copy))
    assert found.read_bytes_per_second == max(100.0, read)
    assert found.copy_bytes_per_second == max(80.0, copy)
    assert store.get(HERE) == found


def test_merging_keeps_each_rate_with_its_method() -> None:
    low, high = Meter(factor=0.5)(["fp32", "bf16"]), Meter(factor=2.0)(["fp32", "int8"])
    for merged in (low.merged(high), high.merged(low)):
        assert merged.flops_per_second == {"fp32": 2e12, "bf16": 2e12, "int8": 16e12}
        assert merged.method == {"fp32": "product x2.0", "bf16": "product x0.5", "int8": "product x2.0"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "null",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: '{"ceilings": []}',
        lambda text: '{"ceilings": {"read_bytes_per_second": 1.0}}',
        lambda text: text.replace("flops_per_second", "flops"),
    ],
    ids=["empty", "cut", "null", "list", "object", "wrong shape", "too few fields", "other fields"],
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    store, meter = CeilingStore(tmp_path), Meter()
    whole = store.obtain(HERE, ["fp32"], meter)
    path = stored_file(tmp_path)
    path.write_text(damage(path.read_text()))
    assert store.get(HERE) is None
    assert store.obtain(HERE, ["fp32"], meter) == whole == store.get(HERE)
    assert meter.asked == [["fp32"], ["fp32"]]


def test_bytes_that_are_no_text_are_measured_again(tmp_path: Path) -> None:
    store, meter = CeilingStore(tmp_path), Meter()
    store.put(HERE, Ceilings(1.0, 1.0, {}))
    stored_file(tmp_path).write_bytes(b"\xff\xfe\x00")
    assert store.obtain(HERE, ["fp32"], meter).read_bytes_per_second == 100.0


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store, meter = CeilingStore(tmp_path / "file" / "ceilings"), Meter()
    with pytest.raises(StorageError, match=r"cannot write .*ceilings"):
        store.obtain(HERE, ["fp32"], meter)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_place_that_is_taken_is_a_storage_error(tmp_path: Path) -> None:
    store = CeilingStore(tmp_path)
    store.put(HERE, Ceilings(1.0, 1.0, {}))
    path = stored_file(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=f"cannot write {path}"):
        store.put(HERE, Ceilings(1.0, 1.0, {}))


def test_a_failed_measurement_stores_nothing(tmp_path: Path) -> None:
    def broken(dtypes: Sequence[str]) -> Ceilings:
        raise RuntimeError("the device fell over")

    with pytest.raises(RuntimeError, match="fell over"):
        CeilingStore(tmp_path / "store").obtain(HERE, ["fp32"], broken)
    assert not (tmp_path / "store").exists()


def test_beaten_ceilings_are_measured_again_by_each_store_once(tmp_path: Path) -> None:
    store, meter = CeilingStore(tmp_path), Meter()
    found = store.of(HERE, meter)
    assert found(["fp32"]).flops_per_second == {"fp32": 1e12}
    meter.factor = 1.1
    assert found(["fp32"]).flops_per_second == {"fp32": 1e12}
    assert found(["fp32"], beaten=True).flops_per_second == pytest.approx({"fp32": 1.1e12})
    meter.factor = 2.0
    assert found(["fp32"], beaten=True).flops_per_second == pytest.approx({"fp32": 1.1e12})
    assert meter.asked == [["fp32"], ["fp32"]]
    assert CeilingStore(tmp_path).obtain(HERE, ["fp32"], meter).flops_per_second == pytest.approx(
        {"fp32": 1.1e12}
    ), "the higher figure is kept"
