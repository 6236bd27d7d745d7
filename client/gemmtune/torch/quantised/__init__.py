"""Products of 16-bit activations by quantised weights: stored forms, adapters, operators and modules."""

from __future__ import annotations
