"""What the contract suite writes in Inductor's table."""

from __future__ import annotations

from tests.service.formats.contract_inputs import H200, INDUCTOR_MM, Input

WRITTEN = {
    "inductor-table": Input(H200, INDUCTOR_MM, "torch-2.15+cuda"),
}
