"""Backends by name, and the devices that a selector finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.environment import Environment
from backends.errors import AmbiguousDevice, UnknownDevice
from backends.protocol import Probe
from backends.registry import BACKENDS, backend, devices, find_device, load_object

H200 = Environment("cuda", "sm_90", "NVIDIA H200", 132, 141 * 2**30, "GPU-1")
SECOND = replace(H200, uuid="GPU-2")
H100 = replace(H200, product="NVIDIA H100", uuid="GPU-3")


class TwoDevices:
    """A backend with three devices of two classes."""

    def probe(self) -> Probe:
        return Probe((H200, SECOND, H100), ("MIG is off",))


class NoDriver:
    """A backend without anything."""

    def probe(self) -> Probe:
        return Probe((), ("no driver",))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "cuda", f"{__name__}:TwoDevices")
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
