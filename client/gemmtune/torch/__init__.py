"""Tuned GEMMs inside PyTorch.

    table = gemmtune.load("bundle.gtb")
    with gemmtune.torch.apply(model, table): ...       the model's nn.Linear modules
    with gemmtune.torch.enable(table): ...             torch.mm, addmm, bmm, _scaled_mm, grouped calls
    with gemmtune.torch.record() as recording: ...     the products that run, to be tuned
    gemmtune.torch.grouped_mm(x, weight, offs)         rows of groups by the groups' weights
    gemmtune.torch.scaled_grouped_mm(x, weight, scale_x, scale_w, offs)
                                                       the same of 8-bit floats with scales
    gemmtune.torch.moe(x, gate_up, down, weights, ids) the experts of a layer, of 16, 8 or 4 bits
    gemmtune.torch.use_moe(model)                      those of a model of transformers by moe()
    gemmtune.torch.grouped_mm_w4a16(x, weight, scales, offs)
                                                       grouped products by 4-bit weights
    gemmtune.torch.linear_w4a16(x, weight, scales)     by quantised weights; quantize_model(model) makes them
    gemmtune.torch.prepack_w4a16(weight, scales)       packed at load, in the layout that rows want
    gemmtune.torch.linear_w8a8(x, w, scale_x, scale_w) int8 or 8-bit floats on both sides, with what follows

torch.compile uses the rows of a table that is in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmtune.torch.applied import Applied, apply
from gemmtune.torch.enabled import Enabled, enable
from gemmtune.torch.errors import GroupError, ServingError
from gemmtune.torch.extension import build_extension
from gemmtune.torch.graph_pass import make
from gemmtune.torch.grouped.experts import (
    QuantizedExperts,
    experts_from_mxfp4,
    quantize_experts,
    stack_experts,
)
from gemmtune.torch.grouped.gpt_oss import experts_from_gpt_oss
from gemmtune.torch.grouped.layer import moe
from gemmtune.torch.grouped.operators import grouped_mm
from gemmtune.torch.grouped.scaled_operators import scaled_grouped_mm
from gemmtune.torch.grouped.transformers_experts import use_moe
from gemmtune.torch.grouped.weight_operators import grouped_mm_w4a16
from gemmtune.torch.quantised.adapters import (
    from_awq,
    from_compressed_tensors,
    from_gptq,
    from_mxfp4,
    from_stored,
    from_tinygemm,
    from_torchao,
)
from gemmtune.torch.quantised.form import WeightError
from gemmtune.torch.quantised.modules import QuantizedLinear, prepack_model, quantize_model
from gemmtune.torch.quantised.operators import linear_w4a16, linear_w8a16
from gemmtune.torch.quantised.prepack import PackedWeight, prepack_w4a16, prepack_w8a16
from gemmtune.torch.quantised.quantise import quantize
from gemmtune.torch.quantised.scaled_operators import linear_w8a8, scaled_mm
from gemmtune.torch.quantised.stored import (
    QuantizedWeight,
    pack_int4,
    pack_zeros,
    unpack_int4,
    unpack_zeros,
)
from gemmtune.torch.recording import Recording, record
from gemmtune.torch.reporting import Report, report
from gemmtune.torch.served import Served

if TYPE_CHECKING:
    from gemmtune.table import Table


def compile_pass(table: Table) -> Any:
    """The pass that rewrites products with rows, for programs that set Inductor's post_grad_custom_pre_pass
    themselves; apply() and enable() set it by themselves. The table must be in use while a graph runs: else
    torch computes. Raises ServingError."""
    return make([Served(table)])


__all__ = [
    "Applied", "Enabled", "GroupError", "PackedWeight", "QuantizedExperts", "QuantizedLinear",
    "QuantizedWeight", "Recording", "Report", "ServingError", "WeightError", "apply", "build_extension",
    "compile_pass", "enable", "experts_from_gpt_oss", "experts_from_mxfp4", "from_awq",
    "from_compressed_tensors", "from_gptq", "from_mxfp4", "from_stored", "from_tinygemm", "from_torchao",
    "grouped_mm", "grouped_mm_w4a16", "linear_w4a16", "linear_w8a8", "linear_w8a16", "moe", "pack_int4",
    "pack_zeros", "prepack_model", "prepack_w4a16", "prepack_w8a16", "quantize", "quantize_experts",
    "quantize_model", "record", "report", "scaled_grouped_mm", "scaled_mm", "stack_experts",
    "unpack_int4", "unpack_zeros", "use_moe",
]  # fmt: skip
