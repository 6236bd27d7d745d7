"""The parameters of a configuration of vLLM's and SGLang's Triton kernels, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.formats.core.base import printable

#: The parameters of every entry, in the order in which vLLM and SGLang write them.
PARAMETERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
#: The parameters that Triton also takes on AMD devices, and refuses on others.
HIP_PARAMETERS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


def kernel_fault(parameters: Mapping[str, object], kernel: str) -> str | None:
    """Why Triton cannot compile `kernel` with these parameters; None if it can."""
    missing = [name for name in PARAMETERS if name not in parameters]
    if missing:
        return f"{', '.join(missing)} is missing"
    for name, value in parameters.items():
        if name not in PARAMETERS and name not in HIP_PARAMETERS:
            known = ", ".join((*PARAMETERS, *HIP_PARAMETERS))
            return f"{printable(name, 40)!r} is no parameter of {kernel}; its parameters: {known}"
        least = 0 if name in HIP_PARAMETERS or name == "num_stages" else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            return f"{name} must be a whole number from {least} to {2**31 - 1}"
        if (name.startswith("BLOCK_SIZE_") or name == "num_warps") and value & (value - 1):
            return f"{name} is {value}; Triton takes powers of two"
    return None


def entry_text(key: int, parameters: Mapping[str, object]) -> str:
    """One member of a file's object, as the frameworks' own scripts indent it."""
    order = (*PARAMETERS, *HIP_PARAMETERS)
    parts = [f'        "{name}": {parameters[name]}' for name in order if name in parameters]
    return f'    "{key}": {{\n' + ",\n".join(parts) + "\n    }"


def file_text(entries: Iterable[str]) -> str:
    """A file's object of its members."""
    return "{\n" + ",\n".join(entries) + "\n}\n"
