"""A pass for torch.compile: products that have rows become nodes that look their row up when they run.

Only products with rows are rewritten, because a node that Inductor cannot see into is not fused with what
follows it. The pass works on the graph before Inductor lowers it, and so with both of its wrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from gemmtune.torch import operators
from gemmtune.torch.grouped import operators as grouped_operators
from gemmtune.torch.grouped import scaled, scaled_operators
from gemmtune.torch.grouped.products import key_of_call
from gemmtune.torch.layouts import Layout, layout
from gemmtune.torch.merged import MergedModules
from gemmtune.torch.quantised.graph import forms_of, merge_weights
from gemmtune.torch.served import Served

#: Of the rewriting: graphs of another version are not taken from Inductor's caches.
_VERSION = 4
#: What changes the shape of a product's rows and not their values.
_VIEWS = frozenset({
    torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default,
})  # fmt: skip
#: Operations of nodes that depend on no other: inputs, parameters and constants.
_GIVEN = ("placeholder", "get_attr")
_TRANSPOSES = frozenset({torch.ops.aten.t.default, torch.ops.aten.permute.default})


def rewrite(graph: Any, served: Served) -> int:
    """Rewrites mm, addmm and grouped nodes of a graph that have rows; how many there were. Projections whose
    weights apply(fuse=True) merged become one node, and count as one."""
    count = sum(_merge(graph, group, nodes) for group, nodes in list(_siblings(graph, served)))
    count += merge_weights(graph, served.weight_groups)
    for node in list(graph.nodes):
        if (grouped := _grouped_call(node, served)) is not None:
            node.target, (x, w, *rest) = grouped
            with graph.inserting_before(node):
                weight = graph.call_function(torch.ops.aten.permute.default, (w, [0, 2, 1]))
            weight.meta["val"] = _value(w).permute(0, 2, 1)
            node.args, node.kwargs = (x, weight, *rest), {}
            count += 1
            continue
        found = _operands(node)
        if found is None:
            continue
        a, b, bias = found
        if _has_rows(served, _value(a), _value(b), _value(node).dtype, "" if bias is None else "bias"):
            node.target = operators.mm.default if bias is None else operators.addmm.default
            count += 1
    if count:
        graph.lint()
    return count


def _has_rows(served: Served, a: Any, b: Any, out_dtype: Any, extra: str) -> bool:
    """Whether a product of A[m,k] and B[k,n] has rows; with an M that is known only when the graph runs,
    whether any M has. `extra` as in Product."""
    if a.device.type != served.runtime.type or b.dtype != a.dtype or out_dtype != a.dtype:
        return False
    m, k = a.shape
    n = b.shape[1]
    if not all(isinstance(size, int) for size in (k, n)):
        return False
    laid_b = _layout(k, n, b.stride())
    if isinstance(m, int):
        laid_a = _layout(m, k, a.stride())
        found = served.products.get(((m, k), (k, n)))
        if found is None or laid_a is None or laid_b is None:
            return False
        return any(key[:3] == (laid_a, laid_b, a.dtype) and key[5] == extra for key in found.rows)
    # M is known when the graph runs. Rows of A are then taken as packed: what is not is left to torch.
    return laid_b is not None and served.has_linear(n, k, (False, k), laid_b, a.dtype, a.dtype, extra)


def _operands(node: Any) -> tuple[Any, Any, Any] | None:
    """The nodes A, B and bias (None without one) of a product of torch's; None for what is none."""
    if node.op != "call_function":
        return None
    if node.target is torch.ops.aten.mm.default and not node.kwargs:
        return (*node.args, None)
    if node.target is torch.ops.aten.addmm.default and not node.kwargs:
        bias, a, b = node.args
        return (a, b, bias) if _value(bias).dim() == 1 else None
    return None


def _grouped_call(node: Any, served: Served) -> tuple[Any, tuple[Any, ...]] | None:
    """The operator of a grouped product of torch's that has rows of any M, and its arguments, but for the
    weights, which are as torch takes them; None for what is none."""
    if node.op != "call_function":
        return None
    if node.target is torch.ops.aten._grouped_mm.default:
        given = _arguments(node, "self", "mat2", "offs", "bias", "out_dtype")
        key = _key(key_of_call, given, served)
        return (grouped_operators.OPERATOR, (*given[:3],)) if key in served.grouped else None
    if node.target is torch.ops.aten._scaled_grouped_mm.default:
        names = "self", "mat2", "scale_a", "scale_b", "offs", "bias", "scale_result", "out_dtype"
        given = _arguments(node, *names)
        operands = (*given[:5], _value(node).dtype)
        scaled_key = _key(scaled.key_of_call, given, served)
        return (scaled_operators.OPERATOR, operands) if scaled_key in served.scaled_grouped else None
    return None


def _arguments(node: Any, *names: str) -> list[Any]:
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return [given.get(name) for name in names]


def _key(of: Callable[..., Any], given: Sequence[Any], served: Served) -> Any:
    """`of` the values of nodes; None where the product is another device's, or the weights' sizes are not
    known."""
    values = [_value(one) if isinstance(one, torch.fx.Node) else one for one in given]
    if values[0].device.type != served.runtime.type:
        return None
    if not all(isinstance(size, int) for size in values[1].shape):
        return None
    return of(*values)


def _value(node: Any) -> Any:
    return node.meta["val"]


def _layout(rows: int, columns: int, strides: Sequence[Any]) -> Layout | None:
    if not all(isinstance(stride, int) for stride in strides):
        return None
    return layout(rows, columns, *strides)


# ---- projections that are one product ------------------------------------------------------------


def _siblings(graph: Any, served: Served) -> Iterator[tuple[MergedModules, list[Any]]]:
    """Products of one input whose weights follow each other as those of a merged group do."""
    groups = {(tuple(one.sizes), one.k, one.weight.dtype, one.bias is not None): one for one in served.groups}
    if not groups:
        return
    by_input: dict[Any, list[Any]] = {}
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        found = _operands(node)
        if found is not None and _weight(found[1]) is not None:
            by_input.setdefault(_input(found[0]), []).append(node)
    for nodes in by_input.values():
        start = 0
        while start < len(nodes):
            for group in groups.values():
                some = nodes[start : start + len(group.sizes)]
                if _are_of(group, some, served.runtime.type) and _stand_before(some, places):
                    yield group, some
                    start += len(some) - 1
                    break
            start += 1


def _are_of(group: MergedModules, nodes: Sequence[Any], device_type: str) -> bool:
    """Whether products have the shapes of a group's modules, and the group's row is the faster way."""
    if [_value(node).shape[1] for node in nodes] != group.sizes:
        return False
    for node in nodes:
        a, b, bias = _operands(node) or (None, None, None)
        x, w = _value(a), _value(b)
        if x.device.type != device_type or (bias is None) != (group.bias is None):
            return False
        if bias is not None and bias.op not in _GIVEN:  # it may be computed after the first product
            return False
        if x.shape[1] != group.k or not x.is_contiguous() or {x.dtype, w.dtype} != {group.weight.dtype}:
            return False
    m = _value(nodes[0]).shape[0]
    # Without the group's row its products are apart: M has to be known.
    return isinstance(m, int) and group.row(m) is not None


def _stand_before(nodes: Sequence[Any], places: dict[Any, int]) -> bool:
    """Whether all weights and biases stand before the first product: a constant that a pass of torch's folded
    stands where it was computed."""
    given = (one for node in nodes for one in (_operands(node) or ())[1:])
    return all(one is None or places[_weight(one) or one] < places[nodes[0]] for one in given)


def _merge(graph: Any, group: MergedModules, nodes: Sequence[Any]) -> int:
    """Replaces the products of a group by one; each product's users take their columns of it."""
    found = [_operands(node) for node in nodes]
    weights = [_weight(one[1]) for one in found if one is not None]
    biases = [one[2] for one in found if one is not None and one[2] is not None]
    a = nodes[0].args[0 if not biases else 1]
    with graph.inserting_before(nodes[0]):
        merged = graph.call_function(operators.merged.default, (a, weights, biases))
        merged.meta["val"] = _value(a).new_empty((_value(a).shape[0], sum(group.sizes)))
        start = 0
        for node, size in zip(nodes, group.sizes, strict=True):
            part = graph.call_function(torch.ops.aten.slice.Tensor, (merged, 1, start, start + size))
            part.meta["val"] = _value(merged)[:, start : start + size]
            node.replace_all_uses_with(part)
            start += size
    for node in nodes:
        graph.erase_node(node)
    return 1


def _input(node: Any) -> tuple[Any, Any]:
    """What a product's rows are, whatever views are between; and how many."""
    rows = _value(node).shape[0]
    while node.op == "call_function" and node.target in _VIEWS:
        node = node.args[0]
    return node, rows


def _weight(node: Any) -> Any | None:
    """The parameter [n, k] whose transpose a product's B is."""
    if node.op != "call_function" or node.target not in _TRANSPOSES:
        return None
    if node.target is torch.ops.aten.permute.default and list(node.args[1]) != [1, 0]:
        return None
    weight = node.args[0]
    return weight if weight.op in _GIVEN and _value(weight).is_contiguous() else None


# ---- the pass ------------------------------------------------------------------------------------


def _identity(served: Served) -> str:
    merged = sorted({str(tuple(one.sizes)) for one in served.groups} | {*forms_of(served.weight_groups)})
    return f"{served.digest}{merged}" if merged else served.digest


def make(served: Sequence[Served], after: Any = None) -> Any:
    """The pass of the tables that `served` has when a graph is compiled, an instance of Inductor's
    CustomGraphPass; `after` is a pass that runs before it."""
    return _pass_class()(served, after)


@cache
def _pass_class() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: PLC0415  (takes seconds)

    class GemmtunePass(CustomGraphPass):  # type: ignore[misc]
        """Rewrites products that have rows."""

        def __init__(self, served: Sequence[Served], after: Any) -> None:
            self.served, self.after = served, after

        def __call__(self, graph: Any) -> None:
            if self.after is not None:
                self.after(graph)
            for one in dict.fromkeys(self.served):
                rewrite(graph, one)

        def uuid(self) -> Any:
            """Inductor's caches tell graphs of different tables and merged weights apart by this."""
            tables = sorted({_identity(one) for one in self.served})
            own = f"gemmtune-{_VERSION}-{'-'.join(tables)}"
            return own if self.after is None else (own, self.after.uuid())

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self  # Inductor copies its settings; tables are not copied

    return GemmtunePass
