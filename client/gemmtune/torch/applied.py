"""apply(): the nn.Linear modules of a model that have rows, by a class of their own."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling
from torch.nn.functional import linear

from gemmtune.torch import operators, override
from gemmtune.torch.errors import ServingError
from gemmtune.torch.fuse import Group, groups, merged_key
from gemmtune.torch.handle import Handle
from gemmtune.torch.layouts import Product
from gemmtune.torch.products import Weights, autocast_differs, intercepted, run_linear
from gemmtune.torch.quantised.fuse import WeightGroup, weight_groups
from gemmtune.torch.quantised.modules import QuantizedLinear
from gemmtune.torch.quantised.products import is_of
from gemmtune.torch.race import race_rows
from gemmtune.torch.served import LinearKey, Served
from gemmtune.torch.tuned_row import TunedRow
from gemmtune.torch.watch import WATCHERS, tell

if TYPE_CHECKING:
    from gemmtune.table import Table

_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_grad_enabled = torch.is_grad_enabled


class _Switch:
    """Whether an apply() is on: copies of a model keep its sites, and must compute as torch after it."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


class _Site:
    """One module's place in a model: its rows by M, its group, and its parameters as they were last seen."""

    def __init__(self, served: Served, key: LinearKey, group: Group | None, switch: _Switch) -> None:
        self.key, self.k, self.group, self.switch = key, key[1], group, switch
        self.device_type = served.runtime.type
        self.rows: dict[int, TunedRow] = served.linear.setdefault(key, {})
        native = served.native_linear(key)
        self.native: Callable[[Any, Any, Any], Any] | None = None if native is None else native.call
        self._weights = Weights()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Site:
        return self

    def hit(self, row: TunedRow | None, module: Any, given: Any) -> Any | None:
        """The module's output by its row, or without one as a part of its group's; None if torch has to
        compute it."""
        parameters = module._parameters
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if type(weight) is not _Parameter or (bias is not None and type(bias) is not _Parameter):
            return None
        # Autocast converts a weight of another type, and records that for backward.
        if given.dtype is not weight.dtype:
            return None
        if intercepted() or autocast_differs(self.device_type, given.dtype):
            return None
        if _grad_enabled():
            needs = given.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
            if needs:
                return None if row is None or not row.live else operators.linear(given, weight, bias)
        if row is None:
            return None if self.group is None else self.group.take(module, given)
        return run_linear(row, given, weight, bias, self._weights)

    def tell_missed(self, given: Any) -> None:
        """Tells watchers of a product that torch computes, unless they are told by torch's own operators."""
        n, k, dtype, bias = self.key
        m, kind = given.numel() // k, self.device_type
        if m and given.dtype is dtype and given.device.type == kind and override.installed(kind) is None:
            extra = "bias" if bias else ""
            tell(Product(m, n, k, (False, k), (True, k), dtype, dtype, extra), None, kind)


class _Linear(torch.nn.Linear):  # type: ignore[misc]
    """The class of a module that has a site. Its forward takes all from the module that is called, which may
    be a copy or DataParallel's replica. Pickles and shallow copies are of nn.Linear itself."""

    def forward(self, input: Any) -> Any:  # noqa: A002
        """See nn.Linear."""
        if is_compiling():  # the pass rewrites what has rows
            return linear(input, self.weight, self.bias)
        site = vars(self).get("_gemmtune_site")  # gone after disable(), if a wrapper kept this method
        if site is not None and site.switch.on and type(input) is _Tensor:
            found = None if site.group is None else site.hit(None, self, input)
            if found is None and site.native is not None:
                parameters = self._parameters
                found = site.native(input, parameters.get("weight"), parameters.get("bias"))
            if found is None:
                row = site.rows.get(input.numel() // site.k)
                if row is not None:
                    found = site.hit(row, self, input)
            if found is not None:
                return found
            if WATCHERS:
                site.tell_missed(input)
        return linear(input, self.weight, self.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        fresh = memo[id(self)] = type(self).__new__(type(self))
        fresh.__setstate__(copy.deepcopy(vars(self), memo))
        return fresh

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {name: value for name, value in vars(self).items() if name != "_gemmtune_site"}
        return copyreg._reconstructor, (torch.nn.Linear, object, None), state  # type: ignore[attr-defined]


# What asks for a class's names (repr(), tracers that know nn's modules) sees nn.Linear.
_Linear.__name__ = _Linear.__qualname__ = torch.nn.Linear.__name__
_Linear.__module__ = torch.nn.Linear.__module__


class Applied(Handle):
    """A model whose modules use a table. `modules` counts the nn.Linear modules with rows, `quantized` the
    QuantizedLinear modules; `fused` the groups that are one product. disable() makes the modules nn.Linear
    again, and gives merged weights memory of their own."""

    def __init__(self, model: Any, table: Table, fuse: bool, race: bool) -> None:
        super().__init__(table)
        self.modules, self.quantized, self.fused = 0, 0, 0
        self._switch = _Switch()
        self._patched: list[Any] = []
        self._groups: list[Group] = []
        self._weight_groups: list[WeightGroup] = []
        self._model, self._race = model, race
        self._keys: set[LinearKey] = set()
        self._indices = _indices(model, self._served)
        try:
            _check_devices(model, self._served)
            siblings = list(groups(model, self._served)) if fuse else []
            self._serve(siblings, list(weight_groups(model, self._served)) if fuse else [])
        except BaseException:
            self.disable()
            raise

    def _serve(self, siblings: Sequence[Any] = (), quantized: Sequence[Any] = ()) -> None:
        """Races and loads the rows of the model's modules, merges siblings, and patches the modules that have
        rows and are not patched yet. Groups stay as they are at a refresh: graphs have their addresses."""
        served, model = self._served, self._model
        free = list(_linears(model, served))
        self._keys |= {_key(module) for module in free}
        rows = [row for key in self._keys for row in served.linear.get(key, {}).values()]
        merged = [served.linear[merged_key(one)] for one in siblings]
        rows += [row for of in merged for row in of.values()]
        made = [WeightGroup(served, one) for one in quantized]
        self._weight_groups += made
        served.weight_groups += made
        rows += [row for group in (*self._groups, *self._weight_groups) for row in group.tuned()]
        by_module = [_weight_rows(module, served) for module in _quantized(model, served)]
        self.quantized = sum(bool(found) for found in by_module)
        rows += [row for found in by_module for row in found]
        race_rows(served, dict.fromkeys(rows), self._race, *self._indices[:1])
        for index in self._indices:
            served.load((row for row in rows if row.live), index)
        for one, of in zip(siblings, merged, strict=True):
            if any(row.live for row in of.values()):
                self._groups.append(Group(served, one))
                served.groups.append(self._groups[-1])
        self.fused = len(self._groups) + len(self._weight_groups)
        grouped = {module: group for group in self._groups for module in group.modules}
        for module in free:
            key, group = _key(module), grouped.get(module)
            if group is None and not served.linear.get(key):
                continue
            module._gemmtune_site = _Site(served, key, group, self._switch)
            module.__class__ = _Linear
            self._patched.append(module)
        self.modules = len(self._patched)

    @property
    def packed_bytes(self) -> int:
        """Bytes of memory of the packed copies of the model's weights, beside the weights themselves."""
        copies = [one.packed for one in _quantized(self._model, self._served)]
        copies += [one.packed_data for one in self._weight_groups]
        storages = [one.untyped_storage() for one in copies if one is not None]
        return sum({one.data_ptr(): one.nbytes() for one in storages}.values())

    def disable(self) -> None:
        """Restores the modules. Does nothing the second time."""
        if not self.enabled:
            return
        self._switch.on = False
        for module in self._patched:
            if type(module) is _Linear:  # else its class was changed again, and it computes as torch
                module.__class__ = torch.nn.Linear
                del module._gemmtune_site
        for group in self._groups:
            self._served.groups.remove(group)
            group.restore()
        for weights in self._weight_groups:
            self._served.weight_groups.remove(weights)
            weights.restore()
        super().disable()


def _linears(model: Any, served: Served) -> Iterator[Any]:
    """Modules that are nn.Linear itself, with parameters of ordinary type on the table's kind of device."""
    for module in model.modules():
        if not _is_plain(module) or "forward" in vars(module):
            continue
        weight = module._parameters.get("weight")
        if type(weight) is _Parameter and weight.device.type == served.runtime.type:
            yield module


def _is_plain(module: Any) -> bool:
    """Whether a module is nn.Linear itself, or a copy that computes as it since disable()."""
    kind = type(module)
    return kind is torch.nn.Linear or (kind is _Linear and not module._gemmtune_site.switch.on)


def _key(module: Any) -> LinearKey:
    n, k = module.weight.shape
    return n, k, module.weight.dtype, module.bias is not None


def _quantized(model: Any, served: Served) -> Iterator[Any]:
    """QuantizedLinear modules on the table's kind of device. They need no patch: their operator looks rows
    up."""
    for module in model.modules():
        if isinstance(module, QuantizedLinear) and module.weight.device.type == served.runtime.type:
            yield module


def _weight_rows(module: Any, served: Served) -> list[TunedRow]:
    """The rows of a QuantizedLinear, for activations of either type."""
    form, bias = module.quantized_weight.form, module.bias is not None
    every = served.weights.items()
    return [row for key, rows in every if is_of(key, form, bias) for row in rows.values()]


def _indices(model: Any, served: Served) -> list[int]:
    modules = (*_linears(model, served), *_quantized(model, served))
    return sorted({module.weight.device.index or 0 for module in modules})


def _check_devices(model: Any, served: Served) -> None:
    """Raises ServingError for a model without parameters on the table's kind of device, LaunchError for a
    device of another class."""
    kinds = {one.device.type for one in model.parameters()}
    if kinds and served.runtime.type not in kinds:
        raise ServingError(
            f"the table is for {served.table.device}, and the model's parameters are on "
            f"{', '.join(sorted(kinds))}: move the model, or load a table of its device"
        )
    for index in _indices(model, served):
        served.open(index)


def apply(model: Any, table: Table, *, fuse: bool = False, race: bool = True) -> Applied:
    """Runs the nn.Linear and QuantizedLinear modules of `model` that have rows by these; returns a handle
    with disable().

    Nothing else is touched: a module's class becomes a subclass of nn.Linear, whose forward leaves to torch
    what has no row: other M, dtypes, views, subclasses, modes. A launch that fails is computed by torch, with
    a warning, and its row is left out from then on.

    fuse: projections that share their input (q, k and v; gate and up) become one product where the table has
    rows for it. Their weights become views of one tensor, and their outputs views of one output: `view(-1)`
    of such an output fails where it did not before. Inside inference_mode, whose tensors do not count their
    changes, every module computes alone.
    race: rows that were measured with other libraries than this process's are raced against torch once, and
    stay off where they are not faster; with race=False all such rows stay off.

    Raises ServingError or LaunchError if the table is not for the model's device, or another one is in use.
    """
    return Applied(model, table, fuse, race)
