"""The 8-bit float that vLLM and SGLang use on a device, by the name in a configuration's file name."""

from __future__ import annotations

import re

from service.formats.core.base import printable
from service.formats.vllm.files import UnreadError

#: AMD devices that compute in the FNUZ formats (gfx94x: MI300A, MI300X, MI308X, MI325X), and those whose name
#: shows that they do not. The plain "AMD_Radeon_Graphics" of old drivers may be either.
_FNUZ = re.compile(r"(?:AMD_)?(?:Instinct_)?MI3[0-2][0-9](?![0-9])")
_OCP = re.compile(r"(?:AMD_)?(?:Instinct_)?MI3[5-9][0-9](?![0-9])")
_RADEON = re.compile(r"AMD_Radeon_.*[0-9]")


def fp8_of(device_name: str) -> tuple[str, str]:
    """The 8-bit float that vLLM and SGLang use on the device, and its arch if the name shows it ("" if not).
    Both use FNUZ if the arch's name contains gfx94 (is_fp8_fnuz), else OCP. Raises UnreadError."""
    if _FNUZ.match(device_name):
        return "fp8_e4m3_fnuz", "gfx942"
    if _OCP.match(device_name):
        return "fp8_e4m3", "gfx950"
    if "AMD" in device_name.upper() and _RADEON.match(device_name) is None:
        raise UnreadError(
            f"device {printable(device_name)} may be one that computes in the FNUZ formats (MI300) or one "
            "that does not: put the product's full name into the file's name, such as AMD_Instinct_MI300X"
        )
    return "fp8_e4m3", ""


def fp8_on(arch: str) -> str:
    """The 8-bit float that both use on an architecture."""
    return "fp8_e4m3_fnuz" if arch.startswith("gfx94") else "fp8_e4m3"
