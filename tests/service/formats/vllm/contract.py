"""What the contract suite writes in block-scaled fp8 files."""

from __future__ import annotations

from tests.service.formats.contract_inputs import BLOCK_FP8, FUSED_MOE, H200, Input, block_scaled

WRITTEN = {
    "vllm-block-fp8": Input(H200, BLOCK_FP8, None, block_scaled),
    "sglang-block-fp8": Input(H200, BLOCK_FP8, None, block_scaled),
    "vllm-moe": Input(H200, FUSED_MOE, None, of_candidates=True),
    "sglang-moe": Input(H200, FUSED_MOE, None, of_candidates=True),
}
