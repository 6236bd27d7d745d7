"""What the contract suite writes in gemmtune's own formats."""

from __future__ import annotations

from tests.service.formats.contract_inputs import CUBLASLT, H200, Input

WRITTEN = {
    "c-header": Input(H200, CUBLASLT, "cublaslt"),
    "jsonl": Input(H200, CUBLASLT, streamed=True, every_family=True),
    "json": Input(H200, CUBLASLT, streamed=True, every_family=True),
    "csv": Input(H200, CUBLASLT, streamed=True, every_family=True),
}
