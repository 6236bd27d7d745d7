"""What follows a product of 8-bit operands, in the terms of a row, and torch's own computation of it.

out = scale_out act(product + beta residual + bias), in fp32, rounded once. int8 outputs are rounded to
nearest, ties to even, and saturate; NaN becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from gemmtune.torch.layouts import DTYPES, OPEN_SCALAR
from gemmtune.torch.quantised.form import WeightError

#: An output's name -> torch's type: floats, which have no scale, and int8, which has one.
OUTPUTS: Mapping[str, Any] = {name: DTYPES[name] for name in ("bf16", "fp16", "fp32")} | {"int8": torch.int8}
#: torch's type of a tensor that is added -> its name.
_NAMES: Mapping[Any, str] = {kind: name for name, kind in OUTPUTS.items()}
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
#: gelu is the tanh approximation.
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda value: value,
    "relu": torch.relu,
    "gelu": lambda value: torch.nn.functional.gelu(value, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
ACTIVATIONS = tuple(_FUNCTIONS)
_LARGEST = torch.finfo(torch.float32).max


class Epilogue(NamedTuple):
    """`bias` and `residual` are the types of what is added, None for nothing. `beta`: "zero" (no residual),
    "one" or "any", as of a problem. `scaled`: the output has a scale."""

    bias: Any = None
    residual: Any = None
    beta: str = "zero"
    activation: str = "none"
    scaled: bool = False

    @property
    def name(self) -> str:
        """For people: "" for nothing, "bias", "bias_c_silu"."""
        added = ["bias"] * (self.bias is not None) + ["c"] * (self.residual is not None)
        return "_".join([*added, *([self.activation] if self.activation != "none" else [])])

    @property
    def fused_by_torch(self) -> bool:
        """Whether it is at most a bias, which torch's own call of a product adds."""
        return self._replace(bias=None) == Epilogue()

    @property
    def operands(self) -> set[str]:
        """The names of its operands in a row."""
        have = {"bias": self.bias is not None, "c": self.residual is not None, "scale_d": self.scaled}
        return {name for name, has in have.items() if has}

    def wire(self, out_dtype: Any) -> dict[str, Any]:
        """The fields of a problem in the form in which people write it, its scaling aside."""
        found: dict[str, Any] = {}
        if self.bias is not None and self.bias is not out_dtype:
            found["epilogue"] = {"activation": self.activation, "bias": _NAMES[self.bias]}
        elif self.bias is not None or self.activation != "none":
            parts = ["bias"] * (self.bias is not None) + [self.activation] * (self.activation != "none")
            found["epilogue"] = "_".join(parts)
        if self.residual is not None:
            found["beta"] = 1.0 if self.beta == "one" else OPEN_SCALAR
            if self.residual is not out_dtype:
                found["dtype_c"] = _NAMES[self.residual]
        return found


class Added(NamedTuple):
    """The tensors of an epilogue, bias [n], residual [m, n] and scale_out of one value, and the number
    beta."""

    bias: Any = None
    residual: Any = None
    scale_out: Any = None
    beta: float = 1.0

    @property
    def tensors(self) -> list[Any]:
        """Those that there are."""
        return [one for one in self[:3] if one is not None]


def epilogue_of(
    added: Added, activation: str, out_dtype: Any, lead: tuple[int, ...], n: int, source: Any
) -> Epilogue:
    """The epilogue of a call with outputs [*lead, n] from operands of type `source`. Only shapes, types and
    beta are looked at. Raises WeightError."""
    bias, residual, scale, beta = added
    if out_dtype not in _NAMES or (out_dtype is torch.int8 and source is not torch.int8):
        raise WeightError(
            f"out_dtype is {out_dtype} of {source} operands; it must be bfloat16, float16 or float32, or "
            "int8 of int8 operands"
        )
    if activation not in _FUNCTIONS:
        raise WeightError(f"activation {activation!r} is unknown; known: {', '.join(ACTIVATIONS)}")
    if not abs(beta) <= _LARGEST:
        raise WeightError(f"beta is {beta}; it must be a finite number of fp32")
    if residual is None and beta != 1.0:
        raise WeightError(f"beta is {beta}, and there is no residual that it multiplies")
    floats = _FLOATS if out_dtype is torch.int8 else (out_dtype,)
    for name, one, shape, kinds in (
        ("bias", bias, (n,), floats),
        ("residual", residual, (*lead, n), (*floats, torch.int8) if out_dtype is torch.int8 else floats),
    ):
        if one is not None and (tuple(one.shape) != shape or one.dtype not in kinds):
            wanted = f"{list(shape)} of {' or '.join(map(str, kinds))}"
            raise WeightError(f"{name} is {list(one.shape)} of {one.dtype}; it must be {wanted}")
    if (scale is None) == (out_dtype is torch.int8):
        if scale is None:
            raise WeightError(
                "out_dtype is torch.int8 and scale_out is not given: it is the float32 value that multiplies "
                "the outputs before they are rounded"
            )
        raise WeightError(
            f"scale_out is given and out_dtype is {out_dtype}: only int8 outputs are scaled; leave it out, "
            "or pass out_dtype=torch.int8"
        )
    if scale is not None and (scale.dtype is not torch.float32 or scale.numel() != 1):
        raise WeightError(f"scale_out is {list(scale.shape)} of {scale.dtype}; it is one value of float32")
    used = residual is not None and beta != 0.0
    return Epilogue(
        None if bias is None else bias.dtype, residual.dtype if used else None,
        ("one" if beta == 1.0 else "any") if used else "zero", activation, scale is not None,
    )  # fmt: skip


def of_canonical(p: Mapping[str, Any]) -> Epilogue | None:
    """The epilogue of a row's canonical problem; None for one that no call has."""
    out = OUTPUTS.get(p["dtype_d"])
    floats = _FLOATS if out is torch.int8 else (out,)
    bias, residual = (None if kind is None else OUTPUTS.get(kind) for kind in (p["bias"], p["dtype_c"]))
    if p["bias"] is not None and (bias not in floats or p["bias_axis"] != "m"):
        return None
    if p["beta"] == "zero":
        residual = None
    elif p["ldc"] != p["m"] or residual not in (*floats, out):
        return None
    if out is None or (p["scale_d"] == "tensor") != (out is torch.int8):
        return None
    return Epilogue(bias, residual, p["beta"], p["activation"], out is torch.int8)


def finished(value: Any, e: Epilogue, added: Added, out_dtype: Any) -> Any:
    """The outputs [m, n] from the scaled sums `value` in fp32, in the order in which kernels compute."""
    if e.residual is not None:
        value = value + added.residual.to(torch.float32) * added.beta
    if e.bias is not None:
        value = value + added.bias.to(torch.float32)
    value = _FUNCTIONS[e.activation](value)
    if not e.scaled:
        return value.to(out_dtype)
    value = (value * added.scale_out.reshape(())).nan_to_num(nan=0.0)
    return value.round().clamp(-128, 127).to(torch.int8)


def make(e: Epilogue, m: int, n: int, random: Any, device: Any) -> Added:
    """Tensors of random values, for a race."""

    def values(kind: Any, *shape: int) -> Any:
        if kind is None:
            return None
        found = torch.randn(shape, generator=random, device=device)
        return (found * 16).to(kind) if kind is torch.int8 else found.to(kind)

    scale = torch.full((1,), 2.0**-8, device=device) if e.scaled else None
    beta = OPEN_SCALAR if e.beta == "any" else 1.0
    return Added(values(e.bias, n), values(e.residual, m, n), scale, beta)
