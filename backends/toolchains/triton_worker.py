"""The Triton compiler process: reads one request per line on standard input and writes one answer per line on
standard output.

It is a separate process for three reasons: a failed assertion in the compiler ends the process; Triton reads
its environment variables on import; and its passes hold the GIL, so threads of one process would wait for
each other. It ends when its input ends. It needs neither a GPU nor torch.

A request is description.py's Request as JSON; an answer {"binary": base64, "entry", "threads",
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

#: ptxas -v: registers and spills of the one kernel.
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
#: The type of an entry parameter in PTX, which the launch must pass.
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)")
_ENTRY = re.compile(r"\.visible\s+\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)
#: The same in the LLVM IR of AMD's kernels, whose parameters have attributes with parentheses; LLVM's type
#: names in PTX's words.
_LLVM_ENTRY = re.compile(r"^define amdgpu_kernel void @\w+\((.*)\)", re.MULTILINE)
_LLVM_PARAMETER = re.compile(r"(?:^|, )(ptr|i32|i64|float)\b")
_PTX_TYPES = {"ptr": "u64", "i64": "u64", "i32": "u32", "float": "f32"}


def compile_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles one request and returns its answer; Triton's exceptions propagate."""
    import triton  # noqa: PLC0415  (optional, and read from the environment on import)
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    from backends.kernels.triton import framework_kernels, kernels, weight_kernels  # noqa: PLC0415

    homes = (kernels, framework_kernels, weight_kernels)
    function = next(getattr(home, request["kernel"]) for home in homes if hasattr(home, request["kernel"]))
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
    arch, warp = request["arch"], request["warp"]
    nvidia = re.match(r"sm_(\d+)", arch)
    target = GPUTarget("cuda", int(nvidia[1]), warp) if nvidia else GPUTarget("hip", arch, warp)
    made = triton.compile(source, target=target, options=request["options"])
    meta = made.metadata
    return {
        "binary": base64.b64encode(made.asm["cubin" if nvidia else "hsaco"]).decode(),
        "entry": meta.name,
        # Warp specialisation adds warps to the launch.
        "threads": warp * (getattr(meta, "num_warps", 0) or request["options"]["num_warps"]),
        "shared_bytes": meta.shared,
        # Kernels for AMD's GPUs have the parameter, and never use it.
        "scratch_bytes": getattr(meta, "global_scratch_size", 0) or 0,
        "scratch_align": getattr(meta, "global_scratch_align", 1) or 1,
        "profile_bytes": getattr(meta, "profile_scratch_size", 0) or 0,
        **(_nvidia(made.asm["ptx"]) if nvidia else _amd(made.asm["llir"], made.asm["hsaco"])),
    }


def _nvidia(ptx: str) -> dict[str, Any]:
    """The types of the parameters. (ptxas prints registers and spills: answer() reads them.)"""
    found = _ENTRY.search(ptx)
    if found is None:
        raise RuntimeError("the PTX has no entry")
    return {"parameters": _PARAMETER.findall(found[1])}


def _amd(llvm: str, binary: bytes) -> dict[str, Any]:
    """The types of the parameters, vector registers and spills."""
    from backends.toolchains import code_object  # noqa: PLC0415  (with its package only once it is asked for)

    found = _LLVM_ENTRY.search(llvm)
    if found is None:
        raise RuntimeError("the LLVM IR has no kernel")
    (taken,) = code_object.read(binary).kernels.values()
    return {
        "parameters": [_PTX_TYPES[kind] for kind in _LLVM_PARAMETER.findall(found[1])],
        "registers": taken.resources.registers,
        "spill_bytes": taken.resources.spill_bytes,
    }


def answer(line: str) -> dict[str, Any]:
    """The answer to one line. On failure its log is the printed output and the traceback."""
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            found = compile_kernel(json.loads(line))
    except Exception as error:
        # Triton's front end wraps an error once per call level, each time quoting several source lines; the
        # root cause holds the reason.
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
    found.setdefault("registers", int(registers[1]) if registers else None)
    found.setdefault("spill_bytes", int(spills[1]) + int(spills[2]) if spills else None)
    return found


def main() -> None:
    """Answers requests until the input ends. Compiler output goes to standard error, never among the
    answers."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Line info would put the installation path of kernels.py into the cubins, which are handed to users.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    for line in sys.stdin:
        found = answer(line)
        # triton.py gives this process its own cache folder, whose contents are never used again.
        shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
