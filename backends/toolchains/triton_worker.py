"""The compiler process: Triton, one request a line on standard input, one answer a line on standard output.

A process of its own, because a failed assertion of the compiler ends it, because Triton reads its environment
when it is imported, and because its passes hold Python's lock: threads of one process would wait for each
other. It ends with its input. It needs neither a GPU nor torch.

A request is description.py's Request as JSON; an answer {"cubin": base64, "entry", "threads",
"shared_bytes", ...} or {"error", "log"}.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import sys
import traceback
from typing import Any

#: ptxas -v: registers and what they spill to, of the one kernel.
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
#: A parameter of the entry in PTX: the type that the launch passes.
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)")
_ENTRY = re.compile(r"\.visible\s+\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)


def compile_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; whatever Triton raises passes through."""
    import triton  # noqa: PLC0415  (optional, and read from the environment on import)
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    from backends.kernels.triton import kernels  # noqa: PLC0415

    function = getattr(kernels, request["kernel"])
    signature = {name: str(kind) for name, kind in request["signature"]}
    constants = request["constants"]
    order = list(function.arg_names)
    if [*signature, *constants] != order:
        raise TypeError(f"{request['kernel']} takes {order}")
    signature |= dict.fromkeys(constants, "constexpr")
    attributes = {
        (order.index(name),): [["tt.divisibility", unit]] for name, unit in request["divisibility"].items()
    }
    source = ASTSource(
        function, signature, {(order.index(name),): value for name, value in constants.items()}, attributes
    )
    target = GPUTarget("cuda", request["capability"], 32)
    made = triton.compile(source, target=target, options=request["options"])
    meta = made.metadata
    found = _ENTRY.search(made.asm["ptx"])
    if found is None:
        raise RuntimeError("the PTX has no entry")
    return {
        "cubin": base64.b64encode(made.asm["cubin"]).decode(),
        "entry": meta.name,
        # Warp specialisation adds warps of its own to the launch.
        "threads": 32 * (getattr(meta, "num_warps", 0) or request["options"]["num_warps"]),
        "shared_bytes": meta.shared,
        "scratch_bytes": meta.global_scratch_size,
        "scratch_align": meta.global_scratch_align,
        "profile_bytes": getattr(meta, "profile_scratch_size", 0) or 0,
        "parameters": _PARAMETER.findall(found[1]),
    }


def answer(line: str) -> dict[str, Any]:
    """One answer; a failure's log is what was printed and the traceback."""
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            found = compile_kernel(json.loads(line))
    except Exception as error:
        # Errors of Triton's front end point at the kernel's source over several lines, a call at a time; the
        # cause of them all says why.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = [line for line in str(cause).splitlines() if line.strip()]
        last = lines[-1] if lines else type(cause).__name__
        first = next((line for line in lines if line.startswith("ptxas ")), last)
        trace = traceback.format_exc()
        return {"error": f"{type(error).__name__}: {first}", "log": log.getvalue() + trace}
    printed = log.getvalue()
    registers, spills = _REGISTERS.search(printed), _SPILLS.search(printed)
    found["registers"] = int(registers[1]) if registers else None
    found["spill_bytes"] = int(spills[1]) + int(spills[2]) if spills else None
    return found


def main() -> None:
    """Answers until the input ends. What compilers print goes to standard error, never between answers."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Lines of kernels.py would be in the cubins, and with them where it is installed: they are handed out.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    for line in sys.stdin:
        found = answer(line)
        # compiler.py names a folder of this process's own; what is in it is of no use to anyone.
        shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
