"""The device's name, by which vLLM and SGLang look their tuned configurations up."""

from __future__ import annotations

import re

from service.formats.core.export import ExportOptions, ExportRefused

#: The validator with the device's name in a file's name.
DEVICE_NAME = "DEVICE_NAME"
#: Suffixes that AMD's drivers add to an Instinct's name in a virtual machine.
_SAME_CHIP = (["vf"], ["hf"])
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ()._+-]{0,99}")


def product_of(stack: str, options: ExportOptions) -> str:
    """The product as the framework's runtime spells it: from the request, else from the newest
    environment."""
    given = options.validators.get(DEVICE_NAME)
    # The driver's names have blanks; a product without a blank was taken from a device class.
    told = (e.product for e in options.environments if e.device_class == options.device)
    name = given or next((product for product in told if " " in product), None)
    if name is None:
        raise ExportRefused(
            f"{stack} looks its files up by the device's full name, and no environment of the rows says it: "
            f"give it as a validator (such as {DEVICE_NAME}:NVIDIA H200)"
        )
    if given is not None and " " not in given:
        name = given.replace("_", " ")  # as file names spell it
    if _DEVICE.fullmatch(name) is None:
        raise ExportRefused(f"{DEVICE_NAME} {name[:200]!r} cannot stand in a file's name")
    if not _same_product(name, options.device.product):
        raise ExportRefused(
            f"the target's {DEVICE_NAME} is {name}, but the rows are of {options.device}: what is fastest "
            "there was not measured"
        )
    return name


def _same_product(left: str, right: str) -> bool:
    """Whether two spellings may be one product: AMD Radeon RX 7900 XTX and AMD_Radeon_RX7900XTX, or AMD
    Instinct MI300X and AMD Instinct MI300X VF, but not NVIDIA H20 and NVIDIA H200."""
    words = [re.findall("[a-z0-9]+", text.lower()) for text in (left, right)]
    plain = [(one[:-1] if one[-1:] in _SAME_CHIP else one) if "amd" in one else one for one in words]
    return "".join(plain[0]) == "".join(plain[1]) != ""
