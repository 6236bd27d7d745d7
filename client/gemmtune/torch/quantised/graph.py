"""The part of the pass for torch.compile that makes merged QuantizedLinear projections one product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.torch.quantised import merged_operator, operators
from gemmtune.torch.quantised.form import Form, form_of

if TYPE_CHECKING:
    from gemmtune.torch.merged import MergedWeights

#: Operations of nodes that depend on no other: inputs, parameters, buffers and constants.
_GIVEN = ("placeholder", "get_attr")


class _Linear(NamedTuple):
    """The operands of a node of linear_w4a16 or linear_w8a16, with its packed copy if it has one, and the
    form of its weights."""

    node: Any
    input: Any
    tensors: tuple[Any, Any, Any, Any]
    group_size: int | None
    zero_point: str | None
    bits: int
    layout: str | None
    packed: Any
    form: Form


def merge_weights(graph: Any, groups: Sequence[MergedWeights]) -> int:
    """Makes the products of one input whose weights have the forms of a merged group one node each, where the
    group has a row for their M; how many nodes there are then."""
    if not groups:
        return 0
    by_forms = {(tuple(group.forms), group.has_bias): group for group in groups}
    by_input: dict[Any, list[_Linear]] = {}
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        found = _linear(node)
        if found is not None:
            by_input.setdefault(found.input, []).append(found)
    count = 0
    for linears in by_input.values():
        start = 0
        while start < len(linears):
            some = _merged(linears[start:], by_forms, places)
            count += bool(some)
            start += len(some) or 1
    return count


def _merged(
    linears: Sequence[_Linear], by_forms: dict[Any, MergedWeights], places: dict[Any, int]
) -> Sequence[_Linear]:
    """The first of the linears that a group's row computes together, which become one node; none if there is
    no such group. `places`: of the graph's nodes."""
    for (forms, has_bias), group in by_forms.items():
        some = linears[: len(forms)]
        if tuple(one.form for one in some) != forms or len({one[3:7] for one in some}) != 1:
            continue
        # A constant that a pass of torch's folded stands where it was computed, maybe after the first.
        first = places[some[0].node]
        operands = [node for one in some for node in (*one.tensors, one.packed) if node is not None]
        if any(places[node] > first for node in operands):
            continue
        x = some[0].input.meta["val"]
        sizes = x.shape[:-1]
        # Without the group's row its products are apart: M has to be known.
        if any((one.tensors[3] is not None) != has_bias for one in some) or not _known(sizes):
            continue
        # Copies that are not together the product's are of no use to it.
        copy = some[0].packed is not None and group.joined
        if x.device.type == group.device_type and group.row(sizes.numel(), x.dtype, copy) is not None:
            _replace(some, x)
            return some
    return ()


def _known(sizes: Any) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _replace(linears: Sequence[_Linear], x: Any) -> None:
    """Puts one node before the first; each product's users take their columns of it."""
    first = linears[0]
    tensors = [[one for one in kind if one is not None] for kind in _by_kind(linears)]
    graph = first.node.graph
    with graph.inserting_before(first.node):
        packed = [one.packed for one in linears if one.packed is not None]
        kind = first.group_size, first.zero_point, first.bits
        arguments = (first.input, *tensors, *kind, packed, first.layout)
        merged = graph.call_function(merged_operator.OPERATOR, arguments)
        merged.meta["val"] = x.new_empty((*x.shape[:-1], sum(one.form.n for one in linears)))
        start = 0
        for one in linears:
            end = start + one.form.n
            part = graph.call_function(torch.ops.aten.slice.Tensor, (merged, x.dim() - 1, start, end))
            part.meta["val"] = merged.meta["val"][..., start:end]
            one.node.replace_all_uses_with(part)
            start = end
    for one in linears:
        graph.erase_node(one.node)


def _by_kind(linears: Sequence[_Linear]) -> Iterator[tuple[Any, ...]]:
    """All weights, all scales, all zero points, all biases."""
    return zip(*(one.tensors for one in linears), strict=True)


def _linear(node: Any) -> _Linear | None:
    """The operands of a node of our operators whose weights and bias are the graph's inputs; None for what is
    none."""
    if node.op != "call_function" or node.kwargs:
        return None
    if node.target is operators.W4A16:
        x, weight, scales, zeros, group_size, zero_point, bias, *copy = node.args
        bits = 4
    elif node.target is operators.W8A16:
        x, weight, scales, group_size, bias, *copy = node.args
        zeros, zero_point, bits = None, None, 8
    else:
        return None
    packed, layout = copy or (None, None)
    tensors = weight, scales, zeros, bias
    if any(one is not None and one.op not in _GIVEN for one in (*tensors, packed)):
        return None
    words, steps, points = (None if one is None else one.meta["val"] for one in tensors[:3])
    form = form_of(words, steps, points, group_size, zero_point, bits)
    return _Linear(node, x, tensors, group_size, zero_point, bits, layout, packed, form)


def forms_of(groups: Sequence[MergedWeights]) -> Iterator[str]:
    """What graphs depend on of the groups."""
    for group in groups:
        yield f"{group.forms}{group.has_bias}{group.joined}"
