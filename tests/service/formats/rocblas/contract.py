"""What the contract suite writes in rocBLAS's override file."""

from __future__ import annotations

from tests.service.formats.contract_inputs import MI300X, ROCBLAS, Input

WRITTEN = {
    "rocblas": Input(MI300X, ROCBLAS, "rocm-7.2"),
}
