"""Backends by name, imported when asked for: a driver that is missing is an answer, not a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from backends.environment import DeviceClass, Environment, resolve
from backends.protocol import Backend

#: name -> module:class. A new backend is a folder and a line here.
BACKENDS: dict[str, str] = {
    "cpu": "backends.cpu.backend:CpuBackend",
}


@dataclass(frozen=True)
class FoundDevice:
    """A device of this machine: its backend, its index there, and its environment."""

    backend: str
    index: int
    environment: Environment


def load_object(path: str) -> object:
    """The object at "module:name"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def backend(name: str) -> Backend:
    """The backend called `name`. Raises KeyError for a name not registered."""
    make = cast("type[Backend]", load_object(BACKENDS[name]))
    return make()


def devices(only: str | None = None) -> tuple[list[FoundDevice], list[str]]:
    """Every device of this machine (or of one backend), and the notes of backends, each with its name."""
    found: list[FoundDevice] = []
    notes: list[str] = []
    for name in BACKENDS if only is None else [only]:
        probe = backend(name).probe()
        found += [FoundDevice(name, index, env) for index, env in enumerate(probe.devices)]
        notes += [f"{name}: {note}" for note in probe.notes]
    return found, notes


def find_device(selector: str) -> FoundDevice:
    """The first device of the one class that `selector` names. Raises UnknownDevice, AmbiguousDevice."""
    found, notes = devices()
    by_class: Mapping[DeviceClass, FoundDevice] = {d.environment.device_class: d for d in reversed(found)}
    return by_class[resolve(selector, list(by_class), notes)]
