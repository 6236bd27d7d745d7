"""What the contract suite writes in TunableOp's format."""

from __future__ import annotations

from tests.service.formats.contract_inputs import CUBLASLT, H200, Input

WRITTEN = {
    "tunableop": Input(H200, CUBLASLT, "torch-2.15+cuda", streamed=True),
}
