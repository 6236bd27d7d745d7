"""Files to be taken in."""

from __future__ import annotations

import io
import json
from pathlib import Path

from backends.environment import Environment
from backends.problem import GemmProblem
from service.requests import request_content
from tests.service.http.filled import ENVIRONMENT, POLICY, outcomes_of, result_of
from tuners.budget import Budget, Search
from tuners.decide import DecisionRule

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


def journal(
    asked: GemmProblem,
    environment: Environment = ENVIRONMENT,
    scale: float = 1e-3,
    outcomes: int | None = None,
    result: bool = True,
    key: str = "0123456789abcdef",
) -> bytes:
    """A session as `python -m tuners --output` writes it; with fewer outcomes, as it was earlier."""
    found = outcomes_of(asked, environment, scale)
    start = {
        "problem": asked.to_dict(),
        "problem_id": asked.id,
        "environment": environment.to_dict(),
        "environment_id": environment.id,
        "policy": POLICY.to_dict(),
        "policy_id": POLICY.id,
        **request_content(Budget(), Search(), DecisionRule()),
    }
    parts = [("start", start), *(("outcome", outcome.to_dict()) for outcome in found[:outcomes])]
    if result:
        parts.append(("result", result_of(asked, found)))
    rows = ({"type": kind, "version": 1, "session": key, kind: values} for kind, values in parts)
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode()
