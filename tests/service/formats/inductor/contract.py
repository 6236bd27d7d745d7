"""What the contract suite writes in Inductor's table."""

from __future__ import annotations

from tests.service.formats.contract_inputs import CUBLASLT, H200, Input

WRITTEN = {
    "inductor-table": Input(H200, CUBLASLT, "torch-2.15+cuda"),
}
