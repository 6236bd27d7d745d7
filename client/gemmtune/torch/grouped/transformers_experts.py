"""Whole layers of experts of transformers' models by moe(), in the place that transformers has for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.torch.errors import ServingError
from gemmtune.torch.grouped.activation import ACTIVATIONS, LIMIT, activated
from gemmtune.torch.grouped.layer import moe

if TYPE_CHECKING:
    from typing_extensions import Self

#: The name of the implementation, as `experts_implementation` takes it.
NAME = "gemmtune"
#: A module's attribute that says how moe() computes it.
_HOW = "gemmtune_moe"
_TYPES = (torch.bfloat16, torch.float16)
_SILU, _SWIGLUOAI = ACTIVATIONS


class _How(NamedTuple):
    """How moe() computes a module: options for its own weights, or weights and options in their place."""

    options: Mapping[str, Any]
    own: bool


class UsedMoe:
    """What use_moe() returns. `layers`: the modules of experts that moe() computes. restore(), or leaving the
    `with` block, gives the model its implementation back."""

    def __init__(self, model: Any, layers: list[Any], before: Any) -> None:
        self.layers, self._model, self._before = layers, model, before

    def restore(self) -> None:
        """Does nothing the second time."""
        if self._model is None:
            return
        self._model.set_experts_implementation(self._before)
        for one in self.layers:
            delattr(one, _HOW)
        self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.restore()


def use_moe(model: Any, experts: Mapping[str, Mapping[str, Any]] | None = None) -> UsedMoe:
    """Runs the experts of a model of transformers (5.17) by moe(), so that enable() serves both products, and
    the steps beside them are kernels of one launch each: Mixtral, Qwen3-MoE, gpt-oss, and every other model
    whose experts transformers dispatches by `experts_implementation`.

    model: a PreTrainedModel with weights of bfloat16 or float16. Each layer's gate is compared with the
    activations of moe() on a few numbers. Weights that lie transposed, as gpt-oss's, are laid out anew, one
    at a time; their values, names and shapes stay. The implementation is registered as "gemmtune", and
    `model.set_experts_implementation` may choose another at any time. Load the weights before.

    experts: a module's name -> what moe() takes in place of the module's own weights, biases and gate, such
    as experts_from_gpt_oss() returns: 4-bit experts of a model whose own were dequantised. Those stay where
    they are, and are not read.

    Raises ServingError, and leaves the model alone, where transformers is missing or has another form, where
    the model dispatches no experts, where moe() does not compute one of its layers, and for names and sizes
    of `experts` that are none of the model's."""
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise ServingError(f"use_moe() is for models of transformers 5: {error}") from None
    found = {name: one for name, one in model.named_modules() if _dispatches(one)}
    if not found or not hasattr(model, "set_experts_implementation"):
        raise ServingError(
            f"{type(model).__name__} has no experts that transformers dispatches by experts_implementation. "
            "Weights that another library packed are none: experts_from_gpt_oss() reads a checkpoint's"
        )
    given = dict(experts or {})
    if unknown := sorted(given.keys() - found.keys()):
        raise ServingError(
            f"no experts are named {unknown[0]!r}; there are {', '.join(list(found)[:3])}, ..."
        )
    hows = {
        name: _given(name, one, given[name]) if name in given else _how(name, one)
        for name, one in found.items()
    }
    before = model.get_experts_implementation()
    for name, one in found.items():
        if hows[name].own and one.is_transposed:
            _lay_out(one.gate_up_proj)
            _lay_out(one.down_proj)
        setattr(one, _HOW, hows[name])
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    model.set_experts_implementation(NAME)
    return UsedMoe(model, list(found.values()), before)


def experts_forward(module: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """The experts of a layer, as transformers calls an implementation. Raises ServingError for a module that
    use_moe() has not seen."""
    how = getattr(module, _HOW, None)
    if how is None:
        raise ServingError(
            f"{type(module).__name__} is no layer of a model that was given to use_moe(): choose another "
            "experts_implementation, or call use_moe(model) after its weights are loaded"
        )
    if not how.own:
        return moe(hidden_states, weights=top_k_weights, ids=top_k_index, **how.options)
    gate_up, down = module.gate_up_proj, module.down_proj
    if module.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
    return moe(
        hidden_states, gate_up, down, top_k_weights, top_k_index, gate_up_bias=biases[0],
        down_bias=biases[1], **how.options,
    )  # fmt: skip


def _dispatches(module: Any) -> bool:
    """Whether transformers' decorator made this a module that dispatches its experts."""
    return all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed", "_apply_gate"))


def _given(name: str, module: Any, experts: Mapping[str, Any]) -> _How:
    """What stands in place of a module's own. Raises ServingError for other sizes than the module's."""
    if not {"gate_up", "down"} <= experts.keys() or {"x", "weights", "ids"} & experts.keys():
        raise ServingError(
            f"the experts of {name} are {', '.join(sorted(experts)) or 'nothing'}; they must be moe()'s "
            "arguments by name, gate_up and down among them, but x, weights and ids"
        )
    for own, other in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
        wanted, found = list(getattr(module, own).shape), list(experts[other].shape)
        if module.is_transposed:
            wanted = [wanted[0], wanted[2], wanted[1]]
        if found != wanted:
            raise ServingError(f"{other} of {name} is {found}; {own} is {wanted}, as [experts, n, k]")
    return _How(dict(experts), own=False)


def _how(name: str, module: Any) -> _How:
    """moe()'s options. Raises ServingError for what it does not compute."""
    what = f"{name or 'the model'} ({type(module).__name__})"
    if not module.has_gate:
        raise ServingError(f"{what} has no gate: moe() computes gated experts alone")
    for weight in ("gate_up_proj", "down_proj"):
        stored: Any = getattr(module, weight, torch.empty(0))
        if stored.dtype not in _TYPES or stored.dim() != 3:
            raise ServingError(
                f"{what}: {weight} is {stored.dtype} {list(stored.shape)}; use_moe() takes the weights of "
                "all experts in one tensor of bfloat16 or float16"
            )
    # As many columns as the module has: some gates look at its sizes.
    columns = 2 * module.down_proj.shape[1 if module.is_transposed else 2]
    numbers = 6 * torch.randn(8, columns, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        try:
            gated = module._apply_gate(numbers)
        except Exception as error:  # of whatever the gate needs
            raise ServingError(f"{what}: its gate raised {type(error).__name__}: {error}") from error
        limit = float(getattr(module, "limit", LIMIT) or LIMIT)
        for interleaved in (False, True):
            for name_of, clamped in ((_SILU, None), (_SWIGLUOAI, limit)):
                ours = activated(numbers, interleaved, clamped)
                if gated.shape == ours.shape and torch.allclose(gated, ours, rtol=1e-4, atol=1e-5):
                    options = {"activation": name_of, "swiglu_limit": clamped, "interleaved": interleaved}
                    return _How(options, own=True)
    raise ServingError(
        f"{what}: its gate is neither silu(gate) * up nor gpt-oss's, of halves or of columns that take turns"
    )


def _lay_out(weight: Any) -> None:
    """Lays a weight [experts, k, n] out with k contiguous, as grouped kernels read it."""
    with torch.no_grad():
        weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)
