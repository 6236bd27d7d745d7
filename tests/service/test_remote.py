"""The class that a command means, among those that a service lists."""

from __future__ import annotations

import pytest

from db.classes import NoDefaultDevice
from service.remote import class_of


def test_the_only_class_with_a_worker_or_else_with_results_is_meant() -> None:
    cpu, gpu = "cpu:x86_64:EPYC:64", "cuda:sm_90:NVIDIA-H200:132"
    idle = {"id": cpu, "registered": True, "workers": 0, "revision": 0}
    assert str(class_of(None, [idle, {"id": gpu, "registered": True, "workers": 0, "revision": 3}])) == gpu
    assert str(class_of(None, [{**idle, "workers": 1}, {**idle, "id": gpu, "revision": 3}])) == cpu
    with pytest.raises(NoDefaultDevice, match=f"2 classes may be meant .* or --device {cpu} on the"):
        class_of(None, [{**idle, "revision": 1}, {**idle, "id": gpu, "revision": 3}])
    imported = {"id": gpu, "registered": False, "workers": 0, "revision": 0}
    with pytest.raises(NoDefaultDevice, match=f"imported name {gpu}.; name one, as device={gpu}"):
        class_of(None, [imported])
    assert str(class_of("cpu", [idle, {**idle, "id": gpu, "revision": 3}])) == cpu
