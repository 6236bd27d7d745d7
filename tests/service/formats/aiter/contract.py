"""What the contract suite writes in AITER's table."""

from __future__ import annotations

from tests.service.formats.contract_inputs import HIPBLASLT, MI300X, Input

WRITTEN = {
    "aiter": Input(MI300X, HIPBLASLT),
}
