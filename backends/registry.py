"""Backends by name, imported on first use, so that a missing driver is reported and does not crash."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from backends.environment import Environment, selects
from backends.errors import AmbiguousDevice, ReadError, UnknownDevice
from backends.extended import ExtendedBackend
from backends.plugins import plugins
from backends.protocol import Backend, RunsUserKernels
from backends.user_kernels.source import UserKernel

#: name -> module:class. A new backend is a folder and a line here.
BACKENDS: dict[str, str] = {
    "cpu": "backends.cpu.backend:CpuBackend",
    "cuda": "backends.cuda.backend:CudaBackend",
    "hip": "backends.hip.backend:HipBackend",
}

#: Shortest UUID prefix that may select a device, in characters.
_LEAST_UUID = 6


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


def backend(name: str, kernels: Sequence[UserKernel] = ()) -> Backend:
    """The backend called `name`, with the families of plug-ins and of users' `kernels`. Raises KeyError for a
    name that is not registered, ReadError for a kernel that its devices do not run."""
    made = _shipped(name)
    added = list(plugins(name, made).families)
    for kernel in kernels:
        if not isinstance(made, RunsUserKernels):
            raise ReadError(
                f"the {name} backend runs no kernels of users: {kernel.file} cannot be judged there"
            )
        added.append(made.user_family(kernel))
    return ExtendedBackend(made, added) if added else made


def plugin_notes(name: str) -> tuple[str, ...]:
    """What was left out of the plug-ins for a backend, and why."""
    return plugins(name, _shipped(name)).notes


def _shipped(name: str) -> Backend:
    """The backend without what others add."""
    make = cast("type[Backend]", load_object(BACKENDS[name]))
    return make()


def devices(only: str | None = None) -> tuple[list[FoundDevice], list[str]]:
    """Every device of this machine (or of one backend), and the backends' notes, prefixed by backend name.

    Sets the backends' process variables first, since the device process has them and the order in which a
    driver lists its devices may depend on them."""
    found: list[FoundDevice] = []
    notes: list[str] = []
    for name in BACKENDS if only is None else [only]:
        asked = _shipped(name)
        for variable, value in asked.process_variables.items():
            os.environ.setdefault(variable, value)
        probe = asked.probe()
        found += [FoundDevice(name, index, env) for index, env in enumerate(probe.devices)]
        notes += [f"{name}: {note}" for note in (*probe.notes, *plugin_notes(name))]
    return found, notes


def find_device(selector: str, index: int | None = None) -> FoundDevice:
    """The first of matching_devices(). Raises UnknownDevice, AmbiguousDevice."""
    return matching_devices(selector, index)[0]


def matching_devices(selector: str, index: int | None = None) -> list[FoundDevice]:
    """Every device of the one class that `selector` names, or the one device whose UUID starts with it;
    `index` keeps only the device with that index in its backend. Never empty. Raises UnknownDevice (listing
    the devices that exist) or AmbiguousDevice."""
    found, notes = _look_for(selector)
    named = [d for d in found if selects(selector, d.environment.device_class)] or _by_uuid(selector, found)
    if not named:
        raise UnknownDevice(selector, sorted({str(d.environment.device_class) for d in found}), notes)
    kept = [d for d in named if index in (None, d.index)]
    if not kept:
        there = [f"{d.environment.device_class} with index {d.index}" for d in named]
        raise UnknownDevice(f"{selector} with index {index}", there)
    classes = sorted({d.environment.device_class for d in kept})
    if len(classes) > 1:
        raise AmbiguousDevice(selector, [str(each) for each in classes])
    return kept


def _look_for(selector: str) -> tuple[list[FoundDevice], list[str]]:
    """The devices of the backend that the selector names, without loading other drivers. If none of them
    matches, all devices. Both with the backends' notes."""
    vendor = selector.strip().lower().partition(":")[0]
    if vendor in BACKENDS:
        found, notes = devices(vendor)
        if any(selects(selector, d.environment.device_class) for d in found):
            return found, notes
    return devices()


def _by_uuid(selector: str, found: Sequence[FoundDevice]) -> list[FoundDevice]:
    wanted = selector.strip().lower()
    if len(wanted) < _LEAST_UUID:
        return []
    begun = [d for d in found if d.environment.uuid.lower().startswith(wanted)]
    exact = [d for d in begun if d.environment.uuid.lower() == wanted]
    if len(begun) > 1 and not exact:
        raise AmbiguousDevice(selector, [d.environment.uuid for d in begun], "devices")
    return exact or begun
