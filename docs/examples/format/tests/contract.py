"""The rows that the contract suite writes as a list of shapes."""

from __future__ import annotations

from tests.service.formats.contract_inputs import CUBLASLT, H200, Input

WRITTEN = {
    "shape-list": Input(H200, CUBLASLT, streamed=True, every_family=True),
}
