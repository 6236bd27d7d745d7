"""The client's exceptions. Their texts are for the user: what is wrong, and what to do."""

from __future__ import annotations


class GemmtuneError(Exception):
    """Base class of the client's exceptions."""


class BundleError(GemmtuneError):
    """A bundle that cannot be fetched, read or trusted."""


class LaunchError(GemmtuneError):
    """A device, driver or kernel that cannot do what was asked of it; names the call and its status."""


class ProblemError(GemmtuneError, ValueError):
    """A problem that is not a GEMM. `field` is the argument at fault."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field
