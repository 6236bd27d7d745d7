"""Environments, device classes, and the selectors that people type."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.environment import VENDORS, DeviceClass, Environment, resolve
from backends.errors import AmbiguousDevice, UnknownDevice

CPU = DeviceClass("cpu", "x86_64", "AMD-EPYC", 8)
H100 = DeviceClass("cuda", "sm_90", "NVIDIA-H100", 132)
H200 = DeviceClass("cuda", "sm_90", "NVIDIA-H200", 132)
A100 = DeviceClass("cuda", "sm_80", "NVIDIA-A100", 108)
MI300X = DeviceClass("hip", "gfx942", "MI300X", 304)
ALL = (CPU, H100, H200, A100, MI300X)

WORDS = st.from_regex("[A-Za-z0-9][A-Za-z0-9._+-]{0,7}", fullmatch=True)
CLASSES = st.builds(DeviceClass, st.sampled_from(VENDORS), WORDS, WORDS, st.integers(1, 10**6))

ENVIRONMENT = Environment(
    vendor="cuda", arch="sm_90", product="NVIDIA H200", units=132, memory_bytes=141 * 2**30,
    uuid="GPU-1", partition="", driver="580.1", runtime="13.1",
    libraries={"cublaslt": "13.1.0", "cublas": "13.1.0"},
)  # fmt: skip


# ---- classes -----------------------------------------------------------------------------------


@given(CLASSES)
def test_a_class_is_its_text(device: DeviceClass) -> None:
    assert DeviceClass.parse(str(device)) == device
    assert str(device).count(":") == 3


def test_the_text_of_a_class() -> None:
    assert str(H200) == "cuda:sm_90:NVIDIA-H200:132"
    assert sorted(ALL) == [CPU, A100, H100, H200, MI300X]


@pytest.mark.parametrize(
    "text",
    [
        "", "cuda", "cuda:sm_90:H200", "cuda:sm_90:H200:132:1", "cuda:sm_90:H200:many",
        "cuda:sm_90:H200:0", "cuda:sm_90:H200:-1", "cuda:sm_90:H200:", "cuda::H200:132",
        "cuda:sm_90::132", "tpu:v5:x:1", "CUDA:sm_90:H200:132", ":::", "cuda:sm_90:H200:1.0",
        "cuda:sm_90:H200:05", "cuda:sm_90:H200:132\n", "cuda:sm_90:H200:1" + 9 * "0",
        "cuda:sm_90:H200:\u0663",
        "cuda:sm_90:H 200:132", "cuda:sm_90:H200\n:132", "cuda: sm_90:H200:132", "cuda:sm_90:H\u00e9:132",
        "cuda:sm_90:-H200:132", "cuda:sm_90:" + 101 * "H" + ":132", "cuda:sm_\0:H200:132",
    ],
)  # fmt: skip
def test_what_is_no_class_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no device class|unknown|must be"):
        DeviceClass.parse(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tpu", "v5", "x", 1), "known: cpu, cuda, hip"), (("cpu", "", "x", 1), "arch"),
        (("cpu", "x:y", "x", 1), "arch"), (("cpu", "x", "", 1), "product"),
        (("cpu", "x", "x", 0), "units"), (("cpu", "x", "a b", 1), "product 'a b' must be 1 to 100"),
        (("cpu", "x", "x", 10**9), "units"), (("cpu", "x\n", "x", 1), "arch"),
        (("cpu", "x", 101 * "x", 1), "product"),
    ],
)  # fmt: skip
def test_a_class_has_four_good_parts(arguments: tuple[str, str, str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DeviceClass(*arguments)


# ---- environments ------------------------------------------------------------------------------


def test_an_environment_belongs_to_its_class() -> None:
    assert ENVIRONMENT.device_class == H200
    assert ENVIRONMENT.id.startswith(f"{H200}-")


@pytest.mark.parametrize(
    "change",
    [
        {"vendor": "hip"}, {"arch": "sm_100"}, {"product": "NVIDIA  H200"}, {"units": 131},
        {"memory_bytes": 1}, {"uuid": "GPU-2"}, {"partition": "1g.18gb"}, {"driver": "580.2"},
        {"runtime": "13.2"}, {"libraries": {}}, {"libraries": {"cublaslt": "13.2.0"}},
    ],
)  # fmt: skip
def test_every_field_of_an_environment_counts(change: dict[str, Any]) -> None:
    assert replace(ENVIRONMENT, **change).id != ENVIRONMENT.id


def test_environments_travel() -> None:
    row = json.loads(json.dumps(ENVIRONMENT.to_dict()))
    assert Environment.from_dict(row) == ENVIRONMENT
    assert Environment.from_dict(row).id == ENVIRONMENT.id
    turned = dict(reversed(list(ENVIRONMENT.libraries.items())))
    assert replace(ENVIRONMENT, libraries=turned).id == ENVIRONMENT.id


def test_a_row_that_lacks_a_field_is_refused() -> None:
    row = ENVIRONMENT.to_dict()
    del row["uuid"]
    with pytest.raises(TypeError, match="uuid"):
        Environment.from_dict(row)


def test_a_row_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        Environment.from_dict({**ENVIRONMENT.to_dict(), "colour": "red"})


# ---- selectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("cpu", CPU), ("hip", MI300X), ("CPU", CPU), (" cpu ", CPU), ("cpu:x86_64", CPU),
        ("cuda:sm_80", A100), ("CUDA:SM_80", A100), ("cuda:sm_90:NVIDIA-H200", H200),
        ("cuda:sm_90:nvidia-h100", H100), ("cuda:sm_90:NVIDIA-H200:132", H200),
        ("Hip:GFX942:mi300x:304", MI300X),
    ],
)  # fmt: skip
def test_a_selector_names_one_class(selector: str, found: DeviceClass) -> None:
    assert resolve(selector, ALL) == found


@given(st.lists(CLASSES, min_size=1, max_size=6), st.data())
def test_a_full_class_is_found(classes: list[DeviceClass], data: st.DataObject) -> None:
    wanted = data.draw(st.sampled_from(classes))
    twins = {c for c in classes if str(c).lower() == str(wanted).lower()}
    if len(twins) == 1:
        assert resolve(str(wanted), classes) == wanted
        assert resolve(str(wanted).upper(), classes) == wanted
    else:
        with pytest.raises(AmbiguousDevice):
            resolve(str(wanted), classes)


@pytest.mark.parametrize(
    ("selector", "classes"), [("cuda", (A100, H100, H200)), ("CUDA:sm_90", (H100, H200))]
)
def test_a_selector_of_several_classes_lists_them(selector: str, classes: tuple[DeviceClass, ...]) -> None:
    with pytest.raises(AmbiguousDevice) as refused:
        resolve(selector, (*ALL, *ALL))
    assert refused.value.selector == selector
    assert refused.value.classes == tuple(str(c) for c in classes)
    assert all(str(c) in str(refused.value) for c in classes)
    assert str(A100) not in str(refused.value) or A100 in classes


def test_devices_of_one_class_are_not_ambiguous() -> None:
    assert resolve("cuda", [H200, H200, CPU]) == H200


@pytest.mark.parametrize(
    "selector",
    [
        "", " ", ":", "nope", "cuda:sm_9", "cud", "cuda:", "cuda:sm_90:", "cuda:sm_90:NVIDIA",
        "cuda:sm_90:NVIDIA-H200:13", "sm_90", "NVIDIA-H200", "cuda:gfx942",
        "cuda:sm_90:NVIDIA-H200:132:0", "cuda sm_90",
    ],
)  # fmt: skip
def test_a_selector_of_nothing_lists_what_exists(selector: str) -> None:
    with pytest.raises(UnknownDevice) as refused:
        resolve(selector, ALL, ["hip: no driver", "cuda: too old"])
    message = str(refused.value)
    assert refused.value.selector == selector
    assert refused.value.available == tuple(str(c) for c in sorted(ALL))
    assert repr(selector) in message
    assert all(str(c) in message for c in ALL)
    assert "hip: no driver" in message
    assert "cuda: too old" in message


def test_without_devices_the_notes_say_why() -> None:
    with pytest.raises(UnknownDevice, match=r"available: none; cuda: no driver$"):
        resolve("cuda", [], ["cuda: no driver"])
