"""What the contract suite writes in hipBLASLt's override file."""

from __future__ import annotations

from tests.service.formats.contract_inputs import HIPBLASLT, MI300X, Input

WRITTEN = {
    "hipblaslt": Input(MI300X, HIPBLASLT, "rocm-7.2"),
}
