"""Files to be taken in."""

from __future__ import annotations

import io
from pathlib import Path

DATA = Path(__file__).parent.parent.parent / "data" / "tunableop"
UNTUNED = (DATA / "gpt2-untuned.csv").read_bytes()
LLAMA = (DATA / "llama3-8b-untuned.csv").read_bytes()
#: One row of a results file, under its header.
RESULTS = (
    b"Validator,PT_VERSION,2.9.0\nValidator,ROCM_VERSION,6.4.0.0-1\nValidator,ROCBLAS_VERSION,5.2.0.dabb6df2b9\n"
    b"Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
    b"GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024,Gemm_Rocblas_-621294427,0.0105563\n"
)


def stream(content: bytes) -> io.BytesIO:
    """As an upload is read."""
    return io.BytesIO(content)
