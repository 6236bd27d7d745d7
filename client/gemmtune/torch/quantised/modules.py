"""QuantizedLinear, and models whose nn.Linear modules become that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.compiler import is_compiling

from gemmtune.torch.quantised import operators
from gemmtune.torch.quantised.form import WeightError
from gemmtune.torch.quantised.prepack import ACTIVATIONS, prepacked
from gemmtune.torch.quantised.quantise import quantize
from gemmtune.torch.quantised.stored import QuantizedWeight

#: The operators, which the module calls with its buffers as they are.
_OPERATORS = operators.NAMESPACE
#: Modules that quantize_model() leaves as they are: output layers, which lose most by it.
KEPT = ("lm_head",)
#: The buffers of the weights in the stored form.
_STORED = ("weight", "scales", "zeros")


class SharedInput(Protocol):
    """Modules of one input whose product is computed once (fuse.py)."""

    modules: tuple[Any, ...]

    @property
    def packed(self) -> bool:
        """Whether the product has a packed copy that rows of the table in use read."""

    def prepack(self, dtype: Any = None) -> None:
        """Packs the weights of all for the table in use."""

    def drop_packed(self) -> None:
        """Computes by the stored weights from now on."""

    def take(self, module: Any, given: Any) -> Any | None:
        """The columns of one module's output; None if it has to compute alone."""


#: The group of a module. Copies of a module are in none, and compute alone.
_GROUPS: WeakKeyDictionary[Any, SharedInput] = WeakKeyDictionary()


def share(module: QuantizedLinear, group: SharedInput | None) -> None:
    """Has a module compute as one of a group; with None alone again."""
    if group is None:
        _GROUPS.pop(module, None)
    else:
        _GROUPS[module] = group


class PackedCopy(NamedTuple):
    """A module's packed copy, which is replaced as a whole: `data` uint8 [bytes] in `layout`, and `sources`,
    the buffers that it was made of: their names, the tensors, their versions then."""

    data: Any
    layout: str
    sources: tuple[tuple[str, ref[Any], int | None], ...]


class QuantizedLinear(nn.Module):  # type: ignore[misc]
    """F.linear by quantised weights, with the rows of the table in use. The weights are buffers `weight`,
    `scales` and `zeros` in the stored form. prepack() adds `packed_copy`, in a layout of its own for rows
    that want one (`packed` and `layout` are its bytes and the layout's name): it is in no state_dict, pickle
    or copy of the module, and is dropped when weights are loaded or moved. The module then computes by the
    stored weights until prepack() is called again; so it does after weights were replaced or changed in
    place, which a compiled graph does not notice. Threads that call the module while another packs it read
    the older copy, the newer one or the stored weights."""

    #: One value: a reader takes it once, and has bytes and layout of the same copy. It is no buffer, whose
    #: layout would be a second one; torch.compile takes the memory of a module's tensors as one that stays
    #: where it is, buffers or not.
    packed_copy: PackedCopy | None = None

    def __init__(self, weight: QuantizedWeight, bias: Any = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bits, self.group_size, self.zero_point = weight.bits, weight.group_size, weight.zero_point
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise WeightError(f"bias is {list(bias.shape)}; the weights have {self.out_features} rows")
        self.register_buffer("weight", weight.data)
        self.register_buffer("scales", weight.scales)
        self.register_buffer("zeros", weight.zeros)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @classmethod
    def from_linear(cls, linear: Any, **options: Any) -> QuantizedLinear:
        """Quantises an nn.Linear; `options` are those of quantize(). Raises WeightError."""
        made = cls(quantize(linear.weight, **options), linear.bias)
        made.train(linear.training)
        return made

    @property
    def quantized_weight(self) -> QuantizedWeight:
        """The weights in the stored form."""
        return QuantizedWeight(self.weight, self.scales, self.zeros, self.zero_point, self.group_size)

    @property
    def packed(self) -> Any | None:
        """The bytes of the packed copy, uint8 [bytes]; None without one."""
        return None if (copy := self.packed_copy) is None else copy.data

    @property
    def layout(self) -> str | None:
        """The name of the packed copy's layout; None without one."""
        return None if (copy := self.packed_copy) is None else copy.layout

    def hold(self, copy: PackedCopy | None) -> None:
        """Puts a packed copy of the same weights in the place of the one that is there; None drops it."""
        self.packed_copy = copy

    def prepack(self, dtype: Any = None) -> bool:
        """Packs the weights for the table in use, as prepack_w4a16() says, in the place of an older copy;
        whether there is one now: rows may all read weights as they are stored. dtype: the activations', by
        default the bias's, else the scales' if these have 16 bits, else bfloat16. Graphs that were captured
        before read the older copy: capture them again. Raises WeightError, ServingError, LaunchError."""
        dtype = activations_of(self) if dtype is None else dtype
        form, has_bias = self.quantized_weight.form, self.bias is not None
        # As they are before they are read: a copy of weights that change meanwhile is an outdated one.
        stored = {name: self._buffers[name] for name in _STORED}
        sources = tuple((name, ref(one), _version(one)) for name, one in stored.items() if one is not None)
        made = prepacked(form, stored["weight"], stored["scales"], stored["zeros"], dtype, has_bias)
        self.hold(None if made is None else PackedCopy(made.data, made.layout, sources))
        return made is not None

    def drop_packed(self) -> None:
        """Computes by the stored weights from now on, and frees the packed copy; so does the product of
        modules that were merged with this one."""
        self.hold(None)
        if (group := _GROUPS.get(self)) is not None:
            group.drop_packed()

    def forward(self, input: Any) -> Any:  # noqa: A002
        """[..., in_features] to [..., out_features]."""
        if _GROUPS and not is_compiling():
            group = _GROUPS.get(self)
            found = None if group is None or type(input) is not torch.Tensor else group.take(self, input)
            if found is not None:
                return found
        size, bias = self.group_size, self.bias
        held = self.packed_copy
        copy = () if held is None or self._outdated(held) else (held.data, held.layout)
        if self.bits == 8:
            return _OPERATORS.linear_w8a16(input, self.weight, self.scales, size, bias, *copy)
        return _OPERATORS.linear_w4a16(
            input, self.weight, self.scales, self.zeros, size, self.zero_point, bias, *copy
        )

    def _outdated(self, copy: PackedCopy) -> bool:
        """Whether a packed copy is of other weights than the module has now."""
        if is_compiling():
            return False
        return any(
            (one := self._buffers[name]) is not tensor() or _version(one) != version
            for name, tensor, version in copy.sources
        )

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Moves to a device as every module does. Weights of 8-bit floats, scales and zero points keep their
        type, which is part of the weights' meaning: half() and bfloat16() would convert them. A packed copy
        stays if the weights stay where they are."""
        kept = {name: self._buffers[name] for name in _STORED}
        places = [None if one is None else (one.device, one.data_ptr()) for one in kept.values()]
        copy = self.packed_copy
        self.hold(None)
        super()._apply(fn, recurse)
        for name, before in kept.items():
            after = self._buffers[name]
            if before is not None and after.dtype is not before.dtype:
                self._buffers[name] = before.to(after.device)
        moved = [self._buffers[name] for name in kept]
        if places == [None if one is None else (one.device, one.data_ptr()) for one in moved]:
            self.hold(copy)
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        """Loads other weights, of which the packed copy is none."""
        self.drop_packed()
        super()._load_from_state_dict(*arguments, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed copy: a copy's memory may lie elsewhere, and a pickle is read beside another
        table."""
        return {**vars(self), "packed_copy": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Modules that were pickled by earlier versions, which kept no copy or two attributes of it, have
        none."""
        super().__setstate__(state)
        for name in ("layout", "_copied"):
            self.__dict__.pop(name, None)
        self._buffers.pop("packed", None)
        self._non_persistent_buffers_set.discard("packed")

    def extra_repr(self) -> str:
        """Sizes and form."""
        form = f"bits={self.bits}, group_size={self.group_size}"
        point = "" if self.zero_point is None else f", zero_point={self.zero_point}"
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {form}{point}"


def _version(tensor: Any) -> int | None:
    """Changes in place so far; None of a tensor that does not count them, and of none."""
    return None if tensor is None or tensor.is_inference() else int(tensor._version)


def activations_of(module: QuantizedLinear) -> Any:
    """The type of a module's activations: its bias's, else its scales' if of 16 bits, else bfloat16."""
    found = module.scales.dtype if module.bias is None else module.bias.dtype
    return found if found in ACTIVATIONS else torch.bfloat16


def quantize_model(
    model: Any, *, keep: Collection[str] | Callable[[str, Any], bool] = KEPT, **options: Any
) -> list[str]:
    """Replaces the nn.Linear modules of a model by QuantizedLinear, one after another where they are, and
    returns their names. `options` are those of quantize().

    keep: names of modules that stay, whole or their last part, or a function of (name, module). Modules of
    another class than nn.Linear stay, and so do weights that several modules share. Raises WeightError, which
    names the module, before anything is replaced, for sizes that do not fit the groups."""
    keeps = keep if callable(keep) else _named(keep)
    chosen = [(name, module) for name, module in _linears(model) if not keeps(name, module)]
    for name, module in chosen:
        _try(name, module, options)
    for name, module in chosen:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, QuantizedLinear.from_linear(module, **options))
    return [name for name, _ in chosen]


def prepack_model(model: Any, dtype: Any = None) -> list[str]:
    """Calls prepack() of every QuantizedLinear of a model, and packs the weights that apply(fuse=True)
    merged; the names of the modules that have a packed copy now, or a part in one. Inside enable() or apply()
    of the table that will be in use."""
    modules = {name: one for name, one in model.named_modules() if isinstance(one, QuantizedLinear)}
    left = Counter(id(group) for one in modules.values() if (group := _GROUPS.get(one)) is not None)
    for one in modules.values():
        one.prepack(dtype)
        group = _GROUPS.get(one)
        if group is None:
            continue
        left[id(group)] -= 1
        # After its last module, in whatever order the model has them, and at once: copies of parts may share
        # its memory.
        if not left[id(group)]:
            group.prepack(dtype)
    return [name for name, one in modules.items() if one.packed is not None or _in_packed(one)]


def _in_packed(module: QuantizedLinear) -> bool:
    group = _GROUPS.get(module)
    return group is not None and group.packed


def _try(name: str, module: Any, options: Mapping[str, Any]) -> None:
    """Raises WeightError, with the module's name, for sizes or options that do not fit."""
    try:
        quantize(torch.zeros(8, module.in_features, dtype=module.weight.dtype), **options)
        if module.out_features % 8 and not options.get("symmetric", True):
            raise WeightError(f"zero points of 8 rows share a word, and there are {module.out_features}")
    except WeightError as error:
        raise WeightError(f"{name}: {error}; keep= leaves it as it is") from None


def _named(names: Collection[str]) -> Callable[[str, Any], bool]:
    found = {names} if isinstance(names, str) else set(names)
    return lambda name, module: name in found or name.rpartition(".")[2] in found


def _linears(model: Any) -> Iterator[tuple[str, Any]]:
    """The nn.Linear modules of a model by name, without those whose weight another module has too."""
    users: dict[int, int] = {}
    for module in model.modules():
        for one in module.parameters(recurse=False):
            users[id(one)] = users.get(id(one), 0) + 1
    for name, module in model.named_modules():
        if type(module) is nn.Linear and name and users[id(module.weight)] == 1:
            yield name, module
