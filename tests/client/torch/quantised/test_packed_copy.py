"""A module's packed copy, replaced while other threads call the module."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from gemmtune.torch import QuantizedLinear
from gemmtune.torch.quantised import modules
from gemmtune.torch.quantised.modules import PackedCopy
from gemmtune.torch.quantised.prepack import PackedWeight
from gemmtune.torch.quantised.quantise import quantize

from tests.client.torch.quantised.conftest import K, N

FIRST, SECOND = "first", "second"


@pytest.mark.parametrize("bits", [4, 8])
def test_calls_beside_packing_read_whole_copies(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """What the operators get, while another thread packs and drops the copy."""
    module = QuantizedLinear(quantize(torch.randn(N, K, dtype=torch.bfloat16), bits=bits))
    copies = [PackedCopy(torch.full([size], size, dtype=torch.uint8), layout, ())
              for size, layout in ((8, FIRST), (16, SECOND))]  # fmt: skip
    got: set[Any] = set()

    class Operators:
        """Notes the copy of a call."""

        @staticmethod
        def linear_w4a16(*arguments: Any) -> None:
            got.add(tuple(one if isinstance(one, str) else one.numel() for one in arguments[7:]))

        @staticmethod
        def linear_w8a16(*arguments: Any) -> None:
            got.add(tuple(one if isinstance(one, str) else one.numel() for one in arguments[5:]))

    monkeypatch.setattr(modules, "_OPERATORS", Operators)
    done, interval = threading.Event(), sys.getswitchinterval()

    def packs() -> None:
        while not done.is_set():
            for one in (*copies, None):
                module.hold(one)

    sys.setswitchinterval(1e-6)
    packer = threading.Thread(target=packs)
    packer.start()
    try:
        for _ in range(5000):
            module(None)
    finally:
        done.set()
        packer.join()
        sys.setswitchinterval(interval)
    assert got <= {(), (8, FIRST), (16, SECOND)}
    assert len(got) > 1, "calls saw changes"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_copy_of_weights_that_change_meanwhile_is_not_read(
    monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    module = QuantizedLinear(quantize(torch.randn(N, K, dtype=torch.bfloat16)))
    got: list[tuple[Any, ...]] = []

    class Operators:
        """Notes the copy of a call."""

        @staticmethod
        def linear_w4a16(*arguments: Any) -> None:
            got.append(arguments[7:])

    def packs(form: Any, weight: Any, *_: Any) -> PackedWeight:
        made = PackedWeight(weight.flatten().clone(), FIRST, form)
        if replaced:
            module.weight = torch.zeros_like(weight)
        else:
            module.weight.zero_()
        return made

    monkeypatch.setattr(modules, "_OPERATORS", Operators)
    monkeypatch.setattr(modules, "prepacked", packs)
    assert module.prepack()
    module(None)
    assert got == [()]
