"""apply(): the nn.Linear modules of a model that have rows, by a forward of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling
from torch.nn.functional import linear

from gemmtune.torch import operators, override
from gemmtune.torch.errors import ServingError
from gemmtune.torch.fuse import Group, groups
from gemmtune.torch.handle import Handle
from gemmtune.torch.layouts import Product
from gemmtune.torch.products import autocast_differs, intercepted, run_linear
from gemmtune.torch.race import race_rows
from gemmtune.torch.served import LinearKey, Served
from gemmtune.torch.tuned_row import TunedRow
from gemmtune.torch.watch import WATCHERS, tell

if TYPE_CHECKING:
    from gemmtune.table import Table

_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_grad_enabled = torch.is_grad_enabled


class _Switch:
    """Whether an apply() is on: copies of a model keep its forward, and must compute as torch after it."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


def _patched(
    key: LinearKey, rows: dict[int, TunedRow], switch: _Switch, group: Group | None, device_type: str
) -> Callable[[Any, Any], Any]:
    """The forward of the modules of one (N, K, dtype, bias), bound to each. It is named as the class's own, so
    that a pickled module unpickles to that, and takes its parameters from the module, so that a copy has its
    own."""
    _, k, _, _ = key

    def forward(self: Any, input: Any) -> Any:  # noqa: A002
        if is_compiling():  # the pass rewrites what has rows
            return linear(input, self.weight, self.bias)
        if switch.on and type(input) is _Tensor:
            found = None
            if group is not None:
                found = _hit(None, self, input, group, device_type)
            if found is None:
                row = rows.get(input.numel() // k)
                if row is not None:
                    found = _hit(row, self, input, None, device_type)
            if found is not None:
                return found
            if WATCHERS and override.installed(device_type) is None:
                _tell_missed(key, input, device_type)
        return linear(input, self.weight, self.bias)

    return forward


def _hit(
    row: TunedRow | None,
    module: Any,
    input: Any,
    group: Group | None,
    device_type: str,  # noqa: A002
) -> Any | None:
    """The module's output by its row, or as a part of its group's; None if torch has to compute it."""
    parameters = module._parameters
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if type(weight) is not _Parameter or (bias is not None and type(bias) is not _Parameter):
        return None
    if intercepted() or autocast_differs(device_type, input.dtype):
        return None
    if _grad_enabled():
        needs = input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        if needs:
            return None if row is None or not row.live else operators.linear(input, weight, bias)
    if row is None:
        return None if group is None else group.take(module, input)
    return run_linear(row, input, weight, bias)


def _tell_missed(key: LinearKey, input: Any, device_type: str) -> None:  # noqa: A002
    n, k, dtype, bias = key
    m = input.numel() // k
    if m and input.dtype is dtype and input.device.type == device_type:
        extra = "bias" if bias else ""
        tell(Product(m, n, k, (False, k), (True, k), dtype, dtype, extra), None, device_type)


class Applied(Handle):
    """A model whose modules use a table. `modules` counts those with rows; `fused` the groups that are one
    product. disable() gives the modules their class's forward, and merged weights memory of their own."""

    def __init__(self, model: Any, table: Table, fuse: bool, race: bool) -> None:
        super().__init__(table)
        self.modules, self.fused = 0, 0
        self._switch = _Switch()
        self._patched: list[tuple[Any, MethodType]] = []
        self._groups: list[Group] = []
        try:
            self._apply(model, fuse, race)
        except BaseException:
            self.disable()
            raise

    def _apply(self, model: Any, fuse: bool, race: bool) -> None:
        served = self._served
        _check_devices(model, served)
        wanted = [key for key in {_key(one) for one in _linears(model, served)} if served.linear.get(key)]
        rows = [row for key in wanted for row in served.linear[key].values()]
        found = list(groups(model, served)) if fuse else []
        for one in found:
            key = _key(one[0])
            merged = sum(module.weight.shape[0] for module in one), *key[1:]
            rows += [row for row in served.linear[merged].values() if row not in rows]
        race_rows(served, rows, race)
        for index in _indices(model, served):
            served.load((row for row in rows if row.live), index)
        for one in found:
            self._groups.append(Group(served, one))
        self.fused = len(self._groups)
        grouped = {module: group for group in self._groups for module in group.modules}
        for module in _linears(model, served):
            key, group = _key(module), grouped.get(module)
            if group is None and not served.linear.get(key):
                continue
            rows_of = served.linear.setdefault(key, {})
            forward = MethodType(_patched(key, rows_of, self._switch, group, served.runtime.type), module)
            module.forward = forward
            self._patched.append((module, forward))
        self.modules = len(self._patched)

    def disable(self) -> None:
        """Restores the modules. Does nothing the second time."""
        if not self.enabled:
            return
        self._switch.on = False
        for module, forward in self._patched:
            if vars(module).get("forward") is forward:  # else it was wrapped, and computes as torch
                del module.forward
        for group in self._groups:
            group.restore()
        super().disable()


def _linears(model: Any, served: Served) -> Iterator[Any]:
    """Modules that are nn.Linear itself, with parameters of ordinary type on the table's kind of device."""
    for module in model.modules():
        if type(module) is not torch.nn.Linear or "forward" in vars(module):
            continue
        weight = module._parameters.get("weight")
        if type(weight) is _Parameter and weight.device.type == served.runtime.type:
            yield module


def _key(module: Any) -> LinearKey:
    n, k = module.weight.shape
    return n, k, module.weight.dtype, module.bias is not None


def _indices(model: Any, served: Served) -> list[int]:
    return sorted({module.weight.device.index or 0 for module in _linears(model, served)})


def _check_devices(model: Any, served: Served) -> None:
    """Raises ServingError for a model without a Linear on the table's kind of device, LaunchError for a device
    of another class."""
    kinds = {one.device.type for one in model.parameters()}
    if kinds and served.runtime.type not in kinds:
        raise ServingError(
            f"the table is for {served.table.device}, and the model's parameters are on "
            f"{', '.join(sorted(kinds))}: move the model, or load a table of its device"
        )
    for index in _indices(model, served):
        served.open(index)


def apply(model: Any, table: Table, *, fuse: bool = False, race: bool = True) -> Applied:
    """Runs the nn.Linear modules of `model` that have rows by these; returns a handle with disable().

    Nothing else is touched: a module gets a `forward` of its own, which leaves to torch what has no row: other
    M, dtypes, views, subclasses, modes. A launch that fails is computed by torch, with a warning, and its row is
    left out from then on.

    fuse: projections that share their input (q, k and v; gate and up) become one product where the table has
    rows for it. Their weights become views of one tensor, and their outputs views of one output: `view(-1)` of
    such an output fails where it did not before. Outputs are computed by module inside inference_mode, whose
    tensors do not count their changes.
    race: rows that were measured with other libraries than this process's are raced against torch once, and
    stay off where they are not faster; with race=False all such rows stay off.

    Raises ServingError or LaunchError if the table is not for the model's device, or another one is in use.
    """
    return Applied(model, table, fuse, race)
