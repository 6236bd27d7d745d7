"""What the writers of vLLM's and SGLang's configurations take of an export's options."""

from __future__ import annotations

from collections.abc import Collection

from service.formats.core.export import ExportOptions, ExportRefused


def check_options(name: str, kernel: str, validators: Collection[str], options: ExportOptions) -> None:
    """Raises ExportRefused for what the format `name` does not take: a target, devices that do not run
    `kernel`, and other validators than these."""
    if options.target is not None:
        raise ExportRefused(f"{name} takes no target: its files name the device only, not {options.target!r}")
    if options.device.vendor not in ("cuda", "hip"):
        raise ExportRefused(
            f"{kernel} runs on GPUs, and these rows are of {options.device} (json and csv take them)"
        )
    unknown = sorted(set(options.validators) - set(validators))
    if unknown:
        known = ", ".join(validators)
        raise ExportRefused(f"{', '.join(unknown)} is no validator of {name}; its validators: {known}")
