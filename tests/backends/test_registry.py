"""Backends by name, and the devices that a selector finds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest

from backends.environment import Environment
from backends.errors import AmbiguousDevice, UnknownDevice
from backends.protocol import Probe
from backends.registry import BACKENDS, backend, devices, find_device, load_object, matching_devices

H200 = Environment("cuda", "sm_90", "NVIDIA H200", 132, 141 * 2**30, "GPU-1a5e42")
SECOND = replace(H200, uuid="GPU-2b0c11")
H100 = replace(H200, product="NVIDIA H100", uuid="GPU-2b0c22")


ORDER = "GEMMTUNE_TEST_DEVICE_ORDER"


class ThreeDevices:
    """A backend with three devices of two classes."""

    process_variables: ClassVar[Mapping[str, str]] = {ORDER: "bus"}

    def probe(self) -> Probe:
        assert os.environ[ORDER] == "bus"
        return Probe((H200, SECOND, H100), ("MIG is off",))


class NoDriver:
    """A backend without anything."""

    process_variables: ClassVar[Mapping[str, str]] = {}

    def probe(self) -> Probe:
        return Probe((), ("no driver",))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "cuda", f"{__name__}:ThreeDevices")
    monkeypatch.setenv(ORDER, "")
    monkeypatch.delenv(ORDER)
    monkeypatch.setitem(BACKENDS, "hip", f"{__name__}:NoDriver")


def test_every_registered_backend_answers_to_its_name() -> None:
    assert "cpu" in BACKENDS
    for name in BACKENDS:
        assert backend(name).name == name


@pytest.mark.parametrize("name", ["nope", "", "CPU", "backends.cpu.backend:CpuBackend"])
def test_a_name_that_is_not_registered_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=f"^'{name}'$"):
        backend(name)
    with pytest.raises(KeyError, match=f"^'{name}'$"):
        devices(name)


def test_objects_load_by_path() -> None:
    assert load_object("math:pi") == pytest.approx(3.14159, abs=1e-5)
    with pytest.raises(ModuleNotFoundError):
        load_object("no_such_module_here:x")
    with pytest.raises(AttributeError):
        load_object("math:no_such_name")


def test_the_cpu_of_this_machine_is_found() -> None:
    found, notes = devices("cpu")
    assert [(d.backend, d.index, d.environment.vendor) for d in found] == [("cpu", 0, "cpu")]
    assert all(note.startswith("cpu: ") for note in notes)
    device = find_device("cpu")
    assert device == found[0]
    assert find_device(str(device.environment.device_class)) == device


def test_an_unknown_device_lists_what_exists() -> None:
    with pytest.raises(UnknownDevice) as refused:
        find_device("nope")
    classes = [str(d.environment.device_class) for d in devices()[0]]
    assert classes
    assert refused.value.available == tuple(sorted(set(classes)))
    assert all(text in str(refused.value) for text in classes)
    assert "'nope'" in str(refused.value)


@pytest.mark.usefixtures("fleet")
def test_devices_carry_their_backend_and_index() -> None:
    found, notes = devices()
    gpus = [(d.index, d.environment) for d in found if d.backend == "cuda"]
    assert gpus == [(0, H200), (1, SECOND), (2, H100)]
    assert {"cuda: MIG is off", "hip: no driver"} <= set(notes)
    assert devices("hip") == ([], ["hip: no driver"])


@pytest.mark.usefixtures("fleet")
def test_the_first_device_of_a_class_is_found() -> None:
    found = find_device("cuda:sm_90:nvidia-h200")
    assert (found.backend, found.index, found.environment) == ("cuda", 0, H200)
    assert find_device("cuda:sm_90:NVIDIA-H100").index == 2


@pytest.mark.usefixtures("fleet")
def test_two_classes_are_ambiguous_and_a_missing_driver_is_an_answer() -> None:
    with pytest.raises(AmbiguousDevice) as several:
        find_device("cuda")
    assert several.value.classes == ("cuda:sm_90:NVIDIA-H100:132", "cuda:sm_90:NVIDIA-H200:132")
    with pytest.raises(UnknownDevice, match="hip: no driver"):
        find_device("hip")


# ---- several devices -----------------------------------------------------------------------------


def indices(selector: str, index: int | None = None) -> list[int]:
    return [device.index for device in matching_devices(selector, index)]


@pytest.mark.usefixtures("fleet")
def test_a_selector_finds_every_device_of_its_class() -> None:
    assert indices("cuda:sm_90:NVIDIA-H200") == [0, 1]
    assert indices("cuda:sm_90:NVIDIA-H200:132", 1) == [1]
    assert [d.environment.vendor for d in matching_devices("cpu")] == ["cpu"]


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_index_names_one_device_of_several_classes(index: int) -> None:
    assert indices("cuda", index) == [index]
    assert find_device("cuda:sm_90", index).index == index


@pytest.mark.usefixtures("fleet")
def test_an_index_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(UnknownDevice, match=r"'cuda with index 7'; available: .*H200:132 with index 1, "):
        matching_devices("cuda", 7)
    with pytest.raises(UnknownDevice, match="'cuda:sm_90:NVIDIA-H100 with index 0'"):
        matching_devices("cuda:sm_90:NVIDIA-H100", 0)


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("selector", ["GPU-2b0c11", " gpu-2B0C11 ", "GPU-2b0c1"])
def test_a_uuid_or_its_beginning_names_one_device(selector: str) -> None:
    assert indices(selector) == [1]
    assert find_device(selector).environment == SECOND
    assert indices(selector, 1) == [1]
    with pytest.raises(UnknownDevice, match="with index 0"):
        matching_devices(selector, 0)


@pytest.mark.usefixtures("fleet")
def test_a_uuid_that_several_begin_with_is_ambiguous_and_a_short_one_unknown() -> None:
    with pytest.raises(AmbiguousDevice, match="'GPU-2b' matches 2 devices: GPU-2b0c11, GPU-2b0c22; name"):
        matching_devices("GPU-2b")
    for selector in ("GPU-", "GPU-2", "", "GPU-ffffff"):
        with pytest.raises(UnknownDevice, match="hip: no driver"):
            matching_devices(selector)


def test_one_vendors_device_starts_no_other_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "cuda", "no_such_module:Backend")
    assert indices("cpu") == [0]
    assert indices("cpu", 0) == [0]
